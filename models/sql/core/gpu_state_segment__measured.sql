-- One GPU in one pod and a stretch of one measured state within the day, after the pod's start; active time in cells of five minutes.
WITH inside AS (
    SELECT * EXCLUDE (time_ns, to_ns, started_ns), greatest(time_ns, started_ns, $from_ns) AS from_ns, least(to_ns, $to_ns) AS to_ns
    FROM gpu_hold
    WHERE to_ns > greatest(started_ns, $from_ns) AND time_ns < $to_ns AND to_ns > time_ns
), cell AS (
    SELECT *, CASE WHEN state = 'busy' THEN from_ns // $cell_ns ELSE -1 END AS cell
    FROM inside
    WHERE state <> 'busy' OR from_ns // $cell_ns = (to_ns - 1) // $cell_ns
    UNION ALL
    SELECT
        i.* REPLACE (greatest(i.from_ns, g.cell * $cell_ns) AS from_ns, least(i.to_ns, (g.cell + 1) * $cell_ns) AS to_ns),
        CAST(g.cell AS BIGINT) AS cell
    FROM inside AS i, unnest(generate_series(i.from_ns // $cell_ns, (i.to_ns - 1) // $cell_ns)) AS g(cell)
    WHERE i.state = 'busy' AND i.from_ns // $cell_ns <> (i.to_ns - 1) // $cell_ns
), changed AS (
    SELECT
        *,
        coalesce(
            from_ns <> lag(to_ns) OVER series
            OR (state, basis, pause AND state = 'idle', cell, work IS NULL)
                <> (lag(state) OVER series, lag(basis) OVER series, lag(pause AND state = 'idle') OVER series,
                    lag(cell) OVER series, lag(work IS NULL) OVER series),
            true
        ) AS new_stretch
    FROM cell
    WINDOW series AS (PARTITION BY series_id ORDER BY from_ns)
), numbered AS (
    SELECT *, sum(CAST(new_stretch AS INTEGER)) OVER (PARTITION BY series_id ORDER BY from_ns) AS stretch
    FROM changed
)
SELECT
    cluster, gpu_uuid, gpu_instance, pod_uid, max(gpu_model) AS gpu_model, state, basis,
    bool_or(pause AND state = 'idle') AS pause,
    CAST(min(from_ns) AS BIGINT) AS from_ns,
    CAST(max(to_ns) AS BIGINT) AS to_ns,
    -- a mean of shares is a share, whatever its last bit says
    least(1, sum(activity * (to_ns - from_ns)) / CAST(sum(to_ns - from_ns) AS DOUBLE)) AS activity,
    sum(work * (to_ns - from_ns)) / CAST(sum(to_ns - from_ns) AS DOUBLE) AS work
FROM numbered
GROUP BY series_id, cluster, gpu_uuid, gpu_instance, pod_uid, state, basis, stretch
