-- A row is one processed day whose costs were split over other bill lines than are in force now, or before those came.
-- So is a day with estimates while there is a bill: horizon and newest price may have moved.
WITH line AS (
    SELECT delivery_id, object_id, row_number, part, date, charge_scope, charge_category, charge_span, node_key, resource_id, instance_type
    FROM core.bill_line
    WHERE charge_scope IN ('gpu_compute', 'other_compute', 'inter_az_transfer')
),
known_type AS (
    SELECT DISTINCT instance_type FROM core.node_life
),
stale AS (
    SELECT date FROM core.node_bill_hourly ANTI JOIN line USING (delivery_id, object_id, row_number, part)
    UNION
    SELECT date FROM core.transfer_cost ANTI JOIN line USING (delivery_id, object_id, row_number, part) WHERE delivery_id IS NOT NULL
    UNION
    SELECT date FROM line ANTI JOIN core.transfer_cost USING (delivery_id, object_id, row_number, part)
    WHERE charge_scope = 'inter_az_transfer'
    UNION
    SELECT date FROM line ANTI JOIN core.node_bill_hourly USING (delivery_id, object_id, row_number, part)
    WHERE charge_scope <> 'inter_az_transfer' AND charge_category = 'Usage' AND charge_span <> 'period'
      AND (node_key <> -1 OR (resource_id IS NULL AND instance_type IN (SELECT instance_type FROM known_type)))
    UNION
    SELECT date FROM core.gpu_cost_line
    WHERE cost_basis IN ('estimated', 'unpriced') AND EXISTS (SELECT 1 FROM line WHERE charge_scope = 'gpu_compute')
)
SELECT DISTINCT date FROM stale SEMI JOIN core.processed_day USING (date) ORDER BY date
