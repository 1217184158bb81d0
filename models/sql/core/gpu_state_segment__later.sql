-- One GPU in one pod: its first sample after the readings that were loaded, so that the last of a series is known to be the last (G2).
SELECT s.cluster, s.gpu_uuid, coalesce(s.gpu_instance, '') AS gpu_instance, o.pod_uid, min(s.time_ns) AS time_ns
FROM staging.gpu_sample AS s
JOIN gpu_owner AS o
    ON o.cluster = s.cluster
    AND o.owner_key = CASE
        WHEN s.pod_uid IS NOT NULL THEN 'uid' || chr(31) || s.pod_uid
        WHEN coalesce(s.pod, '') <> '' THEN 'pod' || chr(31) || coalesce(s.namespace, '') || chr(31) || s.pod
        ELSE 'node' || chr(31) || s.node_name
    END
    AND o.from_ns <= s.time_ns AND s.time_ns < o.to_ns
WHERE s.metric IN ('gpu_util', 'engine_active') AND s.time_ns >= $load_to_ns AND s.time_ns < $load_to_ns + $silence_ns
GROUP BY ALL
