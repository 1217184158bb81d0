-- One entity, metered direction, day and slot (an hour, or -1: the whole day) that lines charge, with what was measured in it.
-- Lines of one slot are split by the same shares, so a discount follows the usage that it discounts.
WITH charged AS (
    SELECT
        entity, metered, date, slot,
        coalesce(CAST(sum(quantity_bytes) AS HUGEINT), CAST(0 AS HUGEINT)) AS charged_bytes,
        bool_or(is_usage AND quantity_bytes IS NULL) AS unknown_unit
    FROM transfer_line
    WHERE entity IS NOT NULL AND whole_reason IS NULL
    GROUP BY entity, metered, date, slot
),
hour_traffic AS (
    SELECT
        entity, metered, date, hour, min(basis) AS basis,
        CAST(sum(CASE WHEN basis <> 'flow_share' THEN units ELSE 0 END) AS HUGEINT) AS bytes,
        CAST(sum(CASE WHEN basis = 'flow_share' THEN units ELSE 0 END) AS HUGEINT) AS flow_units
    FROM transfer_traffic
    GROUP BY entity, metered, date, hour
),
day_traffic AS (
    SELECT
        entity, metered, date,
        CAST(sum(bytes) AS HUGEINT) AS day_bytes,
        CAST(sum(flow_units) AS HUGEINT) AS day_flow_units,
        CASE WHEN bool_or(basis = 'measured_bytes') THEN 'measured_bytes' ELSE 'counter_bytes' END AS byte_basis
    FROM hour_traffic
    GROUP BY entity, metered, date
),
moded AS (
    SELECT
        charged.*,
        coalesce(hour_traffic.bytes, CAST(0 AS HUGEINT)) AS measured_bytes,
        coalesce(day_traffic.day_bytes, CAST(0 AS HUGEINT)) AS day_bytes,
        day_traffic.byte_basis,
        CASE
            WHEN coalesce(hour_traffic.flow_units, 0) > 0 THEN 'flow'
            WHEN coalesce(day_traffic.day_bytes, 0) > 0 THEN
                CASE WHEN charged.unknown_unit THEN 'unknown_unit' WHEN charged.charged_bytes <= 0 THEN 'no_quantity' ELSE 'bytes' END
            WHEN charged.slot = -1 AND coalesce(day_traffic.day_flow_units, 0) > 0 THEN 'flow'
            ELSE 'none'
        END AS mode
    FROM charged
    LEFT JOIN hour_traffic
      ON hour_traffic.entity = charged.entity AND hour_traffic.metered = charged.metered
     AND hour_traffic.date = charged.date AND hour_traffic.hour = charged.slot
    LEFT JOIN day_traffic
      ON day_traffic.entity = charged.entity AND day_traffic.metered = charged.metered AND day_traffic.date = charged.date
)
SELECT
    *,
    -- of the slot's own hour; what is measured beyond it is carried within the day
    CASE WHEN mode = 'bytes' THEN least(measured_bytes, charged_bytes) ELSE CAST(0 AS HUGEINT) END AS own_bytes,
    CAST(sum(CASE WHEN mode = 'bytes' THEN charged_bytes ELSE 0 END) OVER day AS HUGEINT) AS day_charged_bytes
FROM moded
WINDOW day AS (PARTITION BY entity, metered, date)
