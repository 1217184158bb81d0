-- One hour, node, GPU model, job, role, state, cause and basis: GPU-hours, whose sum over states is the node-hour's capacity (G1).
WITH segment AS (
    SELECT s.*, p.role
    FROM core.gpu_state_segment AS s
    LEFT JOIN core.pod_life AS p ON p.cluster = s.cluster AND p.pod_uid = s.pod_uid
    WHERE s.date >= $from_date AND s.date < $to_date
), cut AS (
    SELECT
        s.* EXCLUDE (from_ns, to_ns), g.hour * 3600000000000 AS hour_ns,
        greatest(s.from_ns, g.hour * 3600000000000) AS from_ns, least(s.to_ns, (g.hour + 1) * 3600000000000) AS to_ns
    FROM segment AS s, unnest(generate_series(s.from_ns // 3600000000000, (s.to_ns - 1) // 3600000000000)) AS g(hour)
), split AS (
    -- while a GPU is active, its activity splits the time
    SELECT cluster, node_key, gpu_model, job_key, role, state, cause, activity_basis, hour_ns, weight * (to_ns - from_ns) AS gpu_ns
    FROM cut WHERE state <> 'busy'
    UNION ALL
    SELECT cluster, node_key, gpu_model, job_key, role, 'busy', cause, activity_basis, hour_ns, weight * (to_ns - from_ns) * activity
    FROM cut WHERE state = 'busy'
    UNION ALL
    SELECT cluster, node_key, gpu_model, job_key, role, 'underused', cause, activity_basis, hour_ns, weight * (to_ns - from_ns) * (1 - activity)
    FROM cut WHERE state = 'busy'
), lived AS (
    SELECT
        cluster, node_key, gpu_model, job_key, role, state, cause, activity_basis, CAST(hour_ns AS BIGINT) AS hour_ns,
        sum(gpu_ns) / 3600e9 AS gpu_hours
    FROM split
    GROUP BY ALL
), billed AS (
    SELECT b.node_key, ts_to_ns(b.hour_utc) AS hour_ns, CAST(sum(b.instance_hours) AS DOUBLE) AS instance_hours
    FROM core.node_bill_hourly AS b
    WHERE b.date >= $from_date AND b.date < $to_date AND b.charge_scope = 'gpu_compute'
    GROUP BY ALL
    HAVING sum(b.instance_hours) > 0
), node AS (
    SELECT n.node_key, n.cluster, n.gpus, n.gpu_model, n.valid_from_ns, n.valid_to_ns, coalesce(k.model, n.gpu_model) AS model
    FROM core.node_life AS n
    LEFT JOIN gpu_model AS k ON k.raw = n.gpu_model
    WHERE n.gpus > 0
), node_model AS (
    SELECT node_key, min(gpu_model) AS model FROM segment WHERE node_key <> -1 GROUP BY node_key
), paid AS (
    SELECT
        n.node_key, n.cluster, n.gpus, coalesce(n.model, m.model) AS model, b.hour_ns, b.instance_hours,
        greatest(0, least(n.valid_to_ns, b.hour_ns + 3600000000000) - greatest(n.valid_from_ns, b.hour_ns)) / 3600e9 AS life_hours
    FROM billed AS b
    JOIN node AS n ON n.node_key = b.node_key
    LEFT JOIN node_model AS m ON m.node_key = b.node_key
), coverage AS (
    -- islands of what is known of placement: two sources may cover the same time
    SELECT cluster, min(from_ns) AS from_ns, max(to_ns) AS to_ns
    FROM (
        SELECT *, sum(CAST(apart AS INTEGER)) OVER (PARTITION BY cluster ORDER BY from_ns, to_ns) AS island
        FROM (
            SELECT
                *,
                coalesce(from_ns > max(to_ns) OVER (
                    PARTITION BY cluster ORDER BY from_ns, to_ns ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
                ), true) AS apart
            FROM core.placement_coverage
        )
    )
    GROUP BY cluster, island
), outside AS (
    -- the parts of the hour before and after the node's life
    SELECT node_key, cluster, gpus, model, hour_ns, instance_hours, life_hours, hour_ns AS from_ns,
        least(hour_ns + 3600000000000, greatest(hour_ns, valid_from_ns)) AS to_ns
    FROM paid JOIN (SELECT node_key, valid_from_ns FROM node) USING (node_key)
    UNION ALL
    SELECT node_key, cluster, gpus, model, hour_ns, instance_hours, life_hours,
        greatest(hour_ns, least(hour_ns + 3600000000000, greatest(valid_to_ns, valid_from_ns))), hour_ns + 3600000000000
    FROM paid JOIN (SELECT node_key, valid_from_ns, valid_to_ns FROM node) USING (node_key)
), excess AS (
    SELECT
        p.node_key, p.cluster, p.model, p.hour_ns, p.gpus * (p.instance_hours - p.life_hours) AS gpu_hours,
        -- billed time outside the node's life is evenly spread over what is not its life, of which a part may be unknown
        coalesce(1 - sum(o.known_ns) / nullif(sum(o.length_ns), 0), 0) AS unknown_share
    FROM paid AS p
    LEFT JOIN (
        SELECT
            o.node_key, o.hour_ns, o.to_ns - o.from_ns AS length_ns,
            coalesce((
                SELECT sum(least(c.to_ns, o.to_ns) - greatest(c.from_ns, o.from_ns))
                FROM coverage AS c
                WHERE c.cluster = o.cluster AND c.from_ns < o.to_ns AND c.to_ns > o.from_ns
            ), 0) AS known_ns
        FROM outside AS o
        WHERE o.to_ns > o.from_ns
    ) AS o ON o.node_key = p.node_key AND o.hour_ns = p.hour_ns
    WHERE p.instance_hours > p.life_hours + 1e-12
    GROUP BY p.node_key, p.cluster, p.model, p.hour_ns, p.gpus, p.instance_hours, p.life_hours
), stated AS (
    SELECT
        l.cluster, l.node_key, l.gpu_model, l.job_key, l.role, l.state, l.cause, l.activity_basis, l.hour_ns,
        -- less was billed than the node's life says: the capacity is what was billed
        l.gpu_hours * CASE WHEN p.instance_hours < p.life_hours THEN p.instance_hours / p.life_hours ELSE 1 END AS gpu_hours
    FROM lived AS l
    LEFT JOIN paid AS p ON p.node_key = l.node_key AND p.hour_ns = l.hour_ns
    UNION ALL
    SELECT cluster, node_key, model, -1, NULL, 'unallocated', 'not_in_cluster', 'none', hour_ns, gpu_hours * (1 - unknown_share)
    FROM excess
    UNION ALL
    SELECT cluster, node_key, model, -1, NULL, 'unmeasured', 'no_placement', 'none', hour_ns, gpu_hours * unknown_share
    FROM excess
)
SELECT
    ns_date(hour_ns) AS date, ns_hour(hour_ns) AS hour_utc, cluster, node_key, gpu_model, job_key, role, state, cause, activity_basis,
    sum(gpu_hours) AS gpu_hours
FROM stated
WHERE gpu_hours <> 0
GROUP BY ALL
