-- A row is one transfer fact within one published ledger row, at 12 places, with the ledger row's published totals (N4).
WITH cost AS (
    SELECT
        t.*, line.provider, line.region, line.service, line.charge_scope, line.charge_category, line.charge_class,
        line.charge_span, line.pricing_category, line.commitment_id, line.invoice_id, line.cluster_key AS line_cluster_key,
        CASE WHEN t.job_key <> -1 THEN 'job' ELSE 'unattributed' END AS bucket,
        CASE WHEN t.job_key = -1 THEN t.reason END AS ledger_reason
    FROM core.transfer_cost AS t
    LEFT JOIN core.bill_line AS line USING (delivery_id, object_id, row_number, part)
    WHERE t.date IN (SELECT date FROM fact_day)
),
summed AS (
    SELECT
        * EXCLUDE (delivery_id, object_id, row_number, part, metered_bytes, billed_gb, billed_cost, effective_cost, estimate_ratio, coverage),
        sum(metered_bytes) AS metered_bytes, sum(billed_gb) AS billed_gb,
        CAST(sum(billed_cost) AS DECIMAL(38,12)) AS billed_cost,
        CASE WHEN count(*) = count(effective_cost) THEN CAST(sum(effective_cost) AS DECIMAL(38,12)) END AS effective_cost,
        avg(estimate_ratio) AS estimate_ratio, min(coverage) AS coverage
    FROM cost
    GROUP BY ALL
),
numbered AS (
    SELECT
        row_number() OVER (
            ORDER BY date, hour_utc NULLS FIRST, node_key, job_key, role NULLS FIRST, peer_job_key, peer_role NULLS FIRST,
                peer_name NULLS FIRST, source_zone_key, destination_zone_key, direction NULLS FIRST, basis, policy, reason NULLS FIRST,
                resolved_by, peer_resolved_by, billing_period NULLS FIRST, billing_account NULLS FIRST, sub_account NULLS FIRST,
                charge_category NULLS FIRST, charge_class NULLS FIRST, charge_span NULLS FIRST, pricing_category NULLS FIRST,
                commitment_id NULLS FIRST, invoice_id NULLS FIRST, provider NULLS FIRST, line_cluster_key NULLS FIRST,
                region NULLS FIRST, service NULLS FIRST, currency NULLS FIRST, cluster_key
        ) AS fact_id,
        *
    FROM summed
)
SELECT
    cost.fact_id,
    coalesce(ledger.ledger_row_id, -cost.fact_id) AS ledger_row_id,
    cost.* EXCLUDE (fact_id, provider, region, service, charge_scope, charge_category, charge_class, charge_span, pricing_category,
        commitment_id, invoice_id, bucket, ledger_reason, line_cluster_key),
    CASE WHEN ledger.ledger_row_id IS NULL THEN round(cost.billed_cost, 6) ELSE ledger.billed_cost_6 END AS billed_cost_total,
    CASE WHEN ledger.ledger_row_id IS NULL THEN round(cost.effective_cost, 6) ELSE ledger.effective_cost_6 END AS effective_cost_total
FROM numbered AS cost
LEFT JOIN ledger_rounded AS ledger ON
    ledger.billing_period = cost.billing_period AND ledger.date = cost.date AND ledger.provider = cost.provider
    AND ledger.billing_account = cost.billing_account AND ledger.sub_account IS NOT DISTINCT FROM cost.sub_account
    AND ledger.cluster_key = cost.line_cluster_key AND ledger.region IS NOT DISTINCT FROM cost.region
    AND ledger.service IS NOT DISTINCT FROM cost.service AND ledger.charge_scope = cost.charge_scope
    AND ledger.charge_category = cost.charge_category AND ledger.charge_class IS NOT DISTINCT FROM cost.charge_class
    AND ledger.charge_span = cost.charge_span AND ledger.pricing_category IS NOT DISTINCT FROM cost.pricing_category
    AND ledger.commitment_id IS NOT DISTINCT FROM cost.commitment_id AND ledger.invoice_id IS NOT DISTINCT FROM cost.invoice_id
    AND ledger.bucket = cost.bucket AND ledger.job_key = cost.job_key AND ledger.reason IS NOT DISTINCT FROM cost.ledger_reason
    AND ledger.currency = cost.currency
