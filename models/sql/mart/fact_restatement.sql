-- A row is one week, delivery and measure of the bill that a newer delivery changed: before and after, on the days that the
-- older one held (B4). Days that are new in a delivery are growth, and no restatement.
WITH delivery AS (
    SELECT
        *,
        count(*) OVER scope AS deliveries,
        row_number() OVER (
            PARTITION BY export_scope, split_part(dataset, '-', 1), provider, billing_period ORDER BY submitted_utc, delivery_id
        ) AS number
    FROM staging.bill_delivery
    WINDOW scope AS (PARTITION BY export_scope, split_part(dataset, '-', 1), provider, billing_period)
),
replaced AS (
    SELECT * FROM delivery WHERE deliveries > 1
),
held AS (
    SELECT
        d.export_scope, split_part(d.dataset, '-', 1) AS family, d.provider, d.billing_period, d.number, d.delivery_id, d.submitted_utc,
        CAST(line.charge_period_start AS DATE) AS date, line.billing_currency AS currency,
        count(*) AS lines, sum(line.billed_cost) AS billed_cost, sum(line.effective_cost) AS effective_cost
    FROM replaced AS d
    JOIN staging.bill_line AS line ON line.delivery_id = d.delivery_id
    GROUP BY ALL
),
successor AS (
    -- a CUR delivery is replaced whole by the next one; another on the days that a later one covers or holds
    SELECT
        old.export_scope, old.family, old.provider, old.billing_period, old.number, old.date,
        min(d.number) AS next_number
    FROM held AS old
    JOIN replaced AS d ON d.export_scope = old.export_scope AND split_part(d.dataset, '-', 1) = old.family
        AND d.provider = old.provider AND d.billing_period = old.billing_period AND d.number > old.number
    LEFT JOIN (SELECT DISTINCT delivery_id, date FROM held) AS h ON h.delivery_id = d.delivery_id AND h.date = old.date
    WHERE old.family = 'cur2' OR h.date IS NOT NULL
       OR (coalesce(d.covers_range, false) AND old.date >= CAST(d.covers_from AS DATE) AND old.date < CAST(d.covers_to AS DATE))
    GROUP BY ALL
),
compared AS (
    SELECT
        strftime(old.date, '%G-W%V') AS week, d.submitted_utc, d.delivery_id, old.billing_period, old.currency,
        sum(old.lines) AS lines_before, sum(coalesce(new.lines, 0)) AS lines_after,
        sum(old.billed_cost) AS billed_before, sum(coalesce(new.billed_cost, 0)) AS billed_after,
        sum(old.effective_cost) AS effective_before,
        sum(CASE WHEN new.lines IS NULL THEN 0 ELSE new.effective_cost END) AS effective_after
    FROM held AS old
    JOIN successor AS s USING (export_scope, family, provider, billing_period, number, date)
    JOIN replaced AS d ON d.export_scope = old.export_scope AND split_part(d.dataset, '-', 1) = old.family
        AND d.provider = old.provider AND d.billing_period = old.billing_period AND d.number = s.next_number
    LEFT JOIN held AS new ON new.delivery_id = d.delivery_id AND new.date = old.date AND new.currency = old.currency
    GROUP BY ALL
),
measured AS (
    SELECT *, 'rows' AS measure, CAST(lines_before AS DECIMAL(38,18)) AS before, CAST(lines_after AS DECIMAL(38,18)) AS after FROM compared
    UNION ALL
    SELECT *, 'billed_cost', billed_before, billed_after FROM compared
    UNION ALL
    SELECT *, 'effective_cost', effective_before, effective_after FROM compared
)
SELECT
    week, CAST(NULL AS BIGINT) AS revision, submitted_utc AS published_utc, 'bill_delivery' AS "table", -1 AS job_key,
    CAST(NULL AS VARCHAR) AS charge_scope, measure, round(before, 6) AS before, round(after, 6) AS after,
    round(after, 6) - round(before, 6) AS delta, 'newer delivery of ' || billing_period AS cause, delivery_id,
    CASE WHEN measure <> 'rows' THEN currency END AS currency
FROM measured
WHERE before IS DISTINCT FROM after
