-- One VPC flow record and hour of the day: its bytes pro-rated over the record's span; the portions sum to the record's bytes.
WITH record AS (
    SELECT *, CASE WHEN end_ns > start_ns THEN end_ns ELSE start_ns + 1000000000 END AS stop_ns, coalesce(source_port, -1) AS sport,
        coalesce(destination_port, -1) AS dport,
        CASE protocol WHEN 6 THEN 'TCP' WHEN 17 THEN 'UDP' WHEN 132 THEN 'SCTP' WHEN 1 THEN 'ICMPv4' WHEN 58 THEN 'ICMPv6'
            WHEN 50 THEN 'ESP' ELSE coalesce(CAST(protocol AS VARCHAR), 'unknown') END AS protocol_name
    FROM staging.vpc_flow
    -- a rejected packet moved nothing (T4)
    WHERE start_ns < $to_ns AND end_ns + 1000000000 > $from_ns AND coalesce(action, 'ACCEPT') = 'ACCEPT' AND bytes > 0
), hourly AS (
    SELECT r.*, CAST(g.hour_number * 3600000000000 AS BIGINT) AS hour_ns,
        greatest(r.start_ns, CAST(g.hour_number * 3600000000000 AS BIGINT)) AS from_ns,
        least(r.stop_ns, CAST((g.hour_number + 1) * 3600000000000 AS BIGINT)) AS to_ns
    FROM record r, unnest(generate_series(r.start_ns // 3600000000000, (r.stop_ns - 1) // 3600000000000)) AS g(hour_number)
), portion AS (
    SELECT *, CAST(CAST(bytes AS HUGEINT) * (to_ns - start_ns) // (stop_ns - start_ns)
        - CAST(bytes AS HUGEINT) * (from_ns - start_ns) // (stop_ns - start_ns) AS BIGINT) AS portion_bytes,
        from_ns + (to_ns - from_ns) // 2 AS at_ns,
        source_ip < destination_ip OR (source_ip = destination_ip AND sport <= dport) AS source_first
    FROM hourly WHERE hour_ns >= $from_ns AND hour_ns < $to_ns
), ordered AS (
    SELECT *, CASE WHEN source_first THEN source_ip ELSE destination_ip END AS a_ip,
        CASE WHEN source_first THEN sport ELSE dport END AS a_port,
        CASE WHEN source_first THEN destination_ip ELSE source_ip END AS b_ip,
        CASE WHEN source_first THEN dport ELSE sport END AS b_port
    FROM portion WHERE portion_bytes > 0
), known AS (
    SELECT cluster, protocol, a_ip, a_port, b_ip, b_port, arg_min(a_is_client, sequence) AS a_is_client
    FROM flow_orientation GROUP BY ALL
), oriented AS (
    -- without a Hubble record of it, the server is the end with the lower port
    SELECT o.*, coalesce(k.a_is_client, o.a_port >= o.b_port) AS a_is_client
    FROM ordered o
    LEFT JOIN known k ON k.cluster = o.cluster AND k.protocol = o.protocol_name AND k.a_ip = o.a_ip AND k.a_port = o.a_port
        AND k.b_ip = o.b_ip AND k.b_port = o.b_port
)
SELECT row_number() OVER () + 1099511627776 AS pair_id, cluster, interface_id, nullif(instance_id, '') AS instance_id, flow_direction,
    outer_source_ip, outer_destination_ip, traffic_path, hour_ns, at_ns, protocol_name AS protocol, a_ip, a_port, b_ip, b_port,
    portion_bytes AS bytes, source_first, source_first = a_is_client AS sender_is_client,
    CASE WHEN a_is_client THEN a_ip ELSE b_ip END AS client_ip,
    nullif(CASE WHEN a_is_client THEN a_port ELSE b_port END, -1) AS client_port,
    CASE WHEN a_is_client THEN b_ip ELSE a_ip END AS server_ip,
    nullif(CASE WHEN a_is_client THEN b_port ELSE a_port END, -1) AS server_port
FROM oriented
