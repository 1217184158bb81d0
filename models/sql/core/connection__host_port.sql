-- One stretch of time, node, protocol and port that exactly one live host-network pod declares (P3 a).
WITH declared AS (
    SELECT DISTINCT p.cluster, p.node_key, p.pod_uid, p.held_from_ns AS from_ns,
        coalesce(p.held_to_ns, 9223372036854775807) AS to_ns,
        upper(coalesce(json_extract_string(d.port, '$.protocol'), 'TCP')) AS protocol,
        TRY_CAST(json_extract_string(d.port, '$.port') AS BIGINT) AS port
    FROM core.pod_life p, unnest(CAST(coalesce(p.ports, '[]') AS JSON[])) AS d(port)
    WHERE p.host_network AND p.node_key <> -1 AND p.held_from_ns IS NOT NULL AND p.held_from_ns < $to_ns
      AND coalesce(p.held_to_ns, 9223372036854775807) > $from_ns
), boundary AS (
    SELECT cluster, node_key, protocol, port, from_ns AS at_ns FROM declared WHERE port IS NOT NULL
    UNION SELECT cluster, node_key, protocol, port, to_ns FROM declared WHERE port IS NOT NULL
), stretch AS (
    SELECT cluster, node_key, protocol, port, at_ns AS from_ns,
        lead(at_ns) OVER (PARTITION BY cluster, node_key, protocol, port ORDER BY at_ns) AS to_ns
    FROM boundary
)
SELECT s.cluster, s.node_key, s.protocol, s.port, greatest(s.from_ns, $from_ns) AS from_ns, least(s.to_ns, $to_ns) AS to_ns,
    min(d.pod_uid) AS pod_uid
FROM stretch s
JOIN declared d ON d.cluster = s.cluster AND d.node_key = s.node_key AND d.protocol = s.protocol AND d.port = s.port
    AND s.from_ns >= d.from_ns AND s.from_ns < d.to_ns
WHERE s.to_ns IS NOT NULL AND s.from_ns < $to_ns AND s.to_ns > $from_ns
GROUP BY ALL
HAVING count(DISTINCT d.pod_uid) = 1
