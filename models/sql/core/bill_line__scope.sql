-- A row is one kind of line and the first rule of the scope table that meets it (B2); `other` when none does.
WITH kind AS (
    SELECT
        row_number() OVER () AS kind_id, *
    FROM (
        SELECT DISTINCT provider, x_usage_type, x_operation, x_line_item_type, charge_category, service_name, charge_description,
            x_instance_type, coalesce(commitment_discount_id, '') <> '' AS committed, commitment_discount_status, capacity_reservation_status
        FROM bill_in_force
    )
),
met AS (
    SELECT
        kind.*, rule.charge_scope AS rule_scope, rule.direction, rule.certain,
        row_number() OVER (PARTITION BY kind.kind_id ORDER BY rule.priority, rule.rule_id) AS place
    FROM kind
    LEFT JOIN charge_scope_rule AS rule ON
        (rule.provider = '*' OR rule.provider = kind.provider)
        AND (rule.usage_type IS NULL OR regexp_matches(coalesce(kind.x_usage_type, ''), rule.usage_type))
        AND (rule.operation IS NULL OR regexp_full_match(coalesce(kind.x_operation, ''), rule.operation))
        AND (rule.line_item_type IS NULL OR rule.line_item_type = kind.x_line_item_type)
        AND (rule.charge_category IS NULL OR rule.charge_category = kind.charge_category)
        AND (rule.commitment IS NULL OR kind.committed)
        AND (rule.commitment_status IS NULL OR rule.commitment_status = kind.commitment_discount_status)
        AND (rule.capacity_status IS NULL OR rule.capacity_status = kind.capacity_reservation_status)
        AND (rule.service IS NULL OR regexp_full_match(coalesce(kind.service_name, ''), rule.service))
        AND (rule.description IS NULL OR regexp_full_match(coalesce(kind.charge_description, ''), rule.description))
)
SELECT
    * EXCLUDE (place, rule_scope, certain),
    CASE
        WHEN rule_scope IS NULL THEN 'other'
        WHEN rule_scope <> 'compute' THEN rule_scope
        WHEN EXISTS (
            SELECT 1 FROM gpu_instance_type AS gpu
            WHERE gpu.provider = met.provider AND regexp_full_match(coalesce(met.x_instance_type, ''), gpu.pattern)
        ) THEN 'gpu_compute'
        ELSE 'other_compute'
    END AS charge_scope,
    coalesce(certain, 1) = 1 AS scope_certain
FROM met
WHERE place = 1
