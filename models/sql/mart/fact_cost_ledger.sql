-- A row is one billing period, day, account, scope, bucket, job and reason of the ledger, in published money (N4).
SELECT
    billing_period, date, provider, billing_account, sub_account, cluster_key, region, service, charge_scope, charge_category,
    charge_class, charge_span, pricing_category, commitment_id, bucket, rule, job_key, owner_key, reason, invoice_id,
    list_cost_6 AS list_cost, contracted_cost_6 AS contracted_cost, billed_cost_6 AS billed_cost, effective_cost_6 AS effective_cost,
    currency
FROM ledger_rounded
WHERE list_contains($periods, billing_period)
