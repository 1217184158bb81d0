-- A row is one compute usage line, node and hour that it pays for, with its whole-number weight in the line (B6).
-- A line's weights cover all its hours, whatever the window, so that a day's part is the same in every run (N7).
WITH line AS (
    SELECT * FROM core.bill_line
    WHERE charge_scope IN ('gpu_compute', 'other_compute') AND charge_category = 'Usage'
      AND date >= $from_date - 1 AND date < $to_date
),
node AS (
    SELECT n.*, coalesce(c.provider, 'unknown') AS provider
    FROM core.node_life AS n LEFT JOIN staging.cluster AS c USING (cluster)
),
direct AS (
    SELECT line.*, line.node_key AS for_node, line.hour_utc AS for_hour, 1000000000 AS weight, 'billed' AS cost_basis
    FROM line
    WHERE line.node_key <> -1 AND line.charge_span = 'hour'
),
long AS (
    -- each hour of a line that is longer than an hour
    SELECT line.*, hours.for_hour
    FROM line
    CROSS JOIN LATERAL (
        SELECT unnest(generate_series(
            date_trunc('hour', line.charge_period_start), line.charge_period_end - INTERVAL 1 MICROSECOND, INTERVAL 1 HOUR
        )) AS for_hour
    ) AS hours
    WHERE line.charge_span = 'day'
),
daily AS (
    -- a daily line is spread over the hours that the node was up
    SELECT long.* EXCLUDE (for_hour), long.node_key AS for_node, long.for_hour,
        greatest(0, (
            least(node.valid_to_ns, ts_to_ns(long.for_hour + INTERVAL 1 HOUR)) - greatest(node.valid_from_ns, ts_to_ns(long.for_hour))
        ) // 3600) AS weight,
        'billed' AS cost_basis
    FROM long
    JOIN node ON node.node_key = long.node_key
),
own AS (
    SELECT DISTINCT for_node, for_hour FROM direct
    UNION SELECT DISTINCT for_node, for_hour FROM daily WHERE weight > 0
),
anonymous AS (
    SELECT *, hour_utc AS for_hour FROM line WHERE charge_span = 'hour' AND node_key = -1 AND resource_id IS NULL
    UNION ALL
    SELECT * FROM long WHERE node_key = -1 AND resource_id IS NULL
),
pooled AS (
    -- lines without a resource id: over the nodes of that type and option that have no line of their own in the hour
    SELECT anonymous.* EXCLUDE (for_hour), node.node_key AS for_node, anonymous.for_hour,
        greatest(1, (
            least(node.valid_to_ns, ts_to_ns(anonymous.for_hour + INTERVAL 1 HOUR))
            - greatest(node.valid_from_ns, ts_to_ns(anonymous.for_hour))
        ) // 3600) AS weight,
        'pooled' AS cost_basis
    FROM anonymous
    JOIN node
      ON node.instance_type = anonymous.instance_type AND node.provider = anonymous.provider
     AND node.region IS NOT DISTINCT FROM anonymous.region
     AND (anonymous.cluster_key = -1 OR anonymous.cluster_key = stable_key(node.cluster))
     AND node.valid_from_ns < ts_to_ns(anonymous.for_hour + INTERVAL 1 HOUR) AND node.valid_to_ns > ts_to_ns(anonymous.for_hour)
     AND (node.lifecycle = 'spot') = coalesce(anonymous.pricing_category = 'Dynamic', false)
    LEFT JOIN own ON own.for_node = node.node_key AND own.for_hour = anonymous.for_hour
    WHERE own.for_node IS NULL
)
SELECT * FROM direct
UNION ALL BY NAME SELECT * FROM daily WHERE weight > 0
UNION ALL BY NAME SELECT * FROM pooled
