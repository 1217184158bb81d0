-- One connection and hour, client and server told apart, with what is needed to resolve its ends.
WITH seen AS (
    SELECT cluster, protocol, a_ip, a_port, b_ip, b_port, sequence, hour_ns, min(first_ns) AS first_ns, max(last_ns) AS last_ns,
        -- both ends on the observing node (identity `host` is the node itself): the same zone, whichever it is
        bool_or(coalesce((source_local OR source_reserved = 'host') AND (destination_local OR destination_reserved = 'host'), false))
            AS same_node
    FROM flow_sighting GROUP BY ALL
)
SELECT row_number() OVER () AS pair_id, s.cluster, s.protocol, s.a_ip, s.a_port, s.b_ip, s.b_port, s.sequence, s.hour_ns,
    s.first_ns, s.last_ns, s.first_ns + (s.last_ns - s.first_ns) // 2 AS at_ns, o.a_is_client, s.same_node,
    CASE WHEN o.a_is_client THEN s.a_ip ELSE s.b_ip END AS client_ip,
    nullif(CASE WHEN o.a_is_client THEN s.a_port ELSE s.b_port END, -1) AS client_port,
    CASE WHEN o.a_is_client THEN s.b_ip ELSE s.a_ip END AS server_ip,
    nullif(CASE WHEN o.a_is_client THEN s.b_port ELSE s.a_port END, -1) AS server_port,
    CASE WHEN o.a_is_client THEN a.called ELSE b.called END AS client_called,
    CASE WHEN o.a_is_client THEN b.called ELSE a.called END AS server_called
FROM seen s
JOIN flow_orientation o USING (cluster, protocol, a_ip, a_port, b_ip, b_port, sequence)
LEFT JOIN flow_name a ON a.is_a AND a.cluster = s.cluster AND a.protocol = s.protocol AND a.a_ip = s.a_ip AND a.a_port = s.a_port
    AND a.b_ip = s.b_ip AND a.b_port = s.b_port AND a.sequence = s.sequence AND a.hour_ns = s.hour_ns
LEFT JOIN flow_name b ON NOT b.is_a AND b.cluster = s.cluster AND b.protocol = s.protocol AND b.a_ip = s.a_ip AND b.a_port = s.a_port
    AND b.b_ip = s.b_ip AND b.b_port = s.b_port AND b.sequence = s.sequence AND b.hour_ns = s.hour_ns
