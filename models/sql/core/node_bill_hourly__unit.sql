-- A row is one compute line, node and hour that it pays for, with its whole-number weight in the line (B6).
WITH line AS (
    SELECT * FROM core.bill_line
    WHERE charge_scope IN ('gpu_compute', 'other_compute') AND date >= $from_date AND date < $to_date
),
node AS (
    SELECT n.*, coalesce(c.provider, 'unknown') AS provider
    FROM core.node_life AS n LEFT JOIN staging.cluster AS c USING (cluster)
),
direct AS (
    SELECT line.*, line.node_key AS for_node, line.hour_utc AS for_hour, 1000000000 AS weight,
        CAST(line.quantity AS DOUBLE) AS hours, 'billed' AS cost_basis
    FROM line
    WHERE line.node_key <> -1 AND line.charge_span = 'hour'
),
daily AS (
    -- a daily line is spread over the hours that the node was up
    SELECT line.*, line.node_key AS for_node, hours.for_hour,
        least(1000000000, greatest(0, (
            least(node.valid_to_ns, ts_to_ns(hours.for_hour + INTERVAL 1 HOUR)) - greatest(node.valid_from_ns, ts_to_ns(hours.for_hour))
        ) // 3600)) AS weight,
        CAST(NULL AS DOUBLE) AS hours, 'billed' AS cost_basis
    FROM line
    JOIN node ON node.node_key = line.node_key
    CROSS JOIN LATERAL (
        SELECT unnest(generate_series(CAST(line.date AS TIMESTAMP), CAST(line.date AS TIMESTAMP) + INTERVAL 23 HOUR, INTERVAL 1 HOUR))
            AS for_hour
    ) AS hours
    WHERE line.charge_span = 'day'
),
own AS (
    SELECT DISTINCT for_node, for_hour FROM direct
    UNION SELECT DISTINCT for_node, for_hour FROM daily
),
pooled AS (
    -- lines without a resource id: over the nodes of that type and option that have no line of their own in the hour
    SELECT line.*, node.node_key AS for_node, line.hour_utc AS for_hour,
        greatest(1, (
            least(node.valid_to_ns, ts_to_ns(line.hour_utc + INTERVAL 1 HOUR)) - greatest(node.valid_from_ns, ts_to_ns(line.hour_utc))
        ) // 3600) AS weight,
        CAST(NULL AS DOUBLE) AS hours, 'pooled' AS cost_basis
    FROM line
    JOIN node
      ON node.instance_type = line.instance_type AND node.provider = line.provider AND node.region IS NOT DISTINCT FROM line.region
     AND node.valid_from_ns < ts_to_ns(line.hour_utc + INTERVAL 1 HOUR) AND node.valid_to_ns > ts_to_ns(line.hour_utc)
     AND (node.lifecycle = 'spot') = (line.pricing_category = 'Dynamic')
    LEFT JOIN own ON own.for_node = node.node_key AND own.for_hour = line.hour_utc
    WHERE line.node_key = -1 AND line.resource_id IS NULL AND line.charge_span = 'hour' AND own.for_node IS NULL
)
SELECT * FROM direct
UNION ALL SELECT * FROM daily WHERE weight > 0
UNION ALL SELECT * FROM pooled
