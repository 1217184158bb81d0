-- One inter-AZ bill line and pair of ends that got a part of it, or residual with a reason; then volume that is not charged (A2).
-- Parts of a line sum to it at 12 places (`transfer_split`, N4).
WITH pair AS (
    SELECT DISTINCT ON (date, pair_key)
        date, pair_key, node_key, basis, reason, job_key, role, resolved_by, peer_job_key, peer_role, peer_name, peer_resolved_by,
        source_zone_key, destination_zone_key,
        CAST(sum(covered_units) OVER (PARTITION BY date, pair_key) AS DOUBLE)
            / CAST(sum(units) OVER (PARTITION BY date, pair_key) AS DOUBLE) / 1e6 AS coverage
    FROM transfer_pair
    ORDER BY date, pair_key, hour
),
charged AS (
    SELECT
        line.date, line.hour_utc, line.delivery_id, line.object_id, line.row_number, line.part, line.billing_period,
        line.billing_account, line.sub_account, line.cluster_key,
        coalesce(pair.node_key, line.node_key) AS node_key,
        coalesce(pair.job_key, -1) AS job_key,
        pair.role,
        coalesce(pair.resolved_by, 'none') AS resolved_by,
        coalesce(pair.peer_job_key, -1) AS peer_job_key,
        pair.peer_role,
        pair.peer_name,
        coalesce(pair.peer_resolved_by, 'none') AS peer_resolved_by,
        coalesce(pair.source_zone_key, -1) AS source_zone_key,
        coalesce(pair.destination_zone_key, -1) AS destination_zone_key,
        line.direction,
        -- in a day that measured more than it was charged, the measured bytes, not the charged ones
        CASE
            WHEN slot.mode = 'bytes' AND split.pair_key <> -1 THEN
                CAST(split.weight AS DOUBLE) * (CAST(coalesce(line.quantity_bytes, 0) AS DOUBLE) / CAST(slot.charged_bytes AS DOUBLE))
                * greatest(1.0, CAST(slot.day_bytes AS DOUBLE) / CAST(slot.day_charged_bytes AS DOUBLE))
        END AS metered_bytes,
        CASE
            WHEN line.is_usage THEN CAST(line.quantity AS DOUBLE) * (CAST(split.weight AS DOUBLE) / CAST(split.line_weight AS DOUBLE))
        END AS billed_gb,
        split.billed_cost_part AS billed_cost,
        split.effective_cost_part AS effective_cost,
        line.currency,
        coalesce(pair.basis, CASE WHEN slot.mode = 'bytes' THEN slot.byte_basis END, 'none') AS basis,
        CASE
            WHEN slot.mode = 'flow' THEN 'scale'
            WHEN slot.mode = 'bytes' THEN CASE WHEN slot.day_bytes > slot.day_charged_bytes THEN 'scale' ELSE 'rate' END
            ELSE 'none'
        END AS policy,
        CASE
            WHEN slot.mode = 'bytes' THEN CAST(slot.day_bytes AS DOUBLE) / CAST(slot.day_charged_bytes AS DOUBLE)
        END AS estimate_ratio,
        pair.coverage,
        CASE
            WHEN split.pair_key <> -1 THEN pair.reason
            WHEN line.whole_reason IS NOT NULL THEN line.whole_reason
            WHEN slot.mode = 'bytes' THEN 'unexplained'
            WHEN slot.mode IN ('unknown_unit', 'no_quantity') THEN slot.mode
            WHEN line.entity LIKE 'scope:%' AND only_flows.line_id IS NOT NULL THEN 'no_resource_id'
            ELSE 'no_evidence'
        END AS reason
    FROM transfer_split AS split
    JOIN transfer_line AS line ON line.line_id = split.line_id
    LEFT JOIN transfer_slot AS slot
      ON slot.entity = line.entity AND slot.metered = line.metered AND slot.date = line.date AND slot.slot = line.slot
     AND line.whole_reason IS NULL
    LEFT JOIN pair ON pair.date = line.date AND pair.pair_key = split.pair_key
    LEFT JOIN transfer_only_flows AS only_flows ON only_flows.line_id = line.line_id
),
uncharged AS (
    SELECT
        pair.date, pair.hour_utc, CAST(NULL AS VARCHAR) AS delivery_id, CAST(NULL AS VARCHAR) AS object_id,
        CAST(NULL AS BIGINT) AS row_number, CAST(NULL AS BIGINT) AS part, CAST(NULL AS VARCHAR) AS billing_period,
        CAST(NULL AS VARCHAR) AS billing_account, CAST(NULL AS VARCHAR) AS sub_account,
        stable_key(node.cluster) AS cluster_key, pair.node_key, pair.job_key, pair.role, pair.resolved_by, pair.peer_job_key,
        pair.peer_role, pair.peer_name, pair.peer_resolved_by, pair.source_zone_key, pair.destination_zone_key, pair.direction,
        CAST(pair.bytes AS DOUBLE) AS metered_bytes,
        CAST(NULL AS DOUBLE) AS billed_gb,
        CAST(0 AS DECIMAL(38, 12)) AS billed_cost, CAST(0 AS DECIMAL(38, 12)) AS effective_cost, CAST(NULL AS VARCHAR) AS currency,
        pair.basis, 'none' AS policy, CAST(NULL AS DOUBLE) AS estimate_ratio,
        CAST(pair.covered_units AS DOUBLE) / CAST(pair.units AS DOUBLE) / 1e6 AS coverage,
        'not_charged' AS reason
    FROM transfer_pair AS pair
    JOIN core.node_life AS node ON node.node_key = pair.node_key
    JOIN staging.cluster AS cluster ON cluster.cluster = node.cluster
    JOIN uncharged_direction AS free ON free.provider = cluster.provider AND free.direction = pair.direction
    LEFT JOIN (SELECT DISTINCT node_key, date, metered FROM transfer_line WHERE node_key <> -1) AS billed
      ON billed.node_key = pair.node_key AND billed.date = pair.date AND billed.metered IN (pair.direction, 'both')
    WHERE pair.locality = 'cross_zone' AND billed.node_key IS NULL
)
SELECT * FROM charged
UNION ALL
SELECT * FROM uncharged
