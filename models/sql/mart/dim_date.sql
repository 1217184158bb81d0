-- A row is one day of every year that a fact touches; it is provisional while any account's bill is open, or none is known.
WITH fact_day AS (
    SELECT date FROM mart.fact_cost_ledger
    UNION ALL SELECT date FROM mart.fact_gpu_hours
    UNION ALL SELECT date FROM mart.fact_zone_traffic
    UNION ALL SELECT date FROM core.processed_day
),
years AS (
    SELECT CAST(min(year(date)) AS INTEGER) AS first_year, CAST(max(year(date)) AS INTEGER) AS last_year FROM fact_day
),
days AS (
    SELECT CAST(unnest(generate_series(make_date(first_year, 1, 1), make_date(last_year, 12, 31), INTERVAL 1 DAY)) AS DATE) AS date
    FROM years
    WHERE first_year IS NOT NULL
),
open_day AS (
    SELECT date, CAST(max(CASE WHEN status = 'open' THEN 1 ELSE 0 END) AS BIGINT) AS is_open
    FROM mart.fact_bill_status
    GROUP BY date
)
SELECT
    d.date,
    CAST(isoyear(d.date) AS BIGINT) AS iso_year,
    CAST(weekofyear(d.date) AS BIGINT) AS iso_week,
    printf('%04d-W%02d', isoyear(d.date), weekofyear(d.date)) AS week,
    strftime(d.date, '%Y-%m') AS month,
    coalesce(o.is_open, 1) AS is_provisional
FROM days AS d
LEFT JOIN open_day AS o USING (date)
