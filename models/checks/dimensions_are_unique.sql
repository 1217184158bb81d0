-- Dimensions are unique, also when case and blanks do not count.
SELECT 'dim_job' AS dimension, CAST(job_key AS VARCHAR) AS key, count(*) AS rows FROM mart.dim_job GROUP BY ALL HAVING count(*) > 1
UNION ALL
SELECT 'dim_node' AS dimension, CAST(node_key AS VARCHAR) AS key, count(*) AS rows FROM mart.dim_node GROUP BY ALL HAVING count(*) > 1
UNION ALL
SELECT 'dim_zone' AS dimension, lower(trim(coalesce(provider, '') || '/' || coalesce(region, '') || '/' || zone)) AS key, count(*) AS rows FROM mart.dim_zone GROUP BY ALL HAVING count(*) > 1
UNION ALL
SELECT 'dim_cluster' AS dimension, lower(trim(cluster)) AS key, count(*) AS rows FROM mart.dim_cluster GROUP BY ALL HAVING count(*) > 1
UNION ALL
SELECT 'dim_owner' AS dimension, lower(trim(coalesce(team, '') || '/' || coalesce(cost_center, ''))) AS key, count(*) AS rows FROM mart.dim_owner GROUP BY ALL HAVING count(*) > 1
UNION ALL
SELECT 'dim_date' AS dimension, CAST(date AS VARCHAR) AS key, count(*) AS rows FROM mart.dim_date GROUP BY ALL HAVING count(*) > 1
