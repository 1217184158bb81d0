-- One GPU and hour that was active while no pod that requested GPUs could account for it (G1: unrequested_use).
WITH sample AS (
    SELECT
        s.cluster, s.node_name, s.gpu_uuid, coalesce(s.gpu_instance, '') AS gpu_instance, s.time_ns, s.namespace, s.pod,
        CASE s.metric WHEN 'gpu_util' THEN s.value / 100 ELSE s.value END AS activity,
        CASE
            WHEN s.pod_uid IS NOT NULL THEN 'uid' || chr(31) || s.pod_uid
            WHEN coalesce(s.pod, '') <> '' THEN 'pod' || chr(31) || coalesce(s.namespace, '') || chr(31) || s.pod
            ELSE 'node' || chr(31) || s.node_name
        END AS owner_key
    FROM staging.gpu_sample AS s
    WHERE s.metric IN ('gpu_util', 'engine_active') AND s.time_ns >= $from_ns AND s.time_ns < $to_ns
        -- without placement nothing is known of who requested what
        AND EXISTS (
            SELECT 1 FROM core.placement_coverage AS c
            WHERE c.cluster = s.cluster AND c.from_ns <= s.time_ns AND s.time_ns < c.to_ns
        )
), owned AS (
    SELECT s.*, o.pod_uid
    FROM sample AS s
    LEFT JOIN gpu_owner AS o
        ON o.cluster = s.cluster AND o.owner_key = s.owner_key AND o.from_ns <= s.time_ns AND s.time_ns < o.to_ns
), device AS (
    SELECT
        *,
        bool_or(pod_uid IS NOT NULL) OVER (PARTITION BY cluster, gpu_uuid, time_ns // $bucket_ns) AS accounted
    FROM owned
)
SELECT
    ns_date(time_ns) AS date, ns_hour(time_ns) AS hour_utc, cluster, node_name, gpu_uuid,
    max(namespace) FILTER (WHERE activity >= $idle_threshold) AS namespace,
    max(pod) FILTER (WHERE activity >= $idle_threshold) AS pod,
    count(DISTINCT time_ns) FILTER (WHERE activity >= $idle_threshold) AS active_samples,
    max(activity) AS highest_activity
FROM device
WHERE NOT accounted
GROUP BY ALL
HAVING count(*) FILTER (WHERE activity >= $idle_threshold) > 0
