-- A row is one part of one bill line and the bucket, job and reason that got a share of it, with its weight in the line.
-- What nothing claimed is a row too, so that the ledger is the bill (N6).
WITH line AS (
    SELECT * FROM core.bill_line WHERE list_contains($periods, billing_period)
),
claim AS (
    SELECT
        delivery_id, object_id, row_number, part, job_key,
        CASE
            WHEN job_key <> -1 THEN NULL
            WHEN state = 'unmeasured' THEN coalesce(cause, 'no_placement')
            ELSE 'unallocated'
        END AS reason,
        billed_cost, effective_cost
    FROM core.gpu_cost_line
    WHERE delivery_id IS NOT NULL
    UNION ALL
    SELECT delivery_id, object_id, row_number, part, job_key, CASE WHEN job_key = -1 THEN reason END, billed_cost, effective_cost
    FROM core.transfer_cost
    WHERE delivery_id IS NOT NULL
),
claimed AS (
    SELECT
        delivery_id, object_id, row_number, part, job_key, reason,
        CAST(sum(billed_cost) AS DECIMAL(38,12)) AS billed_cost,
        CAST(sum(effective_cost) AS DECIMAL(38,12)) AS effective_cost
    FROM claim
    SEMI JOIN line USING (delivery_id, object_id, row_number, part)
    GROUP BY ALL
),
whole AS (
    SELECT
        delivery_id, object_id, row_number, part,
        CAST(sum(billed_cost) AS DECIMAL(38,12)) AS billed_cost,
        CAST(sum(effective_cost) AS DECIMAL(38,12)) AS effective_cost
    FROM claimed
    GROUP BY ALL
),
on_node AS (
    SELECT
        delivery_id, object_id, row_number, part,
        CAST(sum(share_billed) AS DECIMAL(38,12)) AS billed_cost,
        CAST(sum(share_effective) AS DECIMAL(38,12)) AS effective_cost
    FROM core.node_bill_hourly
    GROUP BY ALL
),
unclaimed AS (
    -- what a line has on nodes (all of it where nodes do not matter), what was claimed of it, and the reason for the rest
    SELECT
        line.*,
        line.charge_scope = 'gpu_compute' AND NOT line.rejected AND day.date IS NOT NULL AS over_nodes,
        whole.delivery_id IS NOT NULL AS is_claimed, on_node.delivery_id IS NOT NULL AS is_on_node,
        coalesce(whole.billed_cost, 0) AS claimed_billed, coalesce(whole.effective_cost, 0) AS claimed_effective,
        coalesce(on_node.billed_cost, 0) AS node_billed, coalesce(on_node.effective_cost, 0) AS node_effective,
        CASE
            WHEN line.rejected THEN 'rejected'
            WHEN line.charge_scope NOT IN ('gpu_compute', 'inter_az_transfer') THEN NULL
            WHEN day.date IS NULL THEN 'not_run'
            ELSE 'no_evidence'
        END AS other_reason
    FROM line
    LEFT JOIN whole USING (delivery_id, object_id, row_number, part)
    LEFT JOIN on_node USING (delivery_id, object_id, row_number, part)
    LEFT JOIN core.processed_day AS day ON day.date = line.date
),
rest AS (
    SELECT *, billed_cost - claimed_billed AS rest_billed, effective_cost - claimed_effective AS rest_effective, other_reason AS reason
    FROM unclaimed
    WHERE NOT over_nodes AND (NOT is_claimed OR billed_cost <> claimed_billed OR effective_cost <> claimed_effective)
    UNION ALL
    SELECT *, billed_cost - node_billed, effective_cost - node_effective, 'no_node'
    FROM unclaimed
    WHERE over_nodes AND (NOT is_on_node OR billed_cost <> node_billed OR effective_cost <> node_effective)
    UNION ALL
    SELECT *, node_billed - claimed_billed, CASE WHEN effective_cost IS NOT NULL THEN node_effective - claimed_effective END, 'no_gpu_state'
    FROM unclaimed
    WHERE over_nodes AND is_on_node AND (NOT is_claimed OR node_billed <> claimed_billed OR node_effective <> claimed_effective)
),
joined AS (
    SELECT
        line.*, claimed.job_key, claimed.reason,
        CASE WHEN claimed.job_key <> -1 THEN 'job' ELSE 'unattributed' END AS bucket,
        claimed.billed_cost AS part_billed, claimed.effective_cost AS part_effective
    FROM claimed
    JOIN line USING (delivery_id, object_id, row_number, part)
    UNION ALL
    SELECT
        rest.* EXCLUDE (over_nodes, is_claimed, is_on_node, claimed_billed, claimed_effective, node_billed, node_effective, other_reason,
            rest_billed, rest_effective, reason), -1, reason,
        CASE WHEN reason IS NULL THEN 'out_of_scope' ELSE 'unattributed' END,
        rest_billed, rest_effective
    FROM rest
)
SELECT
    * REPLACE (coalesce(reason, '') AS reason, coalesce(list_cost, 0) AS list_cost, coalesce(contracted_cost, 0) AS contracted_cost),
    list_cost IS NOT NULL AS has_list, contracted_cost IS NOT NULL AS has_contracted,
    -- shares of a line of no cost are even
    CASE
        WHEN coalesce(effective_cost, 0) <> 0 THEN CAST(abs(part_effective) * 1000000000 AS HUGEINT)
        WHEN billed_cost <> 0 THEN CAST(abs(part_billed) * 1000000000 AS HUGEINT)
        ELSE 0
    END + 1 AS weight
FROM joined
