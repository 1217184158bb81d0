-- A row is one day, cluster and source: what was read of it and which share of the day it can speak for.
WITH bill_days AS (
    SELECT object_id, CAST(min(charge_period_start) AS DATE) AS date
    FROM staging.bill_line
    GROUP BY object_id
),
counted AS (
    SELECT
        coalesce(CAST(l.min_time_utc AS DATE), b.date, CAST(l.loaded_utc AS DATE)) AS date,
        CASE WHEN l.cluster IS NULL THEN -1 ELSE stable_key(l.cluster) END AS cluster_key,
        l.cluster,
        l.source,
        l.kind,
        sum(l.rows_read) AS rows_read,
        sum(l.rows_kept) AS rows_kept,
        sum(l.rows_rejected) AS rows_rejected,
        sum(l.rows_duplicate) AS rows_duplicate,
        sum(l.rows_control) AS rows_control,
        string_agg(DISTINCT l.warning, '; ' ORDER BY l.warning) AS warnings
    FROM staging.load AS l
    LEFT JOIN bill_days AS b USING (object_id)
    GROUP BY ALL
),
day_placement AS (
    SELECT
        c.date,
        c.source,
        sum(
            greatest(0, least(p.to_ns, ts_to_ns(c.date + INTERVAL 1 DAY)) - greatest(p.from_ns, ts_to_ns(CAST(c.date AS TIMESTAMP))))
        ) / 86400e9 AS coverage
    FROM counted AS c
    JOIN core.placement_coverage AS p ON p.cluster = c.cluster
    WHERE c.kind = 'kubernetes'
    GROUP BY ALL
),
day_flows AS (
    SELECT date, cluster, avg(coverage) AS hubble, avg(vpc_coverage) AS vpc
    FROM core.flow_coverage_hourly
    GROUP BY ALL
),
day_samples AS (
    SELECT
        date,
        cluster,
        1 - sum(gpu_hours) FILTER (WHERE state = 'unmeasured')
            / nullif(sum(gpu_hours) FILTER (WHERE state <> 'unallocated'), 0) AS measured
    FROM core.gpu_state_hourly
    GROUP BY ALL
),
day_bill AS (
    SELECT date, count(DISTINCT hour_utc) / 24.0 AS hours
    FROM core.bill_line
    WHERE hour_utc IS NOT NULL
    GROUP BY ALL
)
SELECT
    c.date,
    c.cluster_key,
    c.source,
    c.rows_read,
    c.rows_kept,
    c.rows_rejected,
    c.rows_duplicate,
    c.rows_control,
    CASE
        WHEN c.kind = 'kubernetes' THEN least(1, p.coverage)
        WHEN c.kind = 'hubble' THEN f.hubble
        WHEN c.kind = 'vpc-flow-logs' THEN f.vpc
        WHEN c.kind IN ('prometheus', 'gpu-activity-csv') THEN coalesce(s.measured, CASE WHEN s.date IS NOT NULL THEN 1 END)
        WHEN c.kind IN ('aws-cur2', 'focus') THEN b.hours
    END AS coverage,
    c.warnings AS note
FROM counted AS c
LEFT JOIN day_placement AS p ON p.date = c.date AND p.source = c.source
LEFT JOIN day_flows AS f ON f.date = c.date AND f.cluster = c.cluster
LEFT JOIN day_samples AS s ON s.date = c.date AND s.cluster = c.cluster
LEFT JOIN day_bill AS b ON b.date = c.date
