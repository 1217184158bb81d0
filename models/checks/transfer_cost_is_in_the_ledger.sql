-- Transfer cost sums to the inter-AZ lines of the ledger that were processed, per period, account and currency.
WITH facts AS (
    SELECT billing_period, billing_account, currency, sum(billed_cost) AS billed, sum(effective_cost) AS effective
    FROM mart.fact_transfer_cost
    WHERE billing_period IS NOT NULL
    GROUP BY ALL
),
ledger AS (
    SELECT billing_period, billing_account, currency, sum(billed_cost) AS billed, sum(effective_cost) AS effective
    FROM mart.fact_cost_ledger
    WHERE charge_scope = 'inter_az_transfer' AND coalesce(reason, '') NOT IN ('not_run', 'rejected')
    GROUP BY ALL
)
SELECT coalesce(f.billing_period, l.billing_period) AS billing_period, f.billed AS facts_billed, l.billed AS ledger_billed,
    f.effective AS facts_effective, l.effective AS ledger_effective
FROM facts AS f
FULL JOIN ledger AS l USING (billing_period, billing_account, currency)
WHERE coalesce(f.billed, 0) <> coalesce(l.billed, 0) OR coalesce(f.effective, 0) <> coalesce(l.effective, 0)
