-- One inter-AZ bill line of the window, with the entity whose traffic its cost is split over, or why it can't be split.
-- An entity is a node, or (A4, no resource id) the finest scope that the line names: cluster, else account, and region.
WITH known_placement AS (
    SELECT DISTINCT day.date, cluster.provider
    FROM (SELECT DISTINCT date FROM core.bill_line WHERE date >= $from_date AND date < $to_date) AS day
    JOIN core.node_life AS node
      ON node.valid_from_ns < (epoch_us(CAST(day.date AS TIMESTAMP)) + 86400000000) * 1000
     AND node.valid_to_ns > epoch_us(CAST(day.date AS TIMESTAMP)) * 1000
    JOIN staging.cluster AS cluster ON cluster.cluster = node.cluster
),
line AS (
    SELECT
        bill.*,
        CASE
            WHEN lower(bill.provider) LIKE '%aws%' OR lower(bill.provider) LIKE '%amazon%' THEN 'aws'
            WHEN lower(bill.provider) LIKE '%microsoft%' OR lower(bill.provider) LIKE '%azure%' THEN 'azure'
            WHEN lower(bill.provider) LIKE '%google%' OR lower(bill.provider) LIKE '%gcp%' THEN 'gcp'
            ELSE lower(bill.provider)
        END AS cloud,
        coalesce(bill.resource_id, '') <> '' AS names_resource
    FROM core.bill_line AS bill
    WHERE bill.charge_scope = 'inter_az_transfer' AND bill.date >= $from_date AND bill.date < $to_date
)
SELECT
    row_number() OVER (ORDER BY line.delivery_id, line.object_id, line.row_number, line.part) AS line_id,
    line.delivery_id,
    line.object_id,
    line.row_number,
    line.part,
    line.date,
    line.hour_utc,
    line.billing_period,
    line.billing_account,
    line.sub_account,
    line.cluster_key,
    line.node_key,
    line.region,
    line.direction,
    line.cloud,
    -- both: a line that does not say (GCP charges the sender only)
    coalesce(line.direction, CASE WHEN line.cloud = 'gcp' THEN 'out' ELSE 'both' END) AS metered,
    CASE
        WHEN line.node_key <> -1 THEN 'node:' || line.node_key
        WHEN line.names_resource THEN NULL
        ELSE 'scope:' || line.cluster_key || ':' || coalesce(line.sub_account, '') || ':' || coalesce(line.region, '')
    END AS entity,
    CASE
        WHEN line.charge_span = 'period' THEN 'longer_than_a_day'
        WHEN line.node_key = -1 AND line.names_resource THEN
            CASE WHEN known.date IS NULL THEN 'no_evidence' ELSE 'not_a_node' END
    END AS whole_reason,
    CASE WHEN line.hour_utc IS NULL THEN -1 ELSE CAST(hour(line.hour_utc) AS BIGINT) END AS slot,
    line.charge_category = 'Usage' AND coalesce(line.quantity, 0) <> 0 AS is_usage,
    line.quantity,
    CASE
        WHEN line.charge_category = 'Usage' AND coalesce(line.quantity, 0) <> 0
            THEN CAST(line.quantity * unit.unit_bytes AS HUGEINT)
    END AS quantity_bytes,
    list_contains($dedicated_accounts, coalesce(line.sub_account, '')) AS dedicated,
    line.currency,
    line.billed_cost,
    line.effective_cost
FROM line
LEFT JOIN known_placement AS known ON known.date = line.date AND known.provider = line.cloud
LEFT JOIN transfer_unit AS unit
  ON unit.provider = line.cloud AND unit.unit = lower(trim(coalesce(line.unit, '')))
