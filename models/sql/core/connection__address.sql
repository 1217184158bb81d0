-- One stretch of time, hour bucket and address: who can be behind it then (P2, P3). Stretches of one address never overlap.
-- A stretch outside every interval, but within the clock skew of exactly one, is tolerated.
WITH claim AS (
    SELECT a.cluster, a.ip, a.valid_from_ns AS from_ns, a.valid_to_ns AS to_ns, 1 AS kind, a.rival,
        {'pod_uid': a.pod_uid, 'namespace': p.namespace, 'name': p.name} AS pod, CAST(NULL AS BIGINT) AS node_key,
        CAST(NULL AS VARCHAR) AS service_namespace, CAST(NULL AS VARCHAR) AS service_name, CAST(NULL AS BIGINT) AS service_job_key
    FROM core.pod_address a LEFT JOIN core.pod_life p ON p.cluster = a.cluster AND p.pod_uid = a.pod_uid
    WHERE a.valid_from_ns < a.valid_to_ns
    UNION ALL
    SELECT cluster, ip, valid_from_ns, valid_to_ns, 2, false, NULL, node_key, NULL, NULL, NULL
    FROM core.node_address WHERE valid_from_ns < valid_to_ns
    UNION ALL
    SELECT cluster, ip, valid_from_ns, valid_to_ns, 3, false, NULL, NULL, namespace, name, job_key
    FROM core.service_address WHERE valid_from_ns < valid_to_ns
), near AS (
    SELECT *, from_ns - $skew_ns AS near_from_ns, to_ns + $skew_ns AS near_to_ns FROM claim
    WHERE from_ns - $skew_ns < $to_ns AND to_ns + $skew_ns > $from_ns
), boundary AS (
    SELECT cluster, ip, from_ns AS at_ns FROM near
    UNION SELECT cluster, ip, to_ns FROM near
    UNION SELECT cluster, ip, near_from_ns FROM near
    UNION SELECT cluster, ip, near_to_ns FROM near
), stretch AS (
    SELECT cluster, ip, at_ns AS from_ns, lead(at_ns) OVER (PARTITION BY cluster, ip ORDER BY at_ns) AS to_ns FROM boundary
), held AS (
    SELECT s.cluster, s.ip, s.from_ns, s.to_ns,
        list(DISTINCT n.pod) FILTER (WHERE n.kind = 1 AND s.from_ns >= n.from_ns AND s.from_ns < n.to_ns) AS pods,
        bool_or(n.rival) FILTER (WHERE n.kind = 1 AND s.from_ns >= n.from_ns AND s.from_ns < n.to_ns) AS rival,
        list(DISTINCT n.pod) FILTER (WHERE n.kind = 1) AS near_pods,
        list(DISTINCT n.node_key) FILTER (WHERE n.kind = 2 AND s.from_ns >= n.from_ns AND s.from_ns < n.to_ns) AS nodes,
        list(DISTINCT n.node_key) FILTER (WHERE n.kind = 2) AS near_nodes,
        min({'namespace': n.service_namespace, 'name': n.service_name, 'job_key': n.service_job_key})
            FILTER (WHERE n.kind = 3) AS service
    FROM stretch s
    JOIN near n ON n.cluster = s.cluster AND n.ip = s.ip AND s.from_ns >= n.near_from_ns AND s.from_ns < n.near_to_ns
    WHERE s.to_ns IS NOT NULL
    GROUP BY ALL
), settled AS (
    SELECT cluster, ip, greatest(from_ns, $from_ns) AS from_ns, least(to_ns, $to_ns) AS to_ns,
        CASE WHEN len(pods) > 0 THEN pods
             WHEN len(nodes) > 0 OR service IS NOT NULL THEN NULL
             WHEN len(near_pods) = 1 THEN near_pods END AS pods,
        CASE WHEN len(pods) > 0 THEN len(pods) > 1 OR coalesce(rival, false)
             WHEN len(nodes) > 0 THEN len(nodes) > 1
             WHEN service IS NOT NULL THEN false
             WHEN len(near_pods) > 0 THEN len(near_pods) > 1
             ELSE len(near_nodes) > 1 END AS ambiguous,
        CASE WHEN len(pods) > 0 THEN NULL
             WHEN len(nodes) > 0 THEN CASE WHEN len(nodes) = 1 THEN nodes[1] END
             WHEN service IS NOT NULL OR len(near_pods) > 0 THEN NULL
             WHEN len(near_nodes) = 1 THEN near_nodes[1] END AS node_key,
        CASE WHEN coalesce(len(pods), 0) = 0 AND coalesce(len(nodes), 0) = 0 THEN service END AS service
    FROM held
)
SELECT s.cluster, s.ip, h.hour_ns, s.from_ns, s.to_ns, s.pods, s.ambiguous, s.node_key, s.service
FROM settled s, unnest(generate_series(s.from_ns // 3600000000000, (s.to_ns - 1) // 3600000000000)) AS g(hour_number),
    LATERAL (SELECT CAST(g.hour_number * 3600000000000 AS BIGINT) AS hour_ns) AS h
WHERE s.from_ns < s.to_ns
