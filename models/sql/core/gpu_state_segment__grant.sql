-- One stretch of a node's GPUs within the day: who holds how many, or why nobody does. At any instant they sum to the node's GPUs (G1).
WITH pod AS (
    SELECT
        cluster, node_key, pod_uid, gpus, held_from_ns AS bound_ns, started_ns,
        greatest(held_from_ns, $from_ns) AS from_ns,
        least(held_to_ns, $to_ns) AS to_ns
    FROM gpu_holder
    WHERE held_from_ns < $to_ns AND held_to_ns > $from_ns
), node AS (
    SELECT cluster, node_key, gpus AS capacity, greatest(valid_from_ns, $from_ns) AS from_ns, least(valid_to_ns, $to_ns) AS to_ns
    FROM core.node_life
    WHERE gpus > 0 AND valid_from_ns < $to_ns AND valid_to_ns > $from_ns
    UNION ALL
    -- pods on a node that was never seen, or never with GPUs: what they hold is all that is known of it
    SELECT p.cluster, p.node_key, NULL, min(p.from_ns), max(p.to_ns)
    FROM pod AS p
    WHERE p.node_key NOT IN (SELECT n.node_key FROM core.node_life AS n WHERE n.gpus > 0)
    GROUP BY p.cluster, p.node_key
), sighting AS (
    SELECT
        stable_key(cluster || chr(31) || uid) AS node_key, observed_ns AS from_ns,
        lead(observed_ns) OVER (PARTITION BY cluster, uid ORDER BY observed_ns, object_id) AS to_ns,
        coalesce(unschedulable, false) AS cordoned,
        greatest(0, coalesce(gpus - gpus_allocatable, 0)) AS unhealthy
    FROM staging.node_observation
    WHERE observed_ns >= $from_ns - $day_length_ns AND observed_ns < $to_ns
), troubled AS (
    SELECT node_key, from_ns, coalesce(to_ns, $to_ns) AS to_ns, cordoned, unhealthy
    FROM sighting
    WHERE (cordoned OR unhealthy > 0) AND coalesce(to_ns, $to_ns) > from_ns
), cut AS (
    SELECT cluster, node_key, from_ns AS at_ns FROM node
    UNION SELECT cluster, node_key, to_ns FROM node
    UNION SELECT cluster, node_key, from_ns FROM pod
    UNION SELECT cluster, node_key, to_ns FROM pod
    UNION SELECT cluster, node_key, started_ns FROM pod
    UNION SELECT n.cluster, n.node_key, c.from_ns FROM node AS n JOIN core.placement_coverage AS c ON c.cluster = n.cluster
    UNION SELECT n.cluster, n.node_key, c.to_ns FROM node AS n JOIN core.placement_coverage AS c ON c.cluster = n.cluster
    UNION SELECT n.cluster, n.node_key, t.from_ns FROM node AS n JOIN troubled AS t ON t.node_key = n.node_key
    UNION SELECT n.cluster, n.node_key, t.to_ns FROM node AS n JOIN troubled AS t ON t.node_key = n.node_key
), inside AS (
    SELECT DISTINCT n.cluster, n.node_key, n.capacity, c.at_ns, n.to_ns AS end_ns
    FROM node AS n
    JOIN cut AS c ON c.cluster = n.cluster AND c.node_key = n.node_key AND c.at_ns >= n.from_ns AND c.at_ns < n.to_ns
), span AS (
    SELECT
        cluster, node_key, capacity, at_ns AS from_ns,
        coalesce(lead(at_ns) OVER (PARTITION BY cluster, node_key ORDER BY at_ns), end_ns) AS to_ns
    FROM inside
), known AS (
    SELECT
        s.*,
        EXISTS (
            SELECT 1 FROM core.placement_coverage AS c
            WHERE c.cluster = s.cluster AND c.from_ns <= s.from_ns AND s.from_ns < c.to_ns
        ) AS covered
    FROM span AS s
), asked AS (
    SELECT
        k.cluster, k.node_key, k.capacity, k.from_ns, k.to_ns, p.pod_uid, p.gpus, k.from_ns < p.started_ns AS starting,
        -- a GPU is bound again only when it was released: where ends are uncertain, the later binding is right
        coalesce(sum(p.gpus) OVER (
            PARTITION BY k.cluster, k.node_key, k.from_ns ORDER BY p.bound_ns DESC, p.pod_uid
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ), 0) AS taken
    FROM known AS k
    JOIN pod AS p ON p.cluster = k.cluster AND p.node_key = k.node_key AND p.from_ns <= k.from_ns AND k.from_ns < p.to_ns
    WHERE k.covered
), granted AS (
    SELECT *, CASE WHEN capacity IS NULL THEN gpus ELSE least(gpus, greatest(0, capacity - taken)) END AS weight
    FROM asked
), free AS (
    SELECT
        k.cluster, k.node_key, k.from_ns, k.to_ns,
        k.capacity - coalesce((
            SELECT sum(g.weight) FROM granted AS g
            WHERE g.cluster = k.cluster AND g.node_key = k.node_key AND g.from_ns = k.from_ns
        ), 0) AS weight
    FROM known AS k
    WHERE k.covered AND k.capacity IS NOT NULL
), unused AS (
    SELECT
        f.cluster, f.node_key, f.from_ns, f.to_ns, f.weight,
        least(f.weight, coalesce(max(t.unhealthy), 0)) AS unhealthy,
        coalesce(bool_or(t.cordoned), false) AS cordoned
    FROM free AS f
    LEFT JOIN troubled AS t ON t.node_key = f.node_key AND t.from_ns <= f.from_ns AND f.from_ns < t.to_ns
    GROUP BY f.cluster, f.node_key, f.from_ns, f.to_ns, f.weight
), stretch AS (
    SELECT cluster, node_key, from_ns, to_ns, CAST(NULL AS VARCHAR) AS pod_uid, capacity AS weight, 'no_placement' AS kind
    FROM known
    WHERE NOT covered AND capacity IS NOT NULL
    UNION ALL
    SELECT cluster, node_key, from_ns, to_ns, pod_uid, weight, CASE WHEN starting THEN 'starting' ELSE 'held' END FROM granted
    UNION ALL
    SELECT cluster, node_key, from_ns, to_ns, NULL, unhealthy, 'unhealthy' FROM unused
    UNION ALL
    SELECT cluster, node_key, from_ns, to_ns, NULL, weight - unhealthy, CASE WHEN cordoned THEN 'unschedulable' ELSE 'free' END
    FROM unused
), changed AS (
    SELECT
        *,
        coalesce(from_ns <> lag(to_ns) OVER (PARTITION BY cluster, node_key, pod_uid, kind, weight ORDER BY from_ns), true) AS new_stretch
    FROM stretch
    WHERE weight > 1e-9
), numbered AS (
    SELECT *, sum(CAST(new_stretch AS INTEGER)) OVER (PARTITION BY cluster, node_key, pod_uid, kind, weight ORDER BY from_ns) AS number
    FROM changed
)
SELECT
    row_number() OVER (ORDER BY cluster, node_key, pod_uid, kind, weight, min(from_ns)) AS grant_id,
    cluster, node_key, pod_uid, kind, weight, CAST(min(from_ns) AS BIGINT) AS from_ns, CAST(max(to_ns) AS BIGINT) AS to_ns
FROM numbered
GROUP BY cluster, node_key, pod_uid, kind, weight, number
