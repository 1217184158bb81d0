-- The ledger sums to the bill as it was received, per period, account, currency and measure (N6).
SELECT * FROM mart.fact_reconciliation WHERE difference <> 0
