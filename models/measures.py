"""Measures over the published tables that readers compute: SQL text, so that report, notebook and dashboards agree (R4).

What is here: ratios whose definition is a rule. Each is one SELECT over `mart.fact_gpu_hours` that binds `$from` and
`$to` (days, half open). Currencies are never added (N5), and each row says which share of its GPU-hours had a price (N3).
"""

from __future__ import annotations

# A rate is money over hours and is never summed, so it may leave decimals at its very end.
_G6 = """
WITH hours AS (
    SELECT
        {key}state, gpu_hours, effective_cost,
        CASE WHEN effective_cost IS NOT NULL THEN currency END AS currency
    FROM mart.fact_gpu_hours
    WHERE "date" >= $from AND "date" < $to{only}
), totals AS (
    SELECT
        {key}currency,
        coalesce(sum(gpu_hours) FILTER (WHERE state = 'busy'), 0) AS busy_gpu_hours,
        CAST(sum(effective_cost) AS DECIMAL(38, 6)) AS gpu_cost,
        CAST(coalesce(sum(effective_cost) FILTER (WHERE state = 'unmeasured'), 0) AS DECIMAL(38, 6)) AS unmeasured_cost
    FROM hours
    WHERE effective_cost IS NOT NULL
    GROUP BY ALL
), known AS (
    SELECT
        {key}sum(gpu_hours) FILTER (WHERE effective_cost IS NOT NULL) / nullif(sum(gpu_hours), 0) AS priced_share
    FROM hours
    GROUP BY ALL
)
SELECT
    {total_key}t.currency, t.busy_gpu_hours, t.gpu_cost, t.unmeasured_cost,
    CAST(t.gpu_cost - t.unmeasured_cost AS DOUBLE) / nullif(t.busy_gpu_hours, 0) AS cost_per_busy_gpu_hour,
    coalesce(k.priced_share, 0) AS priced_share
FROM totals AS t
{join}
ORDER BY ALL
"""

# G6, of the fleet: all GPU cost less unmeasured cost, over all busy hours, with unallocated in it.
COST_PER_BUSY_GPU_HOUR = _G6.format(key="", only="", total_key="", join="CROSS JOIN known AS k")

# G6, of each job: its GPU cost less unmeasured cost, over its busy hours; null when it was never busy.
COST_PER_BUSY_GPU_HOUR_BY_JOB = _G6.format(
    key="job_key, ", only=" AND job_key <> -1", total_key="t.job_key, ", join="JOIN known AS k ON k.job_key = t.job_key"
)
