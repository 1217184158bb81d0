-- A row is one day and account of the bill: whether its numbers may still change (R1).
WITH horizon AS (
    SELECT provider, billing_account, sub_account, max(charge_period_end) AS bill_horizon_utc
    FROM core.bill_line
    WHERE charge_span = 'hour' OR charge_span = 'day'
    GROUP BY ALL
),
day AS (
    SELECT
        line.date, line.provider, line.billing_account, line.sub_account,
        count(DISTINCT line.hour_utc) AS hours,
        bool_and(line.invoice_id IS NOT NULL) AS invoiced,
        max(delivery.submitted_utc) AS delivered_utc,
        arg_max(line.delivery_id, delivery.submitted_utc) AS delivery_id
    FROM core.bill_line AS line
    JOIN staging.bill_delivery AS delivery USING (delivery_id)
    WHERE line.charge_span <> 'period'
    GROUP BY ALL
)
SELECT
    day.date, day.provider, day.billing_account, day.sub_account,
    CASE
        WHEN day.invoiced THEN 'invoiced'
        WHEN horizon.bill_horizon_utc >= CAST(day.date + INTERVAL 1 DAY AS TIMESTAMP)
             AND day.delivered_utc >= CAST(day.date + INTERVAL 1 DAY AS TIMESTAMP) + to_hours($settle_hours) THEN 'settled'
        ELSE 'open'
    END AS status,
    horizon.bill_horizon_utc, day.delivery_id, day.delivered_utc
FROM day
JOIN horizon ON horizon.provider = day.provider AND horizon.billing_account = day.billing_account
    AND horizon.sub_account IS NOT DISTINCT FROM day.sub_account
