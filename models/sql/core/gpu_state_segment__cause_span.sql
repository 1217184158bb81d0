-- One stretch of one pod, or of all pods of a run (pod_uid null), in which a cause of G4 holds; rank is the order of the rule.
WITH pod AS (
    SELECT
        h.cluster, h.pod_uid, h.run, h.held_from_ns, h.started_ns, p.ready_to_start_ns, p.initialized_ns,
        p.image_pulling_from_ns, p.image_pulling_to_ns, p.waiting_reason, p.main_started_ns
    FROM gpu_holder AS h
    JOIN core.pod_life AS p ON p.cluster = h.cluster AND p.pod_uid = h.pod_uid
    WHERE h.held_from_ns < $to_ns AND h.held_to_ns > $from_ns
), wanted AS (
    SELECT DISTINCT run FROM pod
), run_pod AS (
    SELECT
        w.run, p.cluster, p.pod_uid, p.role, p.succeeded, p.finished_ns, coalesce(p.attempt, 1) AS attempt,
        coalesce(p.created_ns, p.held_from_ns) AS created_ns,
        coalesce(
            p.main_started_ns,
            CASE WHEN p.phase IN ('Running', 'Succeeded') OR p.succeeded
                THEN coalesce(p.initialized_ns, p.ready_to_start_ns, p.held_from_ns) END
        ) AS started_ns,
        coalesce(p.held_to_ns, $forever_ns) AS gone_ns
    FROM core.pod_life AS p
    JOIN wanted AS w
        ON w.run = CASE WHEN p.job_key = -1 THEN p.cluster || chr(31) || p.pod_uid ELSE CAST(p.job_key AS VARCHAR) END
), member AS (
    SELECT * FROM run_pod WHERE role IN ('coordinator', 'worker')
), gang AS (
    SELECT CAST(j.job_key AS VARCHAR) AS run, j.declared_size
    FROM core.job_run AS j
    JOIN wanted AS w ON w.run = CAST(j.job_key AS VARCHAR)
    WHERE j.gang
), change AS (
    SELECT m.run, m.started_ns AS at_ns, 1 AS step FROM member AS m JOIN gang AS g ON g.run = m.run WHERE m.started_ns IS NOT NULL
    UNION ALL
    -- a member that succeeded stays counted
    SELECT m.run, m.gone_ns, -1 FROM member AS m JOIN gang AS g ON g.run = m.run WHERE m.started_ns IS NOT NULL AND NOT m.succeeded
    UNION ALL
    SELECT run, 0, 0 FROM gang
), present AS (
    SELECT run, at_ns, sum(sum(step)) OVER (PARTITION BY run ORDER BY at_ns) AS members FROM change GROUP BY run, at_ns
), level AS (
    SELECT
        p.run, p.at_ns AS from_ns, coalesce(lead(p.at_ns) OVER (PARTITION BY p.run ORDER BY p.at_ns), $forever_ns) AS to_ns,
        p.members < g.declared_size AS short
    FROM present AS p
    JOIN gang AS g ON g.run = p.run
), short_run AS (
    SELECT
        *,
        sum(CAST(broken AS INTEGER)) OVER (PARTITION BY run ORDER BY from_ns) AS number
    FROM (
        SELECT *, coalesce(from_ns <> lag(to_ns) OVER (PARTITION BY run ORDER BY from_ns), true) AS broken FROM level WHERE short
    )
), sighting AS (
    SELECT
        o.cluster, o.uid AS pod_uid, o.observed_ns, o.last_finished_ns,
        NOT coalesce(o.main_running, false) AND o.last_finished_ns IS NOT NULL AND o.waiting_reason IS NOT NULL AS waits,
        min(CASE WHEN o.main_running OR o.finished_ns IS NOT NULL THEN o.observed_ns END) OVER (
            PARTITION BY o.cluster, o.uid ORDER BY o.observed_ns ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING
        ) AS again_ns
    FROM staging.pod_observation AS o
    JOIN run_pod AS m ON m.cluster = o.cluster AND m.pod_uid = o.uid
    WHERE o.mode <> 'deleted'
), restart AS (
    SELECT DISTINCT cluster, pod_uid, last_finished_ns AS from_ns, coalesce(again_ns, $forever_ns) AS to_ns
    FROM sighting
    WHERE waits
    UNION
    SELECT cluster, pod_uid, created_ns, coalesce(started_ns, gone_ns) FROM member WHERE attempt > 1
), last_active AS (
    SELECT h.run, max(a.last_active_ns) AS at_ns
    FROM gpu_activity AS a
    JOIN gpu_holder AS h ON h.cluster = a.cluster AND h.pod_uid = a.pod_uid
    GROUP BY h.run
    -- whose activity a shared device shows is not known, and no cause rests on it (G2)
    HAVING max(a.last_active_ns) IS NOT NULL AND NOT bool_or(h.fractional)
), known AS (
    SELECT cluster, pod_uid, max(last_sample_ns) AS to_ns FROM gpu_activity GROUP BY ALL
), span AS (
    SELECT
        cluster, pod_uid, run, held_from_ns AS from_ns,
        least(started_ns, coalesce(ready_to_start_ns, image_pulling_from_ns, initialized_ns,
            CASE WHEN waiting_reason IS NULL OR waiting_reason = 'ContainerCreating' THEN started_ns END, held_from_ns)) AS to_ns,
        1 AS rank, 'creating' AS cause
    FROM pod
    UNION ALL
    SELECT
        cluster, pod_uid, run, image_pulling_from_ns,
        least(started_ns, CASE WHEN waiting_reason IN ('ErrImagePull', 'ImagePullBackOff') THEN $forever_ns ELSE image_pulling_to_ns END),
        2, 'image_pull'
    FROM pod
    WHERE image_pulling_from_ns IS NOT NULL
    UNION ALL
    -- after the init containers only the images of the main ones stand between a bound pod and its start
    SELECT cluster, pod_uid, run, greatest(initialized_ns, coalesce(ready_to_start_ns, initialized_ns)), started_ns, 2, 'image_pull'
    FROM pod
    WHERE initialized_ns IS NOT NULL AND (main_started_ns IS NOT NULL OR waiting_reason = 'ContainerCreating')
    UNION ALL
    SELECT
        cluster, pod_uid, run, coalesce(ready_to_start_ns, held_from_ns),
        least(started_ns, coalesce(initialized_ns, CASE WHEN ready_to_start_ns IS NOT NULL OR waiting_reason = 'PodInitializing' THEN $forever_ns END, 0)),
        4, 'init'
    FROM pod
    UNION ALL
    -- a gang waits for the member that restarts; other runs only for themselves
    SELECT
        r.cluster, CASE WHEN g.run IS NULL OR m.role NOT IN ('coordinator', 'worker') THEN r.pod_uid END, m.run, r.from_ns, r.to_ns,
        5, 'restarting'
    FROM restart AS r
    JOIN run_pod AS m ON m.cluster = r.cluster AND m.pod_uid = r.pod_uid
    LEFT JOIN gang AS g ON g.run = m.run
    UNION ALL
    SELECT m.cluster, NULL, m.run, coalesce(m.finished_ns, m.gone_ns), $forever_ns, 6, 'finished_not_released'
    FROM member AS m
    WHERE m.role = 'coordinator' AND m.succeeded
        AND NOT EXISTS (
            SELECT 1 FROM member AS n WHERE n.run = m.run AND n.role = 'coordinator' AND n.created_ns > coalesce(m.finished_ns, m.gone_ns)
        )
    UNION ALL
    SELECT p.cluster, p.pod_uid, p.run, l.at_ns, $forever_ns, 6, 'finished_not_released'
    FROM pod AS p
    JOIN last_active AS l ON l.run = p.run
    JOIN known AS k ON k.cluster = p.cluster AND k.pod_uid = p.pod_uid
    -- a pod that started after the run's last activity has finished nothing
    WHERE k.to_ns - l.at_ns >= $release_min_ns AND p.started_ns <= l.at_ns
    UNION ALL
    SELECT NULL, NULL, run, min(from_ns), max(to_ns), 7, 'waiting_for_members' FROM short_run GROUP BY run, number
    UNION ALL
    SELECT NULL, NULL, m.run, 0, min(coalesce(m.started_ns, $forever_ns)), 7, 'waiting_for_members'
    FROM member AS m
    JOIN gang AS g ON g.run = m.run
    WHERE m.role = 'coordinator'
    GROUP BY m.run
)
SELECT cluster, pod_uid, run, from_ns, to_ns, rank, cause FROM span WHERE to_ns > from_ns AND to_ns > $from_ns AND from_ns < $to_ns
