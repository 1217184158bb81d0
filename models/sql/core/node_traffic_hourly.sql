-- One node, hour, metered direction and pair of ends: the weights of the inter-AZ split (A1), each direction at its own meter.
-- Weights of one node, hour and direction have one unit and one basis: where tunnel bytes had to be shared by flows, the
-- rest of that meter's bytes are weights of the same kind, and the whole is called what its weakest part is (T7).
WITH vpc AS (
    SELECT n.node_key, CAST(ts_to_ns(c.hour_utc) AS BIGINT) AS hour_ns, min(c.vpc_coverage) AS vpc_coverage
    FROM core.flow_coverage_hourly c JOIN core.node_life n ON n.cluster = c.cluster AND n.name = c.node_name
        AND n.valid_from_ns < CAST(ts_to_ns(c.hour_utc) AS BIGINT) + 3600000000000 AND n.valid_to_ns > CAST(ts_to_ns(c.hour_utc) AS BIGINT)
    WHERE c.date = $from_date GROUP BY ALL
), split AS (
    SELECT DISTINCT hour_ns, node_key, direction, other_side, sender_node_key, receiver_node_key FROM flow_tunnel
), measured AS (
    SELECT m.cluster, m.hour_ns, m.node_key, m.direction, m.other_side, (m.direction = 'out') = m.sender_is_client AS local_is_client,
        m.sender_is_client, 'measured_bytes' AS basis, CAST(m.bytes AS DOUBLE) AS bytes, CAST(m.bytes AS DOUBLE) AS weight,
        stable_key(concat_ws(chr(31), m.protocol, m.a_ip, m.a_port, m.b_ip, m.b_port)) AS connection_id,
        coalesce(v.vpc_coverage, 0) AS coverage, path_locality(r.locality, m.traffic_path) AS locality,
        r.client_pod_uid, r.client_zone_key, r.client_job_key, r.client_role, r.client_name, r.client_resolved_by, r.client_reason,
        r.server_pod_uid, r.server_zone_key, r.server_job_key, r.server_role, r.server_name, r.server_resolved_by, r.server_reason
    FROM flow_measured m JOIN traffic_resolved r ON r.pair_id = m.pair_id
    LEFT JOIN vpc v ON v.hour_ns = m.hour_ns AND v.node_key = CASE WHEN NOT m.other_side THEN m.node_key
        WHEN m.direction = 'out' THEN m.receiver_node_key ELSE m.sender_node_key END
    LEFT JOIN split s ON m.tunnel AND s.hour_ns = m.hour_ns AND s.node_key = m.node_key AND s.direction = m.direction
        AND s.other_side = m.other_side AND s.sender_node_key = m.sender_node_key AND s.receiver_node_key = m.receiver_node_key
    WHERE s.node_key IS NULL
), tunnel AS (
    SELECT cluster, hour_ns, node_key, direction, other_side, (direction = 'out') = sender_is_client AS local_is_client, sender_is_client,
        'flow_share' AS basis, CAST(NULL AS DOUBLE) AS bytes, CAST(shared_bytes AS DOUBLE) AS weight, connection_id, coverage, locality,
        client_pod_uid, client_zone_key, client_job_key, client_role, client_name, client_resolved_by, client_reason,
        server_pod_uid, server_zone_key, server_job_key, server_role, server_name, server_resolved_by, server_reason
    FROM flow_tunnel WHERE shared_bytes > 0
), unmeasured AS (
    SELECT l.*, true AS sender_is_local FROM flow_link l WHERE l.sender_node_key <> -1
    UNION ALL
    SELECT l.*, false FROM flow_link l WHERE l.receiver_node_key <> -1
), share AS (
    SELECT u.cluster, u.hour_ns, CASE WHEN sender_is_local THEN sender_node_key ELSE receiver_node_key END AS node_key,
        CASE WHEN sender_is_local THEN 'out' ELSE 'in' END AS direction, false AS other_side,
        sender_is_local = sender_is_client AS local_is_client, sender_is_client, 'flow_share' AS basis, CAST(NULL AS DOUBLE) AS bytes,
        CAST(events AS DOUBLE) AS weight, connection_id, coverage, locality,
        client_pod_uid, client_zone_key, client_job_key, client_role, client_name, client_resolved_by, client_reason,
        server_pod_uid, server_zone_key, server_job_key, server_role, server_name, server_resolved_by, server_reason
    FROM unmeasured u
), shared AS (
    SELECT s.* FROM share s ANTI JOIN flow_measured m ON m.node_key = s.node_key AND m.hour_ns = s.hour_ns
), meter AS (
    SELECT DISTINCT hour_ns, node_key, direction FROM flow_tunnel
), weakened AS (
    SELECT m.* REPLACE (CASE WHEN t.node_key IS NULL THEN m.basis ELSE 'flow_share' END AS basis,
        CASE WHEN t.node_key IS NULL THEN m.bytes END AS bytes)
    FROM measured m LEFT JOIN meter t ON t.hour_ns = m.hour_ns AND t.node_key = m.node_key AND t.direction = m.direction
), traffic AS (
    SELECT * FROM weakened UNION ALL SELECT * FROM tunnel UNION ALL SELECT * FROM shared
), sided AS (
    SELECT *, CASE WHEN local_is_client THEN client_pod_uid ELSE server_pod_uid END AS pod_uid,
        CASE WHEN local_is_client THEN client_job_key ELSE server_job_key END AS job_key,
        CASE WHEN local_is_client THEN client_role ELSE server_role END AS role,
        CASE WHEN local_is_client THEN client_resolved_by ELSE server_resolved_by END AS resolved_by,
        CASE WHEN local_is_client THEN client_reason ELSE server_reason END AS local_reason,
        CASE WHEN local_is_client THEN server_pod_uid ELSE client_pod_uid END AS peer_pod_uid,
        CASE WHEN local_is_client THEN server_job_key ELSE client_job_key END AS peer_job_key,
        CASE WHEN local_is_client THEN server_role ELSE client_role END AS peer_role,
        CASE WHEN local_is_client THEN server_name ELSE client_name END AS peer_name,
        CASE WHEN local_is_client THEN server_resolved_by ELSE client_resolved_by END AS peer_resolved_by,
        CASE WHEN sender_is_client THEN client_zone_key ELSE server_zone_key END AS source_zone_key,
        CASE WHEN sender_is_client THEN server_zone_key ELSE client_zone_key END AS destination_zone_key
    FROM traffic
)
SELECT ns_date(hour_ns) AS date, ns_hour(hour_ns) AS hour_utc, cluster, node_key, direction, pod_uid, job_key, role, resolved_by,
    CASE WHEN job_key = -1 THEN local_reason END AS reason, peer_pod_uid, peer_job_key, peer_role, peer_name, peer_resolved_by,
    source_zone_key, destination_zone_key, locality, basis,
    CASE WHEN basis = 'measured_bytes' THEN sum(bytes) END AS bytes, sum(weight) AS weight,
    count(DISTINCT connection_id) AS connections, avg(coverage) AS coverage, other_side
FROM sided
GROUP BY hour_ns, cluster, node_key, direction, pod_uid, job_key, role, resolved_by, CASE WHEN job_key = -1 THEN local_reason END,
    peer_pod_uid, peer_job_key, peer_role, peer_name, peer_resolved_by, source_zone_key, destination_zone_key, locality, basis, other_side
