-- A row is one billing period, account and currency: from billed to effective cost (B7).
-- Billed less purchases, plus the amortisation that was used and that was not, is effective.
WITH line AS (
    SELECT
        billing_period, billing_account, currency, charge_scope, billed_cost, coalesce(effective_cost, 0) AS effective_cost
    FROM core.ledger_line
),
summed AS (
    SELECT
        billing_period, billing_account, currency,
        sum(billed_cost) AS billed_cost,
        sum(CASE WHEN charge_scope = 'commitment_purchase' THEN billed_cost - effective_cost ELSE 0 END) AS purchases,
        sum(CASE WHEN charge_scope NOT IN ('commitment_purchase', 'commitment_unused') THEN effective_cost - billed_cost ELSE 0 END)
            AS used_amortisation,
        sum(CASE WHEN charge_scope = 'commitment_unused' THEN effective_cost - billed_cost ELSE 0 END) AS unused_amortisation
    FROM line
    GROUP BY ALL
),
rounded AS (
    SELECT
        billing_period, billing_account, currency,
        round(billed_cost, 6) AS billed_cost, round(purchases, 6) AS purchases, round(used_amortisation, 6) AS used_amortisation,
        round(unused_amortisation, 6) AS unused_amortisation
    FROM summed
)
SELECT *, billed_cost - purchases + used_amortisation + unused_amortisation AS effective_cost FROM rounded
