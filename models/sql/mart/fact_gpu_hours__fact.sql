-- A row is one GPU fact within one published ledger row, at 12 places, with the ledger row's published totals (N4).
WITH cost AS (
    SELECT
        gpu.date, gpu.hour_utc, gpu.cluster, gpu.node_key, gpu.job_key, gpu.gpu_model, gpu.state, gpu.cause, gpu.activity_basis,
        gpu.gpu_hours, gpu.billed_cost, gpu.effective_cost, gpu.cost_basis, gpu.currency, gpu.billing_period, gpu.billing_account,
        gpu.sub_account, gpu.pricing_category, line.provider, line.cluster_key, line.region, line.service, line.charge_scope,
        line.charge_category, line.charge_class, line.charge_span, line.commitment_id, line.invoice_id,
        CASE WHEN gpu.job_key <> -1 THEN 'job' ELSE 'unattributed' END AS bucket,
        CASE
            WHEN gpu.job_key <> -1 THEN NULL
            WHEN gpu.state = 'unmeasured' THEN coalesce(gpu.cause, 'no_placement')
            ELSE 'unallocated'
        END AS reason
    FROM core.gpu_cost_line AS gpu
    LEFT JOIN core.bill_line AS line USING (delivery_id, object_id, row_number, part)
    WHERE gpu.date IN (SELECT date FROM fact_day)
),
summed AS (
    SELECT
        * EXCLUDE (gpu_hours, billed_cost, effective_cost),
        sum(gpu_hours) AS gpu_hours,
        CAST(sum(billed_cost) AS DECIMAL(38,12)) AS billed_cost,
        CASE WHEN count(*) = count(effective_cost) THEN CAST(sum(effective_cost) AS DECIMAL(38,12)) END AS effective_cost
    FROM cost
    GROUP BY ALL
),
numbered AS (
    SELECT
        row_number() OVER (
            ORDER BY hour_utc, node_key, job_key, state, cause NULLS FIRST, gpu_model NULLS FIRST, activity_basis, cost_basis,
                billing_period NULLS FIRST, billing_account NULLS FIRST, sub_account NULLS FIRST, pricing_category NULLS FIRST,
                charge_category NULLS FIRST, charge_class NULLS FIRST, charge_span NULLS FIRST, commitment_id NULLS FIRST,
                invoice_id NULLS FIRST, provider NULLS FIRST, cluster_key NULLS FIRST, region NULLS FIRST, service NULLS FIRST,
                currency NULLS FIRST
        ) AS fact_id,
        *
    FROM summed
)
SELECT
    cost.fact_id,
    -- what no bill line paid for has no ledger row: each is rounded alone
    coalesce(ledger.ledger_row_id, -cost.fact_id) AS ledger_row_id,
    cost.* EXCLUDE (fact_id, provider, region, service, charge_scope, charge_category, charge_class, charge_span, commitment_id, invoice_id,
        bucket, reason, cluster_key),
    CASE WHEN ledger.ledger_row_id IS NULL THEN round(cost.billed_cost, 6) ELSE ledger.billed_cost_6 END AS billed_cost_total,
    CASE WHEN ledger.ledger_row_id IS NULL THEN round(cost.effective_cost, 6) ELSE ledger.effective_cost_6 END AS effective_cost_total
FROM numbered AS cost
LEFT JOIN ledger_rounded AS ledger ON
    ledger.billing_period = cost.billing_period AND ledger.date = cost.date AND ledger.provider = cost.provider
    AND ledger.billing_account = cost.billing_account AND ledger.sub_account IS NOT DISTINCT FROM cost.sub_account
    AND ledger.cluster_key = cost.cluster_key AND ledger.region IS NOT DISTINCT FROM cost.region
    AND ledger.service IS NOT DISTINCT FROM cost.service AND ledger.charge_scope = cost.charge_scope
    AND ledger.charge_category = cost.charge_category AND ledger.charge_class IS NOT DISTINCT FROM cost.charge_class
    AND ledger.charge_span = cost.charge_span AND ledger.pricing_category IS NOT DISTINCT FROM cost.pricing_category
    AND ledger.commitment_id IS NOT DISTINCT FROM cost.commitment_id AND ledger.invoice_id IS NOT DISTINCT FROM cost.invoice_id
    AND ledger.bucket = cost.bucket AND ledger.job_key = cost.job_key AND ledger.reason IS NOT DISTINCT FROM cost.reason
    AND ledger.currency = cost.currency
