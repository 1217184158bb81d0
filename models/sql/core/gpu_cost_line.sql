-- A row is what one bill line (or an estimate, or nothing yet) paid for one GPU state of a node and hour (B6).
WITH bill_line AS (
    SELECT delivery_id, object_id, row_number, part, billing_period, billing_account, sub_account, pricing_category
    FROM core.bill_line
    WHERE charge_scope = 'gpu_compute'
),
paid AS (
    SELECT
        split.date, split.hour_utc, split.cluster, split.node_key, split.gpu_model, split.job_key, split.role, split.state,
        split.cause, split.activity_basis, split.gpu_hours, split.delivery_id, split.object_id, split.row_number, split.part,
        line.billing_period, line.billing_account, line.sub_account, line.pricing_category,
        split.share_billed_part AS billed_cost, split.share_effective_part AS effective_cost, split.currency, split.cost_basis
    FROM gpu_split AS split
    JOIN bill_line AS line ON line.delivery_id = split.delivery_id AND line.object_id = split.object_id
        AND line.row_number = split.row_number AND line.part = split.part
),
-- the last hour that the bill has charged usage for: of the deliveries that charge the cluster, else of its provider
delivery_horizon AS (
    SELECT delivery_id, any_value(provider) AS provider, max(charge_period_end) AS horizon
    FROM core.bill_line
    WHERE charge_span <> 'period' AND charge_category = 'Usage'
    GROUP BY delivery_id
),
cluster_horizon AS (
    SELECT charged.cluster_key, max(horizon) AS horizon
    FROM (SELECT DISTINCT cluster_key, delivery_id FROM core.bill_line WHERE cluster_key <> -1) AS charged
    JOIN delivery_horizon USING (delivery_id)
    GROUP BY ALL
),
provider_horizon AS (
    SELECT provider, max(horizon) AS horizon FROM delivery_horizon GROUP BY ALL
),
horizon AS (
    SELECT cluster.cluster, cluster.provider, coalesce(c.horizon, p.horizon) AS horizon
    FROM staging.cluster AS cluster
    LEFT JOIN cluster_horizon AS c ON c.cluster_key = stable_key(cluster.cluster)
    LEFT JOIN provider_horizon AS p ON p.provider = cluster.provider
),
unpaid AS (
    SELECT
        state.date, state.hour_utc, state.cluster, state.node_key, state.gpu_model, state.job_key, state.role, state.state,
        state.cause, state.activity_basis, state.gpu_hours,
        CASE
            WHEN state.hour_utc < horizon.horizon THEN 'not_billed'
            WHEN price.price_per_hour IS NOT NULL AND node.gpus > 0 THEN 'estimated'
            ELSE 'unpriced'
        END AS cost_basis,
        price.price_per_hour / nullif(node.gpus, 0) AS price_per_gpu_hour, price.currency, price.pricing_category
    FROM core.gpu_state_hourly AS state
    LEFT JOIN horizon ON horizon.cluster = state.cluster
    LEFT JOIN core.node_life AS node ON node.node_key = state.node_key
    LEFT JOIN gpu_price AS price ON price.instance_type = node.instance_type AND price.provider = horizon.provider
        AND price.region IS NOT DISTINCT FROM node.region AND price.lifecycle = node.lifecycle
    WHERE state.date >= $from_date AND state.date < $to_date AND state.gpu_hours > 0
      AND NOT EXISTS (SELECT 1 FROM paid WHERE paid.node_key = state.node_key AND paid.hour_utc = state.hour_utc)
)
SELECT * FROM paid
UNION ALL
SELECT
    date, hour_utc, cluster, node_key, gpu_model, job_key, role, state, cause, activity_basis, gpu_hours,
    NULL, NULL, NULL, NULL, NULL, NULL, NULL,
    CASE WHEN cost_basis = 'estimated' THEN pricing_category END,
    NULL,
    CASE WHEN cost_basis = 'estimated' THEN CAST(gpu_hours * price_per_gpu_hour AS DECIMAL(38,12)) END,
    CASE WHEN cost_basis = 'estimated' THEN currency END,
    cost_basis
FROM unpaid
