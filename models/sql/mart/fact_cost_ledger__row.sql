-- A row is one published ledger row at 12 places: the ledger's lines summed to the grain that readers get.
-- Rows of other periods are here for their facts: what is rounded together shares period and day.
SELECT
    row_number() OVER (
        ORDER BY billing_period, date, provider, billing_account, sub_account NULLS FIRST, cluster_key, region NULLS FIRST,
            service NULLS FIRST, charge_scope, charge_category, charge_class NULLS FIRST, charge_span, pricing_category NULLS FIRST,
            commitment_id NULLS FIRST, bucket, rule NULLS FIRST, job_key, owner_key, reason NULLS FIRST, invoice_id NULLS FIRST, currency
    ) AS ledger_row_id,
    *
FROM (
    SELECT
        billing_period, date, provider, billing_account, sub_account, cluster_key, region, service, charge_scope, charge_category,
        charge_class, charge_span, pricing_category, commitment_id, bucket, rule, job_key, owner_key, reason, invoice_id, currency,
        CAST(sum(list_cost) AS DECIMAL(38,12)) AS list_cost,
        CAST(sum(contracted_cost) AS DECIMAL(38,12)) AS contracted_cost,
        CAST(sum(billed_cost) AS DECIMAL(38,12)) AS billed_cost,
        -- one unknown amount makes the sum unknown, never smaller (N3)
        CASE WHEN count(*) = count(effective_cost) THEN CAST(sum(effective_cost) AS DECIMAL(38,12)) END AS effective_cost
    FROM core.ledger_line
    WHERE list_contains($periods, billing_period) OR date IN (SELECT date FROM fact_day)
    GROUP BY ALL
)
