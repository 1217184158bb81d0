-- One line and pair of ends (or remainder, pair_key -1) with its integer weight; a line that nothing claims is one remainder.
WITH weighed AS (
    SELECT line.line_id, weight.pair_key, weight.weight
    FROM transfer_line AS line
    JOIN transfer_weight AS weight
      ON weight.entity = line.entity AND weight.metered = line.metered AND weight.date = line.date AND weight.slot = line.slot
    WHERE line.whole_reason IS NULL
),
shared AS (
    SELECT line_id, pair_key, weight FROM weighed
    UNION ALL
    SELECT line_id, -1, CAST(1 AS HUGEINT) FROM transfer_line WHERE line_id NOT IN (SELECT line_id FROM weighed)
)
SELECT
    shared.*, line.billed_cost, line.effective_cost,
    CAST(sum(shared.weight) OVER (PARTITION BY shared.line_id) AS HUGEINT) AS line_weight
FROM shared
JOIN transfer_line AS line ON line.line_id = shared.line_id
