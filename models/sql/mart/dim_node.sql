-- A row is one life of one node; -1 is no node.
SELECT
    node_key, cluster, name, instance_id, instance_type, lifecycle, node_pool, -1 AS owner_key, zone_key, gpu_model,
    CAST(round(gpus) AS BIGINT) AS gpus,
    ns_to_ts(valid_from_ns) AS first_seen_utc, ns_to_ts(valid_to_ns) AS last_seen_utc
FROM core.node_life
UNION ALL
SELECT -1, NULL, 'none', NULL, NULL, 'unknown', NULL, -1, -1, NULL, NULL, NULL, NULL
