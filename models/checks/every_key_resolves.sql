-- Every key of a published table resolves in its dimension (N2).
SELECT 'fact_gpu_hours.job_key' AS reference, job_key AS key FROM mart.fact_gpu_hours WHERE job_key NOT IN (SELECT job_key FROM mart.dim_job)
UNION ALL
SELECT 'fact_gpu_hours.node_key' AS reference, node_key AS key FROM mart.fact_gpu_hours WHERE node_key NOT IN (SELECT node_key FROM mart.dim_node)
UNION ALL
SELECT 'fact_gpu_hours.zone_key' AS reference, zone_key AS key FROM mart.fact_gpu_hours WHERE zone_key NOT IN (SELECT zone_key FROM mart.dim_zone)
UNION ALL
SELECT 'fact_gpu_hours.cluster_key' AS reference, cluster_key AS key FROM mart.fact_gpu_hours WHERE cluster_key NOT IN (SELECT cluster_key FROM mart.dim_cluster)
UNION ALL
SELECT 'fact_transfer_cost.job_key' AS reference, job_key AS key FROM mart.fact_transfer_cost WHERE job_key NOT IN (SELECT job_key FROM mart.dim_job)
UNION ALL
SELECT 'fact_transfer_cost.peer_job_key' AS reference, peer_job_key AS key FROM mart.fact_transfer_cost WHERE peer_job_key NOT IN (SELECT job_key FROM mart.dim_job)
UNION ALL
SELECT 'fact_transfer_cost.node_key' AS reference, node_key AS key FROM mart.fact_transfer_cost WHERE node_key NOT IN (SELECT node_key FROM mart.dim_node)
UNION ALL
SELECT 'fact_transfer_cost.source_zone_key' AS reference, source_zone_key AS key FROM mart.fact_transfer_cost WHERE source_zone_key NOT IN (SELECT zone_key FROM mart.dim_zone)
UNION ALL
SELECT 'fact_transfer_cost.destination_zone_key' AS reference, destination_zone_key AS key FROM mart.fact_transfer_cost WHERE destination_zone_key NOT IN (SELECT zone_key FROM mart.dim_zone)
UNION ALL
SELECT 'fact_zone_traffic.job_key' AS reference, job_key AS key FROM mart.fact_zone_traffic WHERE job_key NOT IN (SELECT job_key FROM mart.dim_job)
UNION ALL
SELECT 'fact_zone_traffic.peer_job_key' AS reference, peer_job_key AS key FROM mart.fact_zone_traffic WHERE peer_job_key NOT IN (SELECT job_key FROM mart.dim_job)
UNION ALL
SELECT 'fact_zone_traffic.source_zone_key' AS reference, source_zone_key AS key FROM mart.fact_zone_traffic WHERE source_zone_key NOT IN (SELECT zone_key FROM mart.dim_zone)
UNION ALL
SELECT 'fact_zone_traffic.destination_zone_key' AS reference, destination_zone_key AS key FROM mart.fact_zone_traffic WHERE destination_zone_key NOT IN (SELECT zone_key FROM mart.dim_zone)
UNION ALL
SELECT 'fact_cost_ledger.job_key' AS reference, job_key AS key FROM mart.fact_cost_ledger WHERE job_key NOT IN (SELECT job_key FROM mart.dim_job)
UNION ALL
SELECT 'fact_cost_ledger.cluster_key' AS reference, cluster_key AS key FROM mart.fact_cost_ledger WHERE cluster_key NOT IN (SELECT cluster_key FROM mart.dim_cluster)
UNION ALL
SELECT 'fact_cost_ledger.owner_key' AS reference, owner_key AS key FROM mart.fact_cost_ledger WHERE owner_key NOT IN (SELECT owner_key FROM mart.dim_owner)
UNION ALL
SELECT 'fact_finding.job_key' AS reference, job_key AS key FROM mart.fact_finding WHERE job_key NOT IN (SELECT job_key FROM mart.dim_job)
UNION ALL
SELECT 'dim_node.zone_key' AS reference, zone_key AS key FROM mart.dim_node WHERE zone_key NOT IN (SELECT zone_key FROM mart.dim_zone)
UNION ALL
SELECT 'dim_job.owner_key' AS reference, owner_key AS key FROM mart.dim_job WHERE owner_key NOT IN (SELECT owner_key FROM mart.dim_owner)
