-- GPU states of a node and hour sum to its GPUs times the hour's life or its billed instance-hours (G1).
WITH state AS (
    SELECT node_key, hour_utc, sum(gpu_hours) AS gpu_hours FROM core.gpu_state_hourly GROUP BY ALL
),
billed AS (
    SELECT node_key, hour_utc, sum(instance_hours) AS instance_hours FROM core.node_bill_hourly GROUP BY ALL
)
SELECT state.node_key, state.hour_utc, state.gpu_hours, node.gpus, billed.instance_hours
FROM state
JOIN core.node_life AS node USING (node_key)
LEFT JOIN billed ON billed.node_key = state.node_key AND billed.hour_utc = state.hour_utc
WHERE node.gpus > 0 AND state.gpu_hours > node.gpus * greatest(1, coalesce(billed.instance_hours, 1)) + 1e-6
