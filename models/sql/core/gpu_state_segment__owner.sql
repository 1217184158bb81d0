-- One key that a sample may carry (pod uid, pod name, or its node alone) and the pod that it means for a stretch of time (G2).
WITH alone AS (
    SELECT
        cluster, node_name, pod_uid, on_node_from_ns AS from_ns, node_gpus,
        least(
            on_node_to_ns,
            -- a device without a pod label is a pod's where that pod holds the whole node; a later binding ends that
            CASE
                WHEN node_gpus = 1 THEN $forever_ns
                ELSE coalesce(lead(held_from_ns) OVER (PARTITION BY node_key ORDER BY held_from_ns, pod_uid), $forever_ns)
            END
        ) AS to_ns,
        gpus
    FROM gpu_holder
    WHERE node_name IS NOT NULL
)
SELECT cluster, 'uid' || chr(31) || pod_uid AS owner_key, pod_uid, held_from_ns AS from_ns, held_to_ns AS to_ns FROM gpu_holder
UNION ALL
SELECT cluster, 'pod' || chr(31) || namespace || chr(31) || name, pod_uid, held_from_ns, name_to_ns FROM gpu_holder
WHERE name_to_ns > held_from_ns
UNION ALL
SELECT cluster, 'node' || chr(31) || node_name, pod_uid, from_ns, to_ns FROM alone
WHERE (node_gpus = 1 OR gpus >= node_gpus) AND to_ns > from_ns
