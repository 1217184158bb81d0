-- One stretch of time and node: which runs have host-network pods there, with a margin of 60 s (P3).
WITH host_pod AS (
    SELECT cluster, node_key, pod_uid, job_key, role, daemon, held_from_ns AS from_ns,
        coalesce(held_to_ns, 9223372036854775807) AS to_ns
    FROM core.pod_life
    WHERE host_network AND NOT daemon AND node_key <> -1 AND held_from_ns IS NOT NULL AND held_from_ns < $to_ns
      AND coalesce(held_to_ns, 9223372036854775807) > $from_ns - 60000000000
), wide AS (
    SELECT *, from_ns - 60000000000 AS wide_from_ns,
        CASE WHEN to_ns = 9223372036854775807 THEN to_ns ELSE to_ns + 60000000000 END AS wide_to_ns
    FROM host_pod
), boundary AS (
    SELECT cluster, node_key, from_ns AS at_ns FROM wide
    UNION SELECT cluster, node_key, to_ns FROM wide
    UNION SELECT cluster, node_key, wide_from_ns FROM wide
    UNION SELECT cluster, node_key, wide_to_ns FROM wide
), stretch AS (
    SELECT cluster, node_key, at_ns AS from_ns, lead(at_ns) OVER (PARTITION BY cluster, node_key ORDER BY at_ns) AS to_ns
    FROM boundary
), held AS (
    SELECT s.cluster, s.node_key, s.from_ns, s.to_ns,
        list(DISTINCT w.job_key) AS near_jobs,
        list(DISTINCT w.job_key) FILTER (WHERE s.from_ns >= w.from_ns AND s.from_ns < w.to_ns) AS jobs,
        list(DISTINCT w.pod_uid) FILTER (WHERE s.from_ns >= w.from_ns AND s.from_ns < w.to_ns) AS pod_uids,
        list(DISTINCT w.role) FILTER (WHERE s.from_ns >= w.from_ns AND s.from_ns < w.to_ns) AS roles
    FROM stretch s
    JOIN wide w ON w.cluster = s.cluster AND w.node_key = s.node_key
        AND s.from_ns >= w.wide_from_ns AND s.from_ns < w.wide_to_ns
    WHERE s.to_ns IS NOT NULL
    GROUP BY ALL
), gpu AS (
    SELECT h.cluster, h.node_key, h.from_ns, bool_or(p.gpus > 0) AS holds_gpu
    FROM held h JOIN core.pod_life p ON p.cluster = h.cluster AND p.node_key = h.node_key AND p.job_key = h.jobs[1]
        AND p.held_from_ns <= h.from_ns AND coalesce(p.held_to_ns, 9223372036854775807) > h.from_ns
    GROUP BY ALL
), settled AS (
    SELECT h.cluster, h.node_key, greatest(h.from_ns, $from_ns) AS from_ns, least(h.to_ns, $to_ns) AS to_ns, h.near_jobs,
        CASE WHEN len(h.near_jobs) = 1 AND len(h.jobs) = 1 AND h.jobs[1] <> -1 AND g.holds_gpu THEN h.jobs[1] END AS only_job_key,
        CASE WHEN len(h.pod_uids) = 1 THEN h.pod_uids[1] END AS only_pod_uid,
        CASE WHEN len(h.roles) = 1 THEN h.roles[1] END AS only_role
    FROM held h LEFT JOIN gpu g ON g.cluster = h.cluster AND g.node_key = h.node_key AND g.from_ns = h.from_ns
)
SELECT * FROM settled WHERE from_ns < to_ns
