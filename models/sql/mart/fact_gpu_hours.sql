-- A row is one hour, node, GPU model, job, state and cause: GPU-hours and what they cost.
SELECT
    f.hour_utc, f.date, stable_key(f.cluster) AS cluster_key, f.node_key, coalesce(n.zone_key, -1) AS zone_key, f.job_key,
    f.gpu_model, f.state, f.cause, f.activity_basis, sum(f.gpu_hours) AS gpu_hours,
    f.billing_period, f.billing_account, f.sub_account, f.pricing_category,
    sum(f.billed_cost_6) AS billed_cost,
    CASE WHEN count(*) = count(f.effective_cost_6) THEN sum(f.effective_cost_6) END AS effective_cost,
    f.currency, f.cost_basis
FROM gpu_rounded AS f
LEFT JOIN core.node_life AS n ON n.node_key = f.node_key
WHERE f.date >= $from_date AND f.date < $to_date
GROUP BY ALL
