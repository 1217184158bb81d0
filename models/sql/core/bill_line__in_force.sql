-- A row is one staged line that no later delivery of its export, dataset type and period replaces (B4).
-- A CUR delivery covers its whole period, one that covers a range every day of it, another the days that it holds.
WITH delivery AS (
    SELECT
        -- the version of a format is no part of what is replaced
        * REPLACE (split_part(dataset, '-', 1) AS dataset),
        row_number() OVER (
            PARTITION BY export_scope, split_part(dataset, '-', 1), provider, billing_period ORDER BY submitted_utc DESC, delivery_id DESC
        ) AS newest
    FROM staging.bill_delivery
    WHERE list_contains($periods, billing_period)
),
held AS (
    SELECT DISTINCT d.export_scope, d.dataset, d.provider, d.billing_period, d.newest, CAST(line.charge_period_start AS DATE) AS day
    FROM delivery AS d
    JOIN staging.bill_line AS line ON line.delivery_id = d.delivery_id
),
covering AS (
    SELECT held.export_scope, held.dataset, held.provider, held.billing_period, held.day, min(d.newest) AS newest
    FROM (SELECT DISTINCT export_scope, dataset, provider, billing_period, day FROM held) AS held
    JOIN delivery AS d ON d.export_scope = held.export_scope AND d.dataset = held.dataset AND d.provider = held.provider
        AND d.billing_period = held.billing_period
    LEFT JOIN held AS own ON own.export_scope = d.export_scope AND own.dataset = d.dataset AND own.provider = d.provider
        AND own.billing_period = d.billing_period AND own.newest = d.newest AND own.day = held.day
    WHERE d.dataset = 'cur2' OR own.day IS NOT NULL
       OR (coalesce(d.covers_range, false) AND held.day >= CAST(d.covers_from AS DATE) AND held.day < CAST(d.covers_to AS DATE))
    GROUP BY ALL
)
SELECT line.*, d.export_scope, d.dataset
FROM staging.bill_line AS line
JOIN delivery AS d ON d.delivery_id = line.delivery_id
JOIN covering AS c ON c.export_scope = d.export_scope AND c.dataset = d.dataset AND c.provider = d.provider
    AND c.billing_period = d.billing_period AND c.newest = d.newest AND c.day = CAST(line.charge_period_start AS DATE)
