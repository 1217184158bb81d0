-- A row is one discount that came as a line of its own, and a node-hour (or, node -1, all other usage) that it discounts.
-- It belongs to the usage of its usage type, account and hours; it adds cost and never quantity (B3).
WITH discount AS (
    SELECT * FROM core.bill_line
    WHERE charge_scope IN ('gpu_compute', 'other_compute') AND charge_category <> 'Usage' AND charge_span <> 'period'
      AND date >= $from_date - 1 AND date < $to_date
),
own AS (
    -- a discount that names its instance is that instance's, in the hours that the instance paid for
    SELECT discount.*, discount.node_key AS for_node, coalesce(usage.for_hour, date_trunc('hour', discount.charge_period_start)) AS for_hour,
        coalesce(CAST(round(usage.hours * 1e9) AS HUGEINT), CAST(1000000000 AS HUGEINT)) AS weight
    FROM discount
    LEFT JOIN (
        SELECT for_node, for_hour, currency, sum(CAST(quantity AS DOUBLE) * weight / whole_weight) AS hours
        FROM (SELECT *, sum(weight) OVER (PARTITION BY delivery_id, object_id, row_number, part) AS whole_weight FROM compute_split)
        GROUP BY ALL
        HAVING sum(quantity) > 0
    ) AS usage ON usage.for_node = discount.node_key AND usage.currency = discount.currency
        AND usage.for_hour >= date_trunc('hour', discount.charge_period_start) AND usage.for_hour < discount.charge_period_end
    WHERE discount.node_key <> -1
),
usage AS (
    SELECT
        usage_type, sub_account, currency, hour_utc, charge_period_start, charge_period_end, for_node, for_hour,
        CAST(quantity AS DOUBLE) * weight / sum(weight) OVER (PARTITION BY delivery_id, object_id, row_number, part) AS hours
    FROM compute_split
    UNION ALL
    -- instances that are nodes of no cluster are discounted too
    SELECT usage_type, sub_account, currency, hour_utc, charge_period_start, charge_period_end, -1,
        date_trunc('hour', charge_period_start), CAST(quantity AS DOUBLE)
    FROM core.bill_line AS line
    WHERE charge_scope IN ('gpu_compute', 'other_compute') AND charge_category = 'Usage' AND charge_span <> 'period'
      AND date >= $from_date - 1 AND date < $to_date
      AND NOT EXISTS (
        SELECT 1 FROM compute_split AS split WHERE split.delivery_id = line.delivery_id AND split.object_id = line.object_id
            AND split.row_number = line.row_number AND split.part = line.part
      )
),
shared AS (
    SELECT discount.*, usage.for_node, CASE WHEN usage.for_node = -1 THEN discount.charge_period_start ELSE usage.for_hour END AS for_hour,
        sum(usage.hours) AS hours
    FROM discount
    JOIN usage ON usage.usage_type = discount.usage_type AND usage.sub_account IS NOT DISTINCT FROM discount.sub_account
        AND usage.currency = discount.currency
        AND usage.for_hour >= date_trunc('hour', discount.charge_period_start) AND usage.for_hour < discount.charge_period_end
    WHERE discount.node_key = -1
    GROUP BY ALL
)
SELECT *, 'billed' AS cost_basis FROM own
UNION ALL BY NAME
SELECT * EXCLUDE (hours), CAST(round(hours * 1e9) AS HUGEINT) AS weight, 'billed' AS cost_basis FROM shared WHERE hours > 0
