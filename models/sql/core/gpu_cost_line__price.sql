-- A row is the newest effective price of an instance-hour by provider, region, instance type and purchase option (B6).
-- It comes from the bill's lines, whichever days were run, so that an estimate does not depend on the order of runs (N7).
WITH hourly AS (
    SELECT
        provider, region, instance_type, CASE WHEN pricing_category = 'Dynamic' THEN 'spot' ELSE 'on_demand' END AS lifecycle,
        currency, charge_period_start,
        CAST(sum(effective_cost) AS DOUBLE) / CAST(sum(quantity) AS DOUBLE) AS price_per_hour,
        min(pricing_category) AS pricing_category
    FROM core.bill_line
    WHERE charge_scope = 'gpu_compute' AND effective_cost IS NOT NULL AND charge_span <> 'period' AND instance_type IS NOT NULL
    GROUP BY ALL
    HAVING sum(quantity) > 0
),
newest AS (
    SELECT *
    FROM hourly
    QUALIFY row_number() OVER (
        PARTITION BY provider, region, instance_type, lifecycle, currency ORDER BY charge_period_start DESC
    ) = 1
)
-- with two currencies there is no one price (N5)
SELECT * FROM newest QUALIFY count(*) OVER (PARTITION BY provider, region, instance_type, lifecycle) = 1
