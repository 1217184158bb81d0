-- One SYN (or packet) that was dropped or audited, however many records of one node saw it within half a second.
WITH record AS (
    SELECT cluster, node_name, time_ns, coalesce(protocol, 'unknown') AS protocol, source_ip, source_port, destination_ip,
        destination_port, source_namespace, source_pod, source_cluster, source_reserved, source_local, destination_namespace,
        destination_pod, destination_cluster, destination_reserved, destination_local, node_zone,
        json_extract_string(destination_names, '$[0]') AS destination_dns, verdict = 'AUDIT' AS audited, policies,
        CASE drop_reason WHEN '133' THEN 'POLICY_DENIED' WHEN '181' THEN 'POLICY_DENY' WHEN '189' THEN 'AUTH_REQUIRED'
            ELSE drop_reason END AS drop_reason
    FROM staging.hubble_flow
    -- half a second before the day too, so that a packet seen across midnight has one second
    WHERE time_ns >= $from_ns - 500000000 AND time_ns < $to_ns AND verdict IN ('DROPPED', 'AUDIT')
      AND coalesce(flow_type, 'L3_L4') = 'L3_L4' AND (source_ip IS NOT NULL OR source_pod IS NOT NULL)
), gap AS (
    SELECT *, time_ns - lag(time_ns) OVER packet AS since_ns FROM record
    WINDOW packet AS (PARTITION BY cluster, node_name, protocol, source_ip, source_port, destination_ip, destination_port, source_pod,
        destination_pod, audited ORDER BY time_ns)
), numbered AS (
    SELECT *, sum(CASE WHEN since_ns <= 500000000 THEN 0 ELSE 1 END) OVER (PARTITION BY cluster, node_name, protocol, source_ip,
        source_port, destination_ip, destination_port, source_pod, destination_pod, audited ORDER BY time_ns
        ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS packet_number
    FROM gap
), packet AS (
    SELECT cluster, node_name, protocol, source_ip, source_port, destination_ip, destination_port, source_namespace, source_pod,
        source_cluster, source_reserved, destination_namespace, destination_pod, destination_cluster, destination_reserved, audited,
        packet_number, min(time_ns) AS at_ns, count(*) AS records,
        coalesce(min(CASE WHEN drop_reason IN ('POLICY_DENIED', 'POLICY_DENY', 'AUTH_REQUIRED') THEN drop_reason END),
                 min(drop_reason)) AS drop_reason,
        bool_or(source_local) AS source_local, bool_or(destination_local) AS destination_local, max(node_zone) AS node_zone,
        max(destination_dns) AS destination_dns, max(policies) AS policies
    FROM numbered GROUP BY ALL
)
SELECT row_number() OVER () + 2199023255552 AS pair_id, *, at_ns // 1000000000 * 1000000000 AS second_ns
FROM packet WHERE at_ns >= $from_ns
