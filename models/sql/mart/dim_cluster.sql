-- A row is one configured cluster; -1 is what belongs to none.
SELECT stable_key(cluster) AS cluster_key, cluster, provider, region FROM staging.cluster
UNION ALL
SELECT -1, 'none', NULL, NULL
