-- A row is one billing period, account and currency: from billed to effective cost (B7).
-- Billed less purchases (and their refunds), plus the amortisation that was used and that was not, is effective.
-- It is summed from the published ledger, so that the two agree; what has no effective cost is left out on both sides.
WITH row AS (
    SELECT billing_period, billing_account, currency, charge_scope, billed_cost,
        CASE WHEN effective_cost IS NULL THEN -billed_cost ELSE effective_cost - billed_cost END AS change
    FROM mart.fact_cost_ledger
)
SELECT
    billing_period, billing_account, currency,
    sum(billed_cost) AS billed_cost,
    sum(CASE WHEN charge_scope IN ('commitment_purchase', 'refund') THEN -change ELSE 0 END) AS purchases,
    sum(CASE WHEN charge_scope NOT IN ('commitment_purchase', 'refund', 'commitment_unused') THEN change ELSE 0 END) AS used_amortisation,
    sum(CASE WHEN charge_scope = 'commitment_unused' THEN change ELSE 0 END) AS unused_amortisation,
    sum(billed_cost + change) AS effective_cost
FROM row
GROUP BY ALL
