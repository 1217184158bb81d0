-- One node, hour, metered direction and pair of ends: traffic that may have been billed between zones (A1), as integer weights.
-- Bytes and event weights are rounded to integers here, so that every later sum is exact and in no order.
WITH traffic AS (
    SELECT
        traffic.date,
        CAST(hour(traffic.hour_utc) AS BIGINT) AS hour,
        traffic.hour_utc,
        traffic.node_key,
        traffic.direction,
        traffic.basis,
        traffic.locality,
        CASE
            WHEN traffic.locality = 'unknown' THEN coalesce(traffic.reason, 'unknown_zone')
            WHEN traffic.job_key = -1 THEN coalesce(traffic.reason, 'no_job')
        END AS reason,
        CASE WHEN traffic.locality = 'unknown' THEN -1 ELSE traffic.job_key END AS job_key,
        CASE WHEN traffic.locality <> 'unknown' AND traffic.job_key <> -1 THEN traffic.role END AS role,
        traffic.resolved_by,
        traffic.peer_job_key,
        traffic.peer_role,
        traffic.peer_name,
        traffic.peer_resolved_by,
        traffic.source_zone_key,
        traffic.destination_zone_key,
        CAST(CASE WHEN traffic.basis = 'flow_share' THEN traffic.weight * 1000 ELSE coalesce(traffic.bytes, traffic.weight) END AS HUGEINT)
            AS units,
        CASE WHEN traffic.basis = 'flow_share' THEN NULL ELSE CAST(coalesce(traffic.bytes, traffic.weight) AS HUGEINT) END AS bytes,
        CAST(traffic.coverage * 1000000 AS BIGINT) AS coverage_millionths
    FROM core.node_traffic_hourly AS traffic
    WHERE traffic.date >= $from_date AND traffic.date < $to_date AND traffic.locality IN ('cross_zone', 'unknown')
)
SELECT
    date, hour, hour_utc, node_key, direction, basis, locality, reason, job_key, role, resolved_by, peer_job_key, peer_role,
    peer_name, peer_resolved_by, source_zone_key, destination_zone_key,
    stable_key(concat_ws(
        chr(31), node_key, direction, basis, locality, coalesce(reason, ''), job_key, coalesce(role, ''), resolved_by, peer_job_key,
        coalesce(peer_role, ''), coalesce(peer_name, ''), peer_resolved_by, source_zone_key, destination_zone_key
    )) AS pair_key,
    CAST(sum(units) AS HUGEINT) AS units,
    CAST(sum(bytes) AS HUGEINT) AS bytes,
    CAST(sum(units * coverage_millionths) AS HUGEINT) AS covered_units
FROM traffic
WHERE units > 0
GROUP BY ALL
