-- One connection (client, server, protocol) and hour, from all its sightings (T2).
WITH point AS (
    SELECT cluster, protocol, a_ip, a_port, b_ip, b_port, sequence, hour_ns, node_name, source_first,
        CAST(sum(to_endpoint) AS BIGINT) AS to_endpoint,
        CAST(greatest(sum(to_stack), sum(to_overlay), sum(to_network), sum(to_other)) AS BIGINT) AS egress
    FROM flow_sighting GROUP BY ALL
), directed AS (
    -- one observation class: what arrived at the receiver, else what left at the sender's busiest point
    SELECT cluster, protocol, a_ip, a_port, b_ip, b_port, sequence, hour_ns, source_first,
        CAST(sum(to_endpoint) AS BIGINT) AS arrived, max(egress) AS sent
    FROM point GROUP BY ALL
), receiving AS (
    SELECT DISTINCT cluster, node_name, hour_ns FROM flow_sighting WHERE to_endpoint > 0
), pair AS (
    SELECT p.*, r.* EXCLUDE (pair_id) FROM flow_pair p JOIN traffic_resolved r ON r.pair_id = p.pair_id
), whole AS (
    SELECT p.pair_id, min(s.first_ns) AS first_ns, max(s.last_ns) AS last_ns, max(s.answered_ns) AS answered_ns,
        CAST(sum(s.drops) AS BIGINT) AS drops, CAST(sum(s.policy_drops) AS BIGINT) AS policy_drops, CAST(sum(s.audits) AS BIGINT) AS audits,
        CAST(sum(CASE WHEN s.node_name = p.client_node_name THEN s.records ELSE 0 END) AS BIGINT) AS sightings_client_node,
        CAST(sum(CASE WHEN s.node_name = p.server_node_name THEN s.records ELSE 0 END) AS BIGINT) AS sightings_server_node,
        min(c.coverage) AS observer_coverage
    FROM pair p
    JOIN flow_sighting s USING (cluster, protocol, a_ip, a_port, b_ip, b_port, sequence, hour_ns)
    LEFT JOIN core.flow_coverage_hourly c ON c.date = $from_date AND c.cluster = s.cluster AND c.node_name = s.node_name
        AND c.hour_utc = ns_hour(s.hour_ns)
    GROUP BY p.pair_id
), bytes AS (
    SELECT cluster, protocol, a_ip, a_port, b_ip, b_port, hour_ns,
        greatest(sum(CASE WHEN source_first AND direction = 'out' THEN bytes ELSE 0 END),
                 sum(CASE WHEN source_first AND direction = 'in' THEN bytes ELSE 0 END)) AS a_bytes,
        greatest(sum(CASE WHEN NOT source_first AND direction = 'out' THEN bytes ELSE 0 END),
                 sum(CASE WHEN NOT source_first AND direction = 'in' THEN bytes ELSE 0 END)) AS b_bytes
    FROM flow_metered WHERE a_port >= 0 GROUP BY ALL
)
SELECT ns_date(p.hour_ns) AS date, ns_hour(p.hour_ns) AS hour_utc, p.cluster,
    stable_key(concat_ws(chr(31), p.cluster, p.protocol, p.client_ip, coalesce(p.client_port, -1), p.server_ip,
        coalesce(p.server_port, -1), CAST(ns_date(p.hour_ns) AS VARCHAR), p.sequence)) AS connection_id,
    p.protocol, p.client_ip, p.client_port, p.server_ip, p.server_port,
    p.client_pod_uid, p.client_node_key, p.client_zone_key, p.client_job_key, p.client_role, p.client_name, p.client_resolved_by,
    p.client_reason,
    p.server_pod_uid, p.server_node_key, p.server_zone_key, p.server_job_key, p.server_role, p.server_name, p.server_resolved_by,
    p.server_reason, p.locality,
    CASE WHEN w.answered_ns IS NOT NULL OR (b.a_bytes >= 1000 AND b.b_bytes >= 1000) THEN 'connected'
         WHEN w.policy_drops > 0 THEN 'dropped' WHEN w.audits > 0 THEN 'audit' ELSE 'unanswered' END AS verdict,
    w.first_ns, w.last_ns, w.answered_ns,
    CASE WHEN coalesce(q.arrived, 0) > 0 THEN q.arrived
         WHEN p.server_resolved_by IN ('pod', 'ip') AND rs.node_name IS NOT NULL THEN 0 ELSE coalesce(q.sent, 0) END AS request_events,
    CASE WHEN coalesce(y.arrived, 0) > 0 THEN y.arrived
         WHEN p.client_resolved_by IN ('pod', 'ip') AND rc.node_name IS NOT NULL THEN 0 ELSE coalesce(y.sent, 0) END AS reply_events,
    w.drops AS drop_records, w.sightings_client_node, w.sightings_server_node,
    coalesce(least(cc.coverage, cs.coverage), w.observer_coverage, 0.0) AS coverage
FROM pair p
JOIN whole w ON w.pair_id = p.pair_id
LEFT JOIN directed q ON q.cluster = p.cluster AND q.protocol = p.protocol AND q.a_ip = p.a_ip AND q.a_port = p.a_port
    AND q.b_ip = p.b_ip AND q.b_port = p.b_port AND q.sequence = p.sequence AND q.hour_ns = p.hour_ns AND q.source_first = p.a_is_client
LEFT JOIN directed y ON y.cluster = p.cluster AND y.protocol = p.protocol AND y.a_ip = p.a_ip AND y.a_port = p.a_port
    AND y.b_ip = p.b_ip AND y.b_port = p.b_port AND y.sequence = p.sequence AND y.hour_ns = p.hour_ns AND y.source_first <> p.a_is_client
LEFT JOIN receiving rs ON rs.cluster = p.cluster AND rs.node_name = p.server_node_name AND rs.hour_ns = p.hour_ns
LEFT JOIN receiving rc ON rc.cluster = p.cluster AND rc.node_name = p.client_node_name AND rc.hour_ns = p.hour_ns
LEFT JOIN core.flow_coverage_hourly cc ON cc.date = $from_date AND cc.cluster = p.cluster AND cc.node_name = p.client_node_name
    AND cc.hour_utc = ns_hour(p.hour_ns)
LEFT JOIN core.flow_coverage_hourly cs ON cs.date = $from_date AND cs.cluster = p.cluster AND cs.node_name = p.server_node_name
    AND cs.hour_utc = ns_hour(p.hour_ns)
LEFT JOIN bytes b ON b.cluster = p.cluster AND b.protocol = p.protocol AND b.a_ip = p.a_ip AND b.a_port = p.a_port
    AND b.b_ip = p.b_ip AND b.b_port = p.b_port AND b.hour_ns = p.hour_ns
