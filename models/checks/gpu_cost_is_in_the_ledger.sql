-- GPU cost that was billed sums to the ledger's GPU lines less those of no node and of days not run, per period, account and currency.
WITH facts AS (
    SELECT billing_period, billing_account, currency, sum(billed_cost) AS billed, sum(effective_cost) AS effective
    FROM mart.fact_gpu_hours
    WHERE cost_basis IN ('billed', 'pooled')
    GROUP BY ALL
),
ledger AS (
    SELECT billing_period, billing_account, currency, sum(billed_cost) AS billed, sum(effective_cost) AS effective
    FROM mart.fact_cost_ledger
    WHERE charge_scope = 'gpu_compute' AND coalesce(reason, '') NOT IN ('no_node', 'not_run', 'no_gpu_state', 'rejected')
    GROUP BY ALL
)
SELECT coalesce(f.billing_period, l.billing_period) AS billing_period, f.billed AS facts_billed, l.billed AS ledger_billed,
    f.effective AS facts_effective, l.effective AS ledger_effective
FROM facts AS f
FULL JOIN ledger AS l USING (billing_period, billing_account, currency)
WHERE coalesce(f.billed, 0) <> coalesce(l.billed, 0) OR coalesce(f.effective, 0) <> coalesce(l.effective, 0)
