-- One slot and pair of ends (or remainder, pair_key -1): its integer weight in the split of the slot's lines (A3).
-- Bytes: an hour's own bytes up to what it charges, then the day's excess over the room that is left, then `unexplained`.
WITH own AS (
    SELECT
        traffic.entity, traffic.metered, traffic.date, traffic.hour AS slot, traffic.pair_key, traffic.units AS bytes,
        CASE
            WHEN slot.mode = 'bytes' THEN traffic.units * slot.own_bytes // slot.measured_bytes
            ELSE CAST(0 AS HUGEINT)
        END AS own_bytes
    FROM transfer_traffic AS traffic
    LEFT JOIN transfer_slot AS slot
      ON slot.entity = traffic.entity AND slot.metered = traffic.metered AND slot.date = traffic.date AND slot.slot = traffic.hour
    WHERE traffic.basis <> 'flow_share'
),
excess AS (
    SELECT entity, metered, date, pair_key, CAST(sum(bytes - own_bytes) AS HUGEINT) AS bytes
    FROM own
    GROUP BY entity, metered, date, pair_key
    HAVING sum(bytes - own_bytes) > 0
),
day_excess AS (
    SELECT entity, metered, date, CAST(sum(bytes) AS HUGEINT) AS excess_bytes
    FROM excess
    GROUP BY entity, metered, date
),
filled AS (
    SELECT entity, metered, date, slot, CAST(sum(own_bytes) AS HUGEINT) AS own_bytes
    FROM own
    GROUP BY entity, metered, date, slot
),
room AS (
    SELECT
        slot.entity, slot.metered, slot.date, slot.slot, slot.charged_bytes - coalesce(filled.own_bytes, 0) AS bytes,
        CAST(sum(slot.charged_bytes - coalesce(filled.own_bytes, 0)) OVER (PARTITION BY slot.entity, slot.metered, slot.date) AS HUGEINT)
            AS day_bytes
    FROM transfer_slot AS slot
    LEFT JOIN filled
      ON filled.entity = slot.entity AND filled.metered = slot.metered AND filled.date = slot.date AND filled.slot = slot.slot
    WHERE slot.mode = 'bytes'
),
carried AS (
    SELECT
        room.entity, room.metered, room.date, room.slot, excess.pair_key,
        excess.bytes
            * (CASE WHEN total.excess_bytes <= room.day_bytes THEN total.excess_bytes * room.bytes // room.day_bytes ELSE room.bytes END)
            // total.excess_bytes AS bytes
    FROM room
    JOIN day_excess AS total
      ON total.entity = room.entity AND total.metered = room.metered AND total.date = room.date
    JOIN excess
      ON excess.entity = room.entity AND excess.metered = room.metered AND excess.date = room.date
    WHERE room.bytes > 0
),
measured AS (
    SELECT entity, metered, date, slot, pair_key, CAST(sum(bytes) AS HUGEINT) AS weight
    FROM (
        SELECT entity, metered, date, slot, pair_key, own_bytes AS bytes FROM own
        UNION ALL
        SELECT entity, metered, date, slot, pair_key, bytes FROM carried
    )
    GROUP BY entity, metered, date, slot, pair_key
    HAVING sum(bytes) > 0
),
flow AS (
    SELECT
        slot.entity, slot.metered, slot.date, slot.slot, traffic.pair_key, CAST(sum(traffic.units) AS HUGEINT) AS weight
    FROM transfer_slot AS slot
    JOIN transfer_traffic AS traffic
      ON traffic.entity = slot.entity AND traffic.metered = slot.metered AND traffic.date = slot.date
     AND (traffic.hour = slot.slot OR slot.slot = -1)
    WHERE slot.mode = 'flow' AND traffic.basis = 'flow_share'
    GROUP BY slot.entity, slot.metered, slot.date, slot.slot, traffic.pair_key
),
explained AS (
    SELECT entity, metered, date, slot, CAST(sum(weight) AS HUGEINT) AS bytes
    FROM measured
    GROUP BY entity, metered, date, slot
),
remainder AS (
    -- a day that measured more than it was charged is split in full: what is left then is only rounding to whole bytes
    SELECT slot.entity, slot.metered, slot.date, slot.slot, -1 AS pair_key, slot.charged_bytes - coalesce(explained.bytes, 0) AS weight
    FROM transfer_slot AS slot
    LEFT JOIN explained
      ON explained.entity = slot.entity AND explained.metered = slot.metered
     AND explained.date = slot.date AND explained.slot = slot.slot
    WHERE slot.mode = 'bytes'
      AND (slot.day_bytes <= slot.day_charged_bytes OR explained.bytes IS NULL)
      AND slot.charged_bytes > coalesce(explained.bytes, 0)
)
SELECT * FROM measured
UNION ALL
SELECT * FROM flow
UNION ALL
SELECT * FROM remainder
