-- A row is one hour (or day), billed scope, job, role, peer, zones and direction: what crossed zones cost.
SELECT
    hour_utc, date, cluster_key, node_key, job_key, role, peer_job_key, peer_role, peer_name, resolved_by, peer_resolved_by,
    source_zone_key, destination_zone_key, direction, billing_period, billing_account, sub_account,
    sum(metered_bytes) AS metered_bytes, sum(billed_gb) AS billed_gb,
    sum(billed_cost_6) AS billed_cost,
    CASE WHEN count(*) = count(effective_cost_6) THEN sum(effective_cost_6) END AS effective_cost,
    currency, basis, policy, avg(estimate_ratio) AS estimate_ratio, min(coverage) AS coverage, reason
FROM transfer_rounded
WHERE date >= $from_date AND date < $to_date
GROUP BY ALL
