-- A row is one part of one bill line and the bucket, job and reason that got a share of it; what nothing claimed is a row too (N6).
SELECT
    billing_period, date, delivery_id, object_id, row_number, part, provider, billing_account, sub_account, cluster_key, region,
    service, charge_scope, charge_category, charge_class, charge_span, pricing_category, commitment_id, invoice_id, bucket,
    CAST(NULL AS VARCHAR) AS rule, job_key, -1 AS owner_key, nullif(reason, '') AS reason,
    CASE
        WHEN coalesce(effective_cost, 0) <> 0 THEN CAST(part_effective AS DOUBLE) / CAST(effective_cost AS DOUBLE)
        WHEN billed_cost <> 0 THEN CAST(part_billed AS DOUBLE) / CAST(billed_cost AS DOUBLE)
    END AS share,
    CASE WHEN has_list THEN list_cost_part END AS list_cost,
    CASE WHEN has_contracted THEN contracted_cost_part END AS contracted_cost,
    part_billed AS billed_cost,
    part_effective AS effective_cost,
    currency
FROM ledger_split
