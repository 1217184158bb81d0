-- The ledger sums to the bill as it was received, per period, account, currency and measure (N6).
-- What cutting lines to 12 places changed is bounded by half a unit of the last place a line, so that it can hide nothing.
WITH cut AS (
    SELECT billing_period, provider, billing_account, currency, count(*) AS parts FROM core.bill_line GROUP BY ALL
)
SELECT r.*
FROM mart.fact_reconciliation AS r
LEFT JOIN cut USING (billing_period, provider, billing_account, currency)
WHERE r.difference <> 0 OR abs(r.rounding) * 2 > CAST('0.000000000001' AS DECIMAL(12,12)) * (coalesce(cut.parts, 0) + 1)
