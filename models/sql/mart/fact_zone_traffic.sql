-- Hour, job, role, peer, zones, locality, verdict: what went between zones, as published.
SELECT hour_utc, date, stable_key(cluster) AS cluster_key, job_key, role, peer_job_key, peer_role, peer_name, source_zone_key,
    destination_zone_key, locality, verdict, connections, attempts, bytes, basis, coverage, reason
FROM core.zone_traffic_hourly
WHERE date >= $from_date AND date < $to_date
