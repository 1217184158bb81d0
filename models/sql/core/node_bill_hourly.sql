-- A row is one node, hour and bill line of its compute: what of the line falls on it (B6). Parts of a line were split exactly.
WITH usage AS (
    SELECT *, CAST(quantity AS DOUBLE) * weight / sum(weight) OVER (PARTITION BY delivery_id, object_id, row_number, part) AS hours
    FROM compute_split
),
part AS (
    SELECT for_hour, for_node, hours, delivery_id, object_id, row_number, part, billed_cost_part, effective_cost_part, charge_scope,
        currency, cost_basis
    FROM usage
    UNION ALL
    SELECT for_hour, for_node, 0, delivery_id, object_id, row_number, part, billed_cost_part, effective_cost_part, charge_scope,
        currency, cost_basis
    FROM discount_split
    WHERE for_node <> -1
)
SELECT
    CAST(for_hour AS DATE) AS date, for_hour AS hour_utc, for_node AS node_key, coalesce(hours, 0) AS instance_hours,
    delivery_id, object_id, row_number, part,
    billed_cost_part AS share_billed, effective_cost_part AS share_effective, charge_scope, currency, cost_basis
FROM part
WHERE for_hour >= $from_date AND for_hour < $to_date
