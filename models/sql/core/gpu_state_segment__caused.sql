-- One idle or starting stretch (or a part of one) with the first cause of G4 that holds in it.
WITH wanted AS MATERIALIZED (
    SELECT row_number() OVER () AS piece_id, p.*, h.run, h.fractional
    FROM gpu_piece AS p
    JOIN gpu_holder AS h ON h.cluster = p.cluster AND h.pod_uid = p.pod_uid
    WHERE p.state IN ('idle', 'starting')
), candidate AS (
    SELECT w.piece_id, greatest(w.from_ns, s.from_ns) AS from_ns, least(w.to_ns, s.to_ns) AS to_ns, s.rank, s.cause
    FROM wanted AS w
    JOIN gpu_cause_span AS s
        ON s.run = w.run AND (s.pod_uid IS NULL OR s.pod_uid = w.pod_uid) AND s.from_ns < w.to_ns AND s.to_ns > w.from_ns
), edge AS (
    SELECT piece_id, from_ns AS at_ns FROM candidate
    UNION SELECT piece_id, to_ns FROM candidate
    UNION SELECT piece_id, from_ns FROM wanted
    UNION SELECT piece_id, to_ns FROM wanted
), part AS (
    SELECT piece_id, at_ns AS from_ns, lead(at_ns) OVER (PARTITION BY piece_id ORDER BY at_ns) AS to_ns FROM edge
), named AS (
    SELECT p.piece_id, p.from_ns, p.to_ns, arg_min(c.cause, c.rank) AS cause
    FROM part AS p
    LEFT JOIN candidate AS c ON c.piece_id = p.piece_id AND c.from_ns <= p.from_ns AND p.to_ns <= c.to_ns
    WHERE p.to_ns IS NOT NULL
    GROUP BY p.piece_id, p.from_ns, p.to_ns
), filled AS (
    SELECT
        w.* EXCLUDE (from_ns, to_ns, cause), n.from_ns, n.to_ns,
        coalesce(
            n.cause,
            CASE
                -- whose activity a shared device shows is not known (G2); that it showed none is
                WHEN w.pause AND NOT w.fractional THEN 'pause'
                WHEN w.state = 'idle' AND (a.first_active_ns IS NULL OR a.first_active_ns >= n.to_ns) THEN 'no_work'
                ELSE 'unexplained'
            END
        ) AS cause
    FROM named AS n
    JOIN wanted AS w ON w.piece_id = n.piece_id
    LEFT JOIN gpu_activity AS a
        ON a.cluster = w.cluster AND a.pod_uid = w.pod_uid AND a.gpu_uuid = w.gpu_uuid AND a.gpu_instance = w.gpu_instance
), changed AS (
    SELECT *, coalesce(cause <> lag(cause) OVER (PARTITION BY piece_id ORDER BY from_ns), true) AS new_stretch
    FROM filled
), numbered AS (
    SELECT *, sum(CAST(new_stretch AS INTEGER)) OVER (PARTITION BY piece_id ORDER BY from_ns) AS number
    FROM changed
)
SELECT
    cluster, node_key, gpu_uuid, gpu_instance, pod_uid, CAST(min(from_ns) AS BIGINT) AS from_ns, CAST(max(to_ns) AS BIGINT) AS to_ns,
    state, cause, basis, activity, work, weight
FROM numbered
GROUP BY piece_id, number, cluster, node_key, gpu_uuid, gpu_instance, pod_uid, state, cause, basis, activity, work, weight
