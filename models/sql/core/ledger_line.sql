-- A row is one part of one bill line and the bucket, job and reason that got a share of it; what nothing claimed is a row too (N6).
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
rest AS (
    SELECT
        line.*,
        line.billed_cost - coalesce(whole.billed_cost, 0) AS rest_billed,
        line.effective_cost - coalesce(whole.effective_cost, 0) AS rest_effective,
        CASE
            WHEN line.rejected THEN 'rejected'
            WHEN line.charge_scope NOT IN ('gpu_compute', 'inter_az_transfer') THEN NULL
            WHEN line.charge_scope = 'gpu_compute' AND line.node_key = -1 AND whole.delivery_id IS NULL THEN 'no_node'
            WHEN day.date IS NULL THEN 'not_run'
            WHEN line.charge_scope = 'gpu_compute' THEN 'no_gpu_state'
            ELSE 'no_evidence'
        END AS reason
    FROM line
    LEFT JOIN whole USING (delivery_id, object_id, row_number, part)
    LEFT JOIN core.processed_day AS day ON day.date = line.date
    WHERE whole.delivery_id IS NULL
       OR line.billed_cost <> whole.billed_cost
       OR line.effective_cost <> whole.effective_cost
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
        rest.* EXCLUDE (rest_billed, rest_effective, reason), -1, reason,
        CASE WHEN reason IS NULL THEN 'out_of_scope' ELSE 'unattributed' END,
        rest_billed, rest_effective
    FROM rest
),
first AS (
    -- list and contracted cost stand once, on the first share of a line: they are shown, never split
    SELECT *, row_number() OVER (PARTITION BY delivery_id, object_id, row_number, part ORDER BY job_key, reason NULLS FIRST) AS place
    FROM joined
)
SELECT
    billing_period, date, delivery_id, object_id, row_number, part, provider, billing_account, sub_account, cluster_key, region,
    service, charge_scope, charge_category, charge_class, charge_span, pricing_category, commitment_id, invoice_id, bucket,
    CAST(NULL AS VARCHAR) AS rule, job_key, -1 AS owner_key, reason,
    CASE
        WHEN coalesce(effective_cost, 0) <> 0 THEN CAST(part_effective AS DOUBLE) / CAST(effective_cost AS DOUBLE)
        WHEN billed_cost <> 0 THEN CAST(part_billed AS DOUBLE) / CAST(billed_cost AS DOUBLE)
    END AS share,
    CASE WHEN place = 1 THEN list_cost END AS list_cost,
    CASE WHEN place = 1 THEN contracted_cost END AS contracted_cost,
    part_billed AS billed_cost,
    part_effective AS effective_cost,
    currency
FROM first
