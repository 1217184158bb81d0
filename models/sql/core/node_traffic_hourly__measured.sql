-- One portion at one meter: the node's own record, or the peer's where the node has none (the hour is not logged, or lost data).
WITH logged AS (
    SELECT DISTINCT node_key, hour_ns FROM flow_metered
), lossy AS (
    SELECT DISTINCT n.node_key, CAST(ts_to_ns(c.hour_utc) AS BIGINT) AS hour_ns
    FROM core.flow_coverage_hourly c JOIN core.node_life n ON n.cluster = c.cluster AND n.name = c.node_name
    WHERE c.date = $from_date AND c.vpc_coverage < 1
), peer AS (
    SELECT m.pair_id, m.receiver_node_key AS node_key, 'in' AS direction, m.* EXCLUDE (pair_id, node_key, direction)
    FROM flow_metered m WHERE m.direction = 'out' AND m.receiver_node_key <> -1 AND m.receiver_node_key <> m.node_key
    UNION ALL
    SELECT m.pair_id, m.sender_node_key, 'out', m.* EXCLUDE (pair_id, node_key, direction)
    FROM flow_metered m WHERE m.direction = 'in' AND m.sender_node_key <> -1 AND m.sender_node_key <> m.node_key
), missing AS (
    SELECT p.* FROM peer p LEFT JOIN logged g ON g.node_key = p.node_key AND g.hour_ns = p.hour_ns
    LEFT JOIN lossy l ON l.node_key = p.node_key AND l.hour_ns = p.hour_ns
    LEFT JOIN (SELECT DISTINCT node_key, direction, hour_ns, protocol, a_ip, a_port, b_ip, b_port, source_first FROM flow_metered) own
        ON own.node_key = p.node_key AND own.direction = p.direction AND own.hour_ns = p.hour_ns AND own.protocol = p.protocol
        AND own.a_ip = p.a_ip AND own.a_port = p.a_port AND own.b_ip = p.b_ip AND own.b_port = p.b_port
        AND own.source_first = p.source_first
    WHERE g.node_key IS NULL OR (l.node_key IS NOT NULL AND own.node_key IS NULL)
)
SELECT pair_id, node_key, direction, hour_ns, cluster, protocol, a_ip, a_port, b_ip, b_port, source_first, sender_is_client,
    sender_node_key, receiver_node_key, traffic_path, tunnel, bytes, false AS other_side FROM flow_metered
UNION ALL
SELECT pair_id, node_key, direction, hour_ns, cluster, protocol, a_ip, a_port, b_ip, b_port, source_first, sender_is_client,
    sender_node_key, receiver_node_key, traffic_path, tunnel, bytes, true FROM missing
