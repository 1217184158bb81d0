-- One pod that holds GPUs: from when, since when its main container runs, until when, and what one device of it counts for (P6, G2).
WITH held AS (
    SELECT
        cluster, pod_uid, namespace, name, node_key, job_key, role, gpus, still_alive, held_from_ns,
        coalesce(held_to_ns, $forever_ns) AS held_to_ns,
        -- a source without container states still says that a running pod has started
        coalesce(
            main_started_ns,
            CASE WHEN phase IN ('Running', 'Succeeded') OR succeeded THEN coalesce(initialized_ns, ready_to_start_ns, held_from_ns) END,
            $forever_ns
        ) AS first_start_ns,
        CAST(nullif(regexp_extract(coalesce(gpu_resource, ''), 'mig-([0-9]+)g', 1), '') AS DOUBLE) AS mig_slices,
        contains(coalesce(gpu_resource, ''), '.shared') AS shared_resource
    FROM core.pod_life
    WHERE gpus > 0 AND held_from_ns IS NOT NULL AND held_from_ns < coalesce(held_to_ns, $forever_ns)
)
SELECT
    h.cluster, h.pod_uid, h.namespace, h.name, h.node_key, h.job_key, h.role, h.gpus, h.still_alive,
    CASE WHEN h.job_key = -1 THEN h.cluster || chr(31) || h.pod_uid ELSE CAST(h.job_key AS VARCHAR) END AS run,
    h.held_from_ns,
    h.held_to_ns,
    least(h.held_to_ns, greatest(h.held_from_ns, h.first_start_ns)) AS started_ns,
    least(h.gpus, coalesce(h.mig_slices / 7, 1)) AS device_gpus,
    h.mig_slices IS NULL AND (h.shared_resource OR h.gpus <> floor(h.gpus)) AS fractional,
    -- a name that is taken again means the newer pod
    least(
        h.held_to_ns,
        coalesce(lead(h.held_from_ns) OVER (PARTITION BY h.cluster, h.namespace, h.name ORDER BY h.held_from_ns, h.pod_uid), $forever_ns)
    ) AS name_to_ns,
    n.gpus AS node_gpus,
    n.name AS node_name,
    n.gpu_model AS node_gpu_model,
    greatest(h.held_from_ns, n.valid_from_ns) AS on_node_from_ns,
    least(h.held_to_ns, n.valid_to_ns) AS on_node_to_ns
FROM held AS h
LEFT JOIN core.node_life AS n ON n.node_key = h.node_key AND h.node_key <> -1
