-- A row is one part of one bill line in force, with exactly one charge scope (B2); parts of a line sum to its cost.
WITH node AS (
    SELECT lower(instance_id) AS instance, cluster, node_key, gpus, valid_from_ns, valid_to_ns
    FROM core.node_life
    WHERE instance_id IS NOT NULL
),
machine AS (
    -- an instance is named by its id, or (FOCUS) by an ARN that ends in it
    SELECT
        delivery_id, object_id, row_number, charge_period_start, charge_period_end,
        coalesce(nullif(regexp_extract(lower(resource_id), '^arn:.*:instance/(i-[0-9a-z]+)$', 1), ''), lower(resource_id)) AS instance
    FROM bill_in_force
    WHERE resource_id IS NOT NULL
),
named AS (
    -- the life of the instance that the hour touches, else its only or latest life
    SELECT
        line.delivery_id, line.object_id, line.row_number, node.cluster, node.node_key, node.gpus,
        row_number() OVER (
            PARTITION BY line.delivery_id, line.object_id, line.row_number
            ORDER BY
                (node.valid_from_ns < ts_to_ns(line.charge_period_end) AND node.valid_to_ns > ts_to_ns(line.charge_period_start)) DESC,
                node.valid_to_ns DESC, node.node_key
        ) AS place
    FROM machine AS line
    JOIN node ON node.instance = line.instance
),
account AS (
    SELECT cluster, unnest(CAST(json_extract_string(accounts, '$[*]') AS VARCHAR[])) AS sub_account FROM staging.cluster
),
dedicated AS (
    SELECT sub_account, min(cluster) AS cluster FROM account GROUP BY sub_account HAVING count(*) = 1
),
tag AS (
    SELECT delivery_id, object_id, row_number, tags, unnest(json_keys(tags)) AS key
    FROM bill_in_force
    WHERE tags LIKE '%cluster%'
),
cluster_tag AS (
    -- the cluster that a tag names: EKS and GKE by its value, the Kubernetes convention by its key (CUR 2.0 rewrites keys)
    SELECT
        delivery_id, object_id, row_number,
        CASE key
            WHEN 'aws:eks:cluster-name' THEN json_extract_string(tags, '$."aws:eks:cluster-name"')
            WHEN 'aws_eks_cluster_name' THEN json_extract_string(tags, '$."aws_eks_cluster_name"')
            WHEN 'eks:cluster-name' THEN json_extract_string(tags, '$."eks:cluster-name"')
            WHEN 'user_cluster' THEN json_extract_string(tags, '$."user_cluster"')
            WHEN 'goog-k8s-cluster-name' THEN json_extract_string(tags, '$."goog-k8s-cluster-name"')
        END AS by_value,
        nullif(regexp_extract(key, '^(?:user:)?kubernetes\.io/cluster/(.+)$', 1), '') AS by_key,
        nullif(regexp_extract(key, '^user_kubernetes_io_cluster_(.+)$', 1), '') AS by_rewritten_key
    FROM tag
),
tagged AS (
    -- tags that name two clusters say nothing
    SELECT t.delivery_id, t.object_id, t.row_number, min(c.cluster) AS cluster
    FROM cluster_tag AS t
    JOIN staging.cluster AS c
      ON c.cluster IN (t.by_value, t.by_key) OR regexp_replace(lower(c.cluster), '[^a-z0-9]+', '_', 'g') = t.by_rewritten_key
    GROUP BY ALL
    HAVING count(DISTINCT c.cluster) = 1
),
placed AS (
    SELECT
        line.*, scope.charge_scope AS kind_scope, scope.scope_certain, scope.direction,
        coalesce(named.node_key, -1) AS node_key,
        CASE
            WHEN coalesce(named.cluster, tagged.cluster, dedicated.cluster) IS NULL THEN -1
            ELSE stable_key(coalesce(named.cluster, tagged.cluster, dedicated.cluster))
        END AS cluster_key,
        named.gpus,
        date_diff('second', line.charge_period_start, line.charge_period_end) AS seconds
    FROM bill_in_force AS line
    JOIN bill_scope AS scope ON
        scope.provider = line.provider
        AND scope.x_usage_type IS NOT DISTINCT FROM line.x_usage_type
        AND scope.x_operation IS NOT DISTINCT FROM line.x_operation
        AND scope.x_line_item_type IS NOT DISTINCT FROM line.x_line_item_type
        AND scope.charge_category = line.charge_category
        AND scope.service_name IS NOT DISTINCT FROM line.service_name
        AND scope.charge_description IS NOT DISTINCT FROM line.charge_description
        AND scope.x_instance_type IS NOT DISTINCT FROM line.x_instance_type
        AND scope.committed = (coalesce(line.commitment_discount_id, '') <> '')
        AND scope.commitment_discount_status IS NOT DISTINCT FROM line.commitment_discount_status
        AND scope.capacity_reservation_status IS NOT DISTINCT FROM line.capacity_reservation_status
    LEFT JOIN named ON named.place = 1 AND named.delivery_id = line.delivery_id AND named.object_id = line.object_id
        AND named.row_number = line.row_number
    LEFT JOIN tagged ON tagged.delivery_id = line.delivery_id AND tagged.object_id = line.object_id
        AND tagged.row_number = line.row_number
    LEFT JOIN dedicated ON dedicated.sub_account = line.sub_account_id
),
readable AS (
    SELECT
        *,
        coalesce(x_source_changes LIKE 'rejected: %', false) AS rejected,
        CASE
            WHEN kind_scope IN ('gpu_compute', 'other_compute') AND gpus IS NOT NULL THEN
                CASE WHEN gpus > 0 THEN 'gpu_compute' ELSE 'other_compute' END
            ELSE kind_scope
        END AS readable_scope
    FROM placed
),
scoped AS (
    SELECT *, CASE WHEN rejected THEN 'other' ELSE readable_scope END AS charge_scope FROM readable
),
part AS (
    -- a recurring fee: what was charged is a purchase, effective 0; what was not used is its own part, billed 0
    SELECT *, 1 AS part, charge_scope AS part_scope, billed_cost AS part_billed,
        CASE WHEN charge_scope = 'commitment_purchase' AND x_line_item_type IN ('SavingsPlanRecurringFee', 'RIFee')
             THEN CAST(0 AS DECIMAL(38,18)) ELSE effective_cost END AS part_effective,
        list_cost AS part_list, contracted_cost AS part_contracted
    FROM scoped
    UNION ALL
    SELECT *, 2, 'commitment_unused', CAST(0 AS DECIMAL(38,18)), effective_cost, CAST(0 AS DECIMAL(38,18)), CAST(0 AS DECIMAL(38,18))
    FROM scoped
    WHERE charge_scope = 'commitment_purchase' AND x_line_item_type IN ('SavingsPlanRecurringFee', 'RIFee')
)
SELECT
    delivery_id, object_id, row_number, part, billing_period,
    CAST(charge_period_start AS DATE) AS date,
    CASE WHEN seconds <= 3600 THEN date_trunc('hour', charge_period_start) END AS hour_utc,
    CASE WHEN seconds <= 3600 THEN 'hour' WHEN seconds <= 86400 THEN 'day' ELSE 'period' END AS charge_span,
    charge_period_start, charge_period_end, provider,
    billing_account_id AS billing_account, sub_account_id AS sub_account,
    cluster_key,
    CASE WHEN part = 1 THEN node_key ELSE -1 END AS node_key,
    region_id AS region, availability_zone, service_name AS service, resource_id,
    part_scope AS charge_scope, scope_certain,
    direction, charge_category, charge_class, pricing_category,
    commitment_discount_id AS commitment_id,
    x_instance_type AS instance_type, x_usage_type AS usage_type, x_operation AS operation, charge_description AS description,
    invoice_id,
    -- discounts, credits and corrections of cost add no quantity (B3)
    CASE WHEN part = 1 AND charge_category = 'Usage' THEN coalesce(consumed_quantity, pricing_quantity) END AS quantity,
    coalesce(consumed_unit, pricing_unit) AS unit,
    part_list AS list_cost, part_contracted AS contracted_cost,
    part_billed AS billed_cost, part_effective AS effective_cost,
    rejected,
    billing_currency AS currency
FROM part
