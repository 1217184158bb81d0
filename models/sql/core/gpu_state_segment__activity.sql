-- One GPU in one pod, over all that is known of the pod: its first and last active sample and its last sample (G4).
WITH wanted AS (
    SELECT DISTINCT h.cluster, h.pod_uid
    FROM gpu_holder AS h
    WHERE h.run IN (SELECT run FROM gpu_holder WHERE held_from_ns < $to_ns AND held_to_ns > $from_ns)
), owner AS (
    SELECT o.* FROM gpu_owner AS o JOIN wanted AS w ON w.cluster = o.cluster AND w.pod_uid = o.pod_uid
), sample AS (
    SELECT
        s.cluster, s.gpu_uuid, coalesce(s.gpu_instance, '') AS gpu_instance, o.pod_uid, s.metric, s.time_ns // $day_length_ns AS day,
        min(s.time_ns) FILTER (WHERE s.value >= $idle_threshold * CASE s.metric WHEN 'gpu_util' THEN 100 ELSE 1 END) AS first_active_ns,
        max(s.time_ns) FILTER (WHERE s.value >= $idle_threshold * CASE s.metric WHEN 'gpu_util' THEN 100 ELSE 1 END) AS last_active_ns,
        max(s.time_ns) AS last_sample_ns
    FROM staging.gpu_sample AS s
    JOIN owner AS o
        ON o.cluster = s.cluster
        AND o.owner_key = CASE
            WHEN s.pod_uid IS NOT NULL THEN 'uid' || chr(31) || s.pod_uid
            WHEN coalesce(s.pod, '') <> '' THEN 'pod' || chr(31) || coalesce(s.namespace, '') || chr(31) || s.pod
            ELSE 'node' || chr(31) || s.node_name
        END
        AND o.from_ns <= s.time_ns AND s.time_ns < o.to_ns
    WHERE s.metric IN ('gpu_util', 'engine_active')
        AND s.time_ns >= (SELECT min(from_ns) FROM owner) AND s.time_ns < (SELECT max(to_ns) FROM owner)
    GROUP BY ALL
), day AS (
    SELECT *
    FROM sample
    -- engine activity where the day has it, else utilisation
    QUALIFY row_number() OVER (PARTITION BY cluster, gpu_uuid, gpu_instance, pod_uid, day ORDER BY metric) = 1
)
SELECT
    cluster, gpu_uuid, gpu_instance, pod_uid,
    min(first_active_ns) AS first_active_ns,
    max(last_active_ns) AS last_active_ns,
    max(last_sample_ns) AS last_sample_ns
FROM day
GROUP BY ALL
