-- One Hubble event about a packet of the day, its two ends in a fixed order (a before b); socket, L7 and capture events are none.
WITH event AS (
    SELECT *, coalesce(source_port, -1) AS sport, coalesce(destination_port, -1) AS dport FROM staging.hubble_flow
    WHERE time_ns >= $from_ns AND time_ns < $to_ns
      AND source_ip IS NOT NULL AND destination_ip IS NOT NULL
      AND coalesce(flow_type, 'L3_L4') = 'L3_L4'
      AND coalesce(verdict, 'VERDICT_UNKNOWN') NOT IN ('TRACED', 'TRANSLATED')
      AND coalesce(event_type, 4) IN (1, 4, 5)
), placed AS (
    SELECT *, source_ip < destination_ip OR (source_ip = destination_ip AND sport <= dport) AS source_first FROM event
)
SELECT cluster, node_name, time_ns, events, coalesce(protocol, 'unknown') AS protocol, source_first,
    CASE WHEN source_first THEN source_ip ELSE destination_ip END AS a_ip,
    CASE WHEN source_first THEN sport ELSE dport END AS a_port,
    CASE WHEN source_first THEN destination_ip ELSE source_ip END AS b_ip,
    CASE WHEN source_first THEN dport ELSE sport END AS b_port,
    is_reply,
    coalesce(event_type, 4) = 4 AND verdict IN ('FORWARDED', 'REDIRECTED') AS forwarded,
    coalesce(observation_point, '') AS point,
    coalesce(verdict = 'DROPPED', false) AS dropped,
    coalesce(verdict = 'DROPPED' AND drop_reason IN ('POLICY_DENIED', 'POLICY_DENY', 'AUTH_REQUIRED', '133', '181', '189'), false)
        AS policy_dropped,
    coalesce(verdict = 'AUDIT', false) AS audited,
    coalesce(tcp_syn AND NOT coalesce(tcp_ack, false) AND NOT coalesce(is_reply, false), false) AS opens,
    coalesce(tcp_syn AND tcp_ack, false) AS accepts,
    -- proof that the two ends talk (T2)
    coalesce(verdict NOT IN ('DROPPED', 'ERROR'), true)
        AND (coalesce(is_reply, false) OR coalesce(observation_point = 'TO_ENDPOINT' AND verdict IN ('FORWARDED', 'REDIRECTED')
            AND protocol = 'TCP' AND NOT tcp_syn, false)) AS answered,
    source_namespace, source_pod, source_cluster, source_reserved, source_local,
    destination_namespace, destination_pod, destination_cluster, destination_reserved, destination_local,
    node_zone, json_extract_string(destination_names, '$[0]') AS destination_dns
FROM placed
