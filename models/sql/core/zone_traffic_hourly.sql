-- Hour, job, role, peer, zones, locality, verdict: each connection once (in the hour it was first seen that day), each byte once.
WITH tuple_verdict AS (
    SELECT cluster, protocol, CAST(ts_to_ns(hour_utc) AS BIGINT) AS hour_ns, client_ip, coalesce(client_port, -1) AS client_port,
        server_ip, coalesce(server_port, -1) AS server_port, arg_max(verdict, last_ns) AS verdict
    FROM core.connection WHERE date = $from_date GROUP BY ALL
), tuple_bytes AS (
    SELECT cluster, protocol, a_ip, a_port, b_ip, b_port, hour_ns,
        least(sum(CASE WHEN source_first THEN bytes ELSE 0 END), sum(CASE WHEN NOT source_first THEN bytes ELSE 0 END)) >= 1000 AS both_ways
    FROM flow_measured WHERE direction = 'out' OR (NOT other_side AND sender_node_key = -1) GROUP BY ALL
), counted AS (
    SELECT *, row_number() OVER (PARTITION BY cluster, connection_id ORDER BY hour_utc) = 1 AS first_hour
    FROM core.connection WHERE date = $from_date
), vpc AS (
    SELECT n.node_key, CAST(ts_to_ns(c.hour_utc) AS BIGINT) AS hour_ns, min(c.vpc_coverage) AS vpc_coverage
    FROM core.flow_coverage_hourly c JOIN core.node_life n ON n.cluster = c.cluster AND n.name = c.node_name
    WHERE c.date = $from_date GROUP BY ALL
), split AS (
    SELECT DISTINCT hour_ns, node_key, direction, other_side, sender_node_key, receiver_node_key FROM flow_tunnel
), part AS (
    SELECT CAST(ts_to_ns(hour_utc) AS BIGINT) AS hour_ns, cluster, locality, verdict,
        CASE WHEN first_hour THEN 1 ELSE 0 END AS connections, 0 AS attempts, CAST(NULL AS DOUBLE) AS bytes, 0 AS basis_rank, coverage,
        client_zone_key, client_job_key, client_role, client_name, client_reason,
        server_zone_key, server_job_key, server_role, server_name, server_reason
    FROM counted
    UNION ALL
    SELECT second_ns // 3600000000000 * 3600000000000, d.cluster, locality, 'dropped', 0, 1, NULL, 0, NULL,
        client_zone_key, client_job_key, client_role, client_name, client_reason,
        server_zone_key, server_job_key, server_role, server_name, server_reason
    FROM (SELECT DISTINCT ON (cluster, second_ns, client_pod_uid, server_pod_uid, protocol, destination_port,
            CASE WHEN client_pod_uid IS NULL THEN source_ip END, CASE WHEN server_pod_uid IS NULL THEN destination_ip END) *
          FROM drop_resolved WHERE NOT audited ORDER BY ALL) d
    UNION ALL
    SELECT m.hour_ns, m.cluster, path_locality(r.locality, m.traffic_path),
        coalesce(nullif(v.verdict, 'dropped'), CASE WHEN t.both_ways THEN 'connected' ELSE 'unanswered' END), 0, 0,
        CAST(m.bytes AS DOUBLE), 1, coalesce(c.vpc_coverage, 0),
        r.client_zone_key, r.client_job_key, r.client_role, r.client_name, r.client_reason,
        r.server_zone_key, r.server_job_key, r.server_role, r.server_name, r.server_reason
    FROM flow_measured m
    JOIN traffic_resolved r ON r.pair_id = m.pair_id
    JOIN traffic_pair q ON q.pair_id = m.pair_id
    LEFT JOIN tuple_bytes t ON t.cluster = m.cluster AND t.protocol = m.protocol AND t.a_ip = m.a_ip AND t.a_port = m.a_port
        AND t.b_ip = m.b_ip AND t.b_port = m.b_port AND t.hour_ns = m.hour_ns
    LEFT JOIN tuple_verdict v ON v.cluster = m.cluster AND v.protocol = m.protocol AND v.hour_ns = m.hour_ns
        AND v.client_ip = q.client_ip AND v.client_port = coalesce(q.client_port, -1) AND v.server_ip = q.server_ip
        AND v.server_port = coalesce(q.server_port, -1)
    LEFT JOIN vpc c ON c.hour_ns = m.hour_ns AND c.node_key = CASE WHEN NOT m.other_side THEN m.node_key ELSE m.receiver_node_key END
    LEFT JOIN split s ON m.tunnel AND s.hour_ns = m.hour_ns AND s.node_key = m.node_key AND s.direction = m.direction
        AND s.other_side = m.other_side AND s.sender_node_key = m.sender_node_key AND s.receiver_node_key = m.receiver_node_key
    -- the sender's meter, or the receiver's own where the sender is no node
    WHERE (m.direction = 'out' OR (NOT m.other_side AND m.sender_node_key = -1)) AND s.node_key IS NULL
    UNION ALL
    SELECT hour_ns, cluster, locality, verdict, 0, 0, CAST(shared_bytes AS DOUBLE), 2, coverage,
        client_zone_key, client_job_key, client_role, client_name, client_reason,
        server_zone_key, server_job_key, server_role, server_name, server_reason
    FROM flow_tunnel WHERE direction = 'out' AND shared_bytes > 0
), sided AS (
    SELECT *, client_job_key <> -1 OR server_job_key = -1 AS from_client FROM part
), named AS (
    SELECT hour_ns, cluster, locality, verdict, connections, attempts, bytes, basis_rank, coverage,
        CASE WHEN from_client THEN client_job_key ELSE server_job_key END AS job_key,
        CASE WHEN from_client THEN client_role ELSE server_role END AS role,
        CASE WHEN from_client THEN server_job_key ELSE client_job_key END AS peer_job_key,
        CASE WHEN from_client THEN server_role ELSE client_role END AS peer_role,
        CASE WHEN from_client THEN server_name ELSE client_name END AS peer_name,
        client_zone_key AS source_zone_key, server_zone_key AS destination_zone_key,
        CASE WHEN from_client THEN coalesce(client_reason, server_reason) ELSE coalesce(server_reason, client_reason) END AS reason
    FROM sided
)
SELECT ns_date(hour_ns) AS date, ns_hour(hour_ns) AS hour_utc, cluster, job_key, role, peer_job_key, peer_role, peer_name,
    source_zone_key, destination_zone_key, locality, verdict, CAST(sum(connections) AS BIGINT) AS connections,
    CAST(sum(attempts) AS BIGINT) AS attempts, sum(bytes) AS bytes,
    CASE max(basis_rank) WHEN 2 THEN 'flow_share' WHEN 1 THEN 'measured_bytes' ELSE 'none' END AS basis,
    coalesce(avg(coverage), 0.0) AS coverage, reason
FROM named
GROUP BY hour_ns, cluster, job_key, role, peer_job_key, peer_role, peer_name, source_zone_key, destination_zone_key, locality, verdict, reason
