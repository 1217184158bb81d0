-- Each day's published total of an account, currency and scope is the ledger's, rounded once, and the ledger's is the reconciled one (N4, N6).
WITH ledger AS (
    SELECT billing_period, date, provider, billing_account, currency, charge_scope,
        sum(billed_cost) AS billed, sum(coalesce(effective_cost, 0)) AS effective
    FROM core.ledger_line
    GROUP BY ALL
),
published AS (
    SELECT billing_period, date, provider, billing_account, currency, charge_scope,
        sum(billed_cost) AS billed, sum(coalesce(effective_cost, 0)) AS effective
    FROM mart.fact_cost_ledger
    GROUP BY ALL
),
reconciled AS (
    SELECT billing_period, billing_account, currency, measure, sum(ledger_total) AS total
    FROM mart.fact_reconciliation
    GROUP BY ALL
),
summed AS (
    SELECT billing_period, billing_account, currency, 'billed' AS measure, sum(billed) AS total FROM ledger GROUP BY ALL
    UNION ALL
    SELECT billing_period, billing_account, currency, 'effective' AS measure, sum(effective) AS total FROM ledger GROUP BY ALL
)
SELECT 'published' AS what, coalesce(ledger.billing_period, published.billing_period) AS billing_period,
    CAST(coalesce(ledger.date, published.date) AS VARCHAR) || ' ' || coalesce(ledger.charge_scope, published.charge_scope) AS part,
    coalesce(ledger.billing_account, published.billing_account) AS billing_account,
    coalesce(ledger.currency, published.currency) AS currency,
    ledger.billed AS ledger_billed, published.billed AS other_billed,
    ledger.effective AS ledger_effective, published.effective AS other_effective
FROM ledger
FULL JOIN published USING (billing_period, date, provider, billing_account, currency, charge_scope)
WHERE ledger.billed IS NULL OR published.billed IS NULL
    OR abs(ledger.billed - published.billed) * 2 > CAST('0.000001' AS DECIMAL(7, 6))
    OR abs(ledger.effective - published.effective) * 2 > CAST('0.000001' AS DECIMAL(7, 6))
UNION ALL
SELECT 'reconciled' AS what, coalesce(summed.billing_period, reconciled.billing_period) AS billing_period,
    coalesce(summed.measure, reconciled.measure) AS part,
    coalesce(summed.billing_account, reconciled.billing_account) AS billing_account,
    coalesce(summed.currency, reconciled.currency) AS currency,
    summed.total AS ledger_billed, reconciled.total AS other_billed, NULL AS ledger_effective, NULL AS other_effective
FROM summed
FULL JOIN reconciled USING (billing_period, billing_account, currency, measure)
WHERE coalesce(summed.total, 0) <> coalesce(reconciled.total, 0)
