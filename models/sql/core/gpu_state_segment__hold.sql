-- One reading and how long it stands (G2), with the state that its episode gives it (G3).
WITH timed AS (
    SELECT
        r.*,
        coalesce(own.interval_ns, before.interval_ns, after.interval_ns, $interval_min_ns) AS interval_ns,
        coalesce(lead(r.time_ns) OVER series, l.time_ns) AS next_ns
    FROM gpu_reading AS r
    LEFT JOIN gpu_interval AS own
        ON own.cluster = r.cluster AND own.gpu_uuid = r.gpu_uuid AND own.gpu_instance = r.gpu_instance
        AND own.day_ns = r.time_ns // $day_length_ns * $day_length_ns
    LEFT JOIN gpu_interval AS before
        ON before.cluster = r.cluster AND before.gpu_uuid = r.gpu_uuid AND before.gpu_instance = r.gpu_instance
        AND before.day_ns = r.time_ns // $day_length_ns * $day_length_ns - $day_length_ns
    LEFT JOIN gpu_interval AS after
        ON after.cluster = r.cluster AND after.gpu_uuid = r.gpu_uuid AND after.gpu_instance = r.gpu_instance
        AND after.day_ns = r.time_ns // $day_length_ns * $day_length_ns + $day_length_ns
    LEFT JOIN gpu_later AS l
        ON l.cluster = r.cluster AND l.gpu_uuid = r.gpu_uuid AND l.gpu_instance = r.gpu_instance AND l.pod_uid = r.pod_uid
    WINDOW series AS (PARTITION BY r.cluster, r.gpu_uuid, r.gpu_instance, r.pod_uid ORDER BY r.time_ns)
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
        coalesce(reading <> lag(reading) OVER series OR time_ns - lag(to_ns) OVER series > $idle_gap_ns, true) AS new_episode,
        max(CASE WHEN reading <> 'low' THEN to_ns END) OVER (series ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS active_before_ns,
        min(CASE WHEN reading <> 'low' THEN time_ns END) OVER (series ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING) AS active_after_ns
    FROM held
    WINDOW series AS (PARTITION BY cluster, gpu_uuid, gpu_instance, pod_uid ORDER BY time_ns)
), numbered AS (
    SELECT
        *,
        sum(CAST(new_episode AS INTEGER)) OVER (PARTITION BY cluster, gpu_uuid, gpu_instance, pod_uid ORDER BY time_ns) AS episode
    FROM broken
), measured AS (
    SELECT
        *,
        sum(to_ns - time_ns) OVER (PARTITION BY cluster, gpu_uuid, gpu_instance, pod_uid, episode) AS episode_ns
    FROM numbered
)
SELECT
    cluster, gpu_uuid, gpu_instance, pod_uid, gpu_model, started_ns, time_ns, to_ns, activity, basis, work,
    reading = 'low' AS low,
    CASE
        WHEN reading = 'low' AND episode_ns >= $idle_min_ns THEN 'idle'
        WHEN reading = 'stall' AND episode_ns >= $idle_min_ns THEN 'comm_stall'
        ELSE 'busy'
    END AS state,
    coalesce(active_after_ns - active_before_ns <= $pause_max_ns, false) AS pause
FROM measured
