-- A row is one billing period, account, currency and measure: the bill as received beside the ledger (N6).
-- `bill_total` is the sum of the landed rows at 18 places, cut to 12; `rounding` is what the ledger's own cuts dropped.
WITH staged AS (
    SELECT billing_period, provider, billing_account, currency, measure, total FROM independent_bill_total
),
ledger AS (
    SELECT billing_period, provider, billing_account, currency, 'billed' AS measure, sum(billed_cost) AS total, 0 AS unknown_lines
    FROM core.ledger_line GROUP BY ALL
    UNION ALL
    SELECT billing_period, provider, billing_account, currency, 'effective', sum(effective_cost),
        count(DISTINCT (delivery_id, object_id, row_number, part)) FILTER (WHERE effective_cost IS NULL)
    FROM core.ledger_line GROUP BY ALL
),
cut AS (
    -- what rounding each line to 12 places changed, computed from the lines in force
    SELECT billing_period, provider, billing_account, currency, measure, rounding FROM ledger_cut
)
SELECT
    coalesce(s.billing_period, l.billing_period) AS billing_period,
    coalesce(s.provider, l.provider) AS provider,
    coalesce(s.billing_account, l.billing_account) AS billing_account,
    coalesce(s.currency, l.currency) AS currency,
    coalesce(s.measure, l.measure) AS measure,
    CAST(coalesce(s.total, 0) AS DECIMAL(38,12)) AS bill_total,
    CAST(coalesce(l.total, 0) AS DECIMAL(38,12)) AS ledger_total,
    CAST(coalesce(s.total, 0) AS DECIMAL(38,12)) - CAST(coalesce(l.total, 0) AS DECIMAL(38,12)) - coalesce(c.rounding, 0) AS difference,
    coalesce(c.rounding, 0) AS rounding,
    coalesce(l.unknown_lines, 0) AS unknown_lines
FROM staged AS s
FULL JOIN ledger AS l ON l.billing_period = s.billing_period AND l.provider = s.provider AND l.billing_account = s.billing_account
    AND l.currency = s.currency AND l.measure = s.measure
LEFT JOIN cut AS c ON c.billing_period = coalesce(s.billing_period, l.billing_period) AND c.provider = coalesce(s.provider, l.provider)
    AND c.billing_account = coalesce(s.billing_account, l.billing_account) AND c.currency = coalesce(s.currency, l.currency)
    AND c.measure = coalesce(s.measure, l.measure)
