-- One GPU (or slots without telemetry) and a stretch of one state, before causes: what was measured, and the rest of what was granted.
WITH device AS (
    SELECT m.cluster, m.pod_uid, m.gpu_uuid, m.gpu_instance, count(*) OVER (PARTITION BY m.cluster, m.pod_uid) AS devices
    FROM (SELECT DISTINCT cluster, pod_uid, gpu_uuid, gpu_instance FROM gpu_measured) AS m
), counted AS (
    SELECT
        g.grant_id, g.cluster, g.node_key, g.pod_uid, g.weight AS granted, g.from_ns AS granted_from_ns, g.to_ns AS granted_to_ns,
        d.gpu_uuid, d.gpu_instance,
        -- more devices than were requested share the request
        least(h.device_gpus, h.gpus / d.devices) * g.weight / h.gpus AS weight
    FROM gpu_grant AS g
    JOIN gpu_holder AS h ON h.cluster = g.cluster AND h.pod_uid = g.pod_uid
    JOIN device AS d ON d.cluster = g.cluster AND d.pod_uid = g.pod_uid
    WHERE g.kind = 'held'
), measured AS (
    SELECT
        c.*, greatest(m.from_ns, c.granted_from_ns) AS from_ns, least(m.to_ns, c.granted_to_ns) AS to_ns,
        m.state, m.basis, m.activity, m.work, m.pause
    FROM counted AS c
    JOIN gpu_measured AS m
        ON m.cluster = c.cluster AND m.pod_uid = c.pod_uid AND m.gpu_uuid = c.gpu_uuid AND m.gpu_instance = c.gpu_instance
        AND m.from_ns < c.granted_to_ns AND m.to_ns > c.granted_from_ns
), edge AS (
    -- the time of a device around its measured stretches: the end of each to the start of the next, and before the first
    SELECT
        grant_id, cluster, node_key, pod_uid, gpu_uuid, gpu_instance, weight, to_ns AS from_ns,
        coalesce(lead(from_ns) OVER (PARTITION BY grant_id, gpu_uuid, gpu_instance ORDER BY from_ns), granted_to_ns) AS to_ns
    FROM measured
    UNION ALL
    SELECT
        c.grant_id, c.cluster, c.node_key, c.pod_uid, c.gpu_uuid, c.gpu_instance, c.weight, c.granted_from_ns,
        coalesce(min(m.from_ns), c.granted_to_ns)
    FROM counted AS c
    LEFT JOIN measured AS m ON m.grant_id = c.grant_id AND m.gpu_uuid = c.gpu_uuid AND m.gpu_instance = c.gpu_instance
    GROUP BY c.grant_id, c.cluster, c.node_key, c.pod_uid, c.gpu_uuid, c.gpu_instance, c.weight, c.granted_from_ns, c.granted_to_ns
), silent AS (
    SELECT
        g.cluster, g.node_key, g.pod_uid, g.from_ns, g.to_ns,
        g.weight - coalesce((SELECT sum(c.weight) FROM counted AS c WHERE c.grant_id = g.grant_id), 0) AS weight
    FROM gpu_grant AS g
    WHERE g.kind = 'held'
)
SELECT
    cluster, node_key, gpu_uuid, gpu_instance, pod_uid, from_ns, to_ns, state, CAST(NULL AS VARCHAR) AS cause, basis, activity, work,
    weight, pause
FROM measured
UNION ALL
SELECT cluster, node_key, gpu_uuid, gpu_instance, pod_uid, from_ns, to_ns, 'unmeasured', NULL, 'none', NULL, NULL, weight, false
FROM edge
WHERE to_ns > from_ns
UNION ALL
SELECT cluster, node_key, 'slot-1', '', pod_uid, from_ns, to_ns, 'unmeasured', NULL, 'none', NULL, NULL, weight, false
FROM silent
WHERE weight > 1e-9
UNION ALL
SELECT
    cluster, node_key, 'slot-1', '', pod_uid, from_ns, to_ns,
    CASE kind WHEN 'starting' THEN 'starting' WHEN 'no_placement' THEN 'unmeasured' ELSE 'unallocated' END,
    CASE WHEN kind <> 'starting' THEN kind END, 'none', NULL, NULL, weight, false
FROM gpu_grant
WHERE kind <> 'held'
