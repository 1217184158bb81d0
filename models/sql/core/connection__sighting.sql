-- One connection and hour as one node saw it, in one direction and under one pair of names: counts by observation point.
SELECT p.cluster, p.protocol, p.a_ip, p.a_port, p.b_ip, p.b_port, coalesce(k.sequence, 0) AS sequence,
    p.time_ns // 3600000000000 * 3600000000000 AS hour_ns, p.node_name, p.source_first,
    p.source_namespace, p.source_pod, p.source_cluster, p.source_reserved, p.source_local,
    p.destination_namespace, p.destination_pod, p.destination_cluster, p.destination_reserved, p.destination_local,
    p.node_zone, p.destination_dns,
    min(p.time_ns) AS first_ns, max(p.time_ns) AS last_ns, count(*) AS records,
    CAST(sum(CASE WHEN p.forwarded AND p.point = 'TO_ENDPOINT' THEN p.events ELSE 0 END) AS BIGINT) AS to_endpoint,
    CAST(sum(CASE WHEN p.forwarded AND p.point = 'TO_STACK' THEN p.events ELSE 0 END) AS BIGINT) AS to_stack,
    CAST(sum(CASE WHEN p.forwarded AND p.point = 'TO_OVERLAY' THEN p.events ELSE 0 END) AS BIGINT) AS to_overlay,
    CAST(sum(CASE WHEN p.forwarded AND p.point = 'TO_NETWORK' THEN p.events ELSE 0 END) AS BIGINT) AS to_network,
    CAST(sum(CASE WHEN p.forwarded AND p.point NOT IN ('TO_ENDPOINT', 'TO_STACK', 'TO_OVERLAY', 'TO_NETWORK')
        AND NOT starts_with(p.point, 'FROM_') THEN p.events ELSE 0 END) AS BIGINT) AS to_other,
    CAST(sum(CASE WHEN p.is_reply THEN p.events ELSE 0 END) AS BIGINT) AS reply_events,
    CAST(sum(CASE WHEN NOT p.is_reply THEN p.events ELSE 0 END) AS BIGINT) AS forward_events,
    count(*) FILTER (WHERE p.opens) AS opens, count(*) FILTER (WHERE p.accepts) AS accepts,
    count(*) FILTER (WHERE p.dropped) AS drops, count(*) FILTER (WHERE p.policy_dropped) AS policy_drops,
    count(*) FILTER (WHERE p.audited) AS audits,
    max(CASE WHEN p.answered THEN p.time_ns END) AS answered_ns
FROM flow_packet p
LEFT JOIN flow_break k ON k.cluster = p.cluster AND k.protocol = p.protocol AND k.a_ip = p.a_ip AND k.a_port = p.a_port
    AND k.b_ip = p.b_ip AND k.b_port = p.b_port AND p.time_ns >= k.from_ns AND p.time_ns < k.to_ns
GROUP BY ALL
