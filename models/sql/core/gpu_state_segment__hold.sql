-- One reading and how long it stands (G2), with the state that its episode gives it (G3).
WITH series AS MATERIALIZED (
    -- one number a series: everything below sorts by it
    SELECT row_number() OVER () AS series_id, d.*, l.time_ns AS later_ns
    FROM (SELECT DISTINCT cluster, gpu_uuid, gpu_instance, pod_uid FROM gpu_reading) AS d
    LEFT JOIN gpu_later AS l
        ON l.cluster = d.cluster AND l.gpu_uuid = d.gpu_uuid AND l.gpu_instance = d.gpu_instance AND l.pod_uid = d.pod_uid
), spacing AS (
    -- a day without two samples has the spacing of the day before, else of the day after
    SELECT
        s.series_id, g.day_ns,
        coalesce(own.interval_ns, before.interval_ns, after.interval_ns, $interval_min_ns) AS interval_ns
    FROM series AS s
    CROSS JOIN (SELECT $from_ns + unnest([-1, 0, 1]) * $day_length_ns AS day_ns) AS g
    LEFT JOIN gpu_interval AS own
        ON own.cluster = s.cluster AND own.gpu_uuid = s.gpu_uuid AND own.gpu_instance = s.gpu_instance AND own.day_ns = g.day_ns
    LEFT JOIN gpu_interval AS before
        ON before.cluster = s.cluster AND before.gpu_uuid = s.gpu_uuid AND before.gpu_instance = s.gpu_instance
        AND before.day_ns = g.day_ns - $day_length_ns
    LEFT JOIN gpu_interval AS after
        ON after.cluster = s.cluster AND after.gpu_uuid = s.gpu_uuid AND after.gpu_instance = s.gpu_instance
        AND after.day_ns = g.day_ns + $day_length_ns
), timed AS (
    SELECT
        s.series_id, r.* EXCLUDE (cluster, gpu_uuid, gpu_instance, pod_uid), g.interval_ns,
        coalesce(lead(r.time_ns) OVER (PARTITION BY s.series_id ORDER BY r.time_ns), s.later_ns) AS next_ns
    FROM gpu_reading AS r
    JOIN series AS s
        ON s.cluster = r.cluster AND s.gpu_uuid = r.gpu_uuid AND s.gpu_instance = r.gpu_instance AND s.pod_uid = r.pod_uid
    JOIN spacing AS g ON g.series_id = s.series_id AND g.day_ns = r.time_ns // $day_length_ns * $day_length_ns
), held AS (
    SELECT
        * EXCLUDE (interval_ns, next_ns),
        least(
            held_to_ns,
            CASE
                WHEN next_ns IS NULL OR next_ns - time_ns > $silence_ns THEN time_ns + interval_ns
                ELSE least(next_ns, time_ns + 2 * interval_ns)
            END
        ) AS to_ns,
        CASE WHEN activity < $idle_threshold THEN 'low' WHEN stalled THEN 'stall' ELSE 'high' END AS reading
    FROM timed
), broken AS (
    SELECT
        *,
        -- gaps up to five minutes neither end nor lengthen an episode
        coalesce(reading <> lag(reading) OVER own OR time_ns - lag(to_ns) OVER own > $idle_gap_ns, true) AS new_episode,
        max(CASE WHEN reading <> 'low' THEN to_ns END) OVER (own ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS active_before_ns,
        min(CASE WHEN reading <> 'low' THEN time_ns END) OVER (own ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING) AS active_after_ns
    FROM held
    WINDOW own AS (PARTITION BY series_id ORDER BY time_ns)
), numbered AS (
    SELECT
        *,
        sum(CAST(new_episode AS INTEGER)) OVER (PARTITION BY series_id ORDER BY time_ns) AS episode
    FROM broken
), measured AS (
    SELECT
        *,
        sum(to_ns - time_ns) OVER (PARTITION BY series_id, episode) AS episode_ns
    FROM numbered
)
SELECT
    s.cluster, s.gpu_uuid, s.gpu_instance, s.pod_uid, m.series_id, m.gpu_model, m.started_ns, m.time_ns, m.to_ns, m.activity, m.basis,
    m.work,
    m.reading = 'low' AS low,
    CASE
        WHEN reading = 'low' AND episode_ns >= $idle_min_ns THEN 'idle'
        WHEN reading = 'stall' AND episode_ns >= $idle_min_ns THEN 'comm_stall'
        ELSE 'busy'
    END AS state,
    coalesce(active_after_ns - active_before_ns <= $pause_max_ns, false) AS pause
FROM measured AS m
JOIN series AS s ON s.series_id = m.series_id
