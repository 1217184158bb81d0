-- A row is one staged line that no later delivery of its export, dataset and period replaces (B4).
-- A CUR period is covered whole; other deliveries cover the days that they hold.
WITH delivery AS (
    SELECT
        * REPLACE (split_part(dataset, '-', 1) AS dataset), -- the version of a format is no part of what is replaced
        row_number() OVER (
            PARTITION BY export_scope, split_part(dataset, '-', 1), provider, billing_period ORDER BY submitted_utc DESC, delivery_id DESC
        ) AS newest
    FROM staging.bill_delivery
    WHERE list_contains($periods, billing_period)
),
covered AS (
    SELECT
        d.export_scope, d.dataset, d.provider, d.billing_period, d.newest,
        CAST(line.charge_period_start AS DATE) AS day
    FROM delivery AS d
    JOIN staging.bill_line AS line ON line.delivery_id = d.delivery_id
    WHERE d.dataset NOT LIKE 'cur%'
    GROUP BY ALL
)
SELECT line.*, d.export_scope, d.dataset
FROM staging.bill_line AS line
JOIN delivery AS d ON d.delivery_id = line.delivery_id
WHERE CASE
    WHEN d.dataset LIKE 'cur%' THEN d.newest = 1
    ELSE NOT EXISTS (
        SELECT 1 FROM covered AS later
        WHERE later.export_scope = d.export_scope AND later.dataset = d.dataset AND later.provider = d.provider
          AND later.billing_period = d.billing_period AND later.newest < d.newest
          AND later.day = CAST(line.charge_period_start AS DATE)
    )
END
