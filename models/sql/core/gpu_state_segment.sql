-- One GPU (or slots without telemetry) and a stretch of one state within a day (G1-G4).
WITH piece AS (
    SELECT cluster, node_key, gpu_uuid, gpu_instance, pod_uid, from_ns, to_ns, state, cause, basis, activity, work, weight
    FROM gpu_piece
    WHERE state NOT IN ('idle', 'starting')
    UNION ALL
    SELECT cluster, node_key, gpu_uuid, gpu_instance, pod_uid, from_ns, to_ns, state, cause, basis, activity, work, weight
    FROM gpu_caused
), device_model AS (
    -- a node that names no model has that of its devices
    SELECT h.node_key, min(coalesce(k.model, m.gpu_model)) AS model
    FROM gpu_measured AS m
    JOIN gpu_holder AS h ON h.cluster = m.cluster AND h.pod_uid = m.pod_uid
    LEFT JOIN gpu_model AS k ON k.raw = m.gpu_model
    WHERE m.gpu_model IS NOT NULL
    GROUP BY h.node_key
)
SELECT
    ns_date(p.from_ns) AS date, p.cluster, p.node_key,
    p.gpu_uuid || CASE WHEN p.gpu_instance <> '' THEN '/' || p.gpu_instance ELSE '' END AS gpu_uuid,
    coalesce(k.model, n.gpu_model, d.model) AS gpu_model,
    coalesce(h.job_key, -1) AS job_key, p.pod_uid, p.from_ns, p.to_ns, p.state, p.cause, p.basis AS activity_basis,
    CASE WHEN p.state IN ('busy', 'comm_stall') THEN p.activity END AS activity,
    p.work, p.weight, coalesce(h.still_alive, false) AS provisional, p.cause AS early_cause
FROM piece AS p
LEFT JOIN gpu_holder AS h ON h.cluster = p.cluster AND h.pod_uid = p.pod_uid
LEFT JOIN core.node_life AS n ON n.node_key = p.node_key AND p.node_key <> -1
LEFT JOIN gpu_model AS k ON k.raw = n.gpu_model
LEFT JOIN device_model AS d ON d.node_key = p.node_key
