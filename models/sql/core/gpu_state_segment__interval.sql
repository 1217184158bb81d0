-- One GPU (or MIG instance) and day: the median spacing of its samples in nanoseconds, 10 s to 5 min (G2).
WITH spaced AS (
    SELECT
        cluster, gpu_uuid, coalesce(gpu_instance, '') AS gpu_instance, coalesce(instance, '') AS target, metric, time_ns,
        time_ns - lag(time_ns) OVER (
            PARTITION BY cluster, gpu_uuid, coalesce(gpu_instance, ''), coalesce(instance, ''), metric ORDER BY time_ns
        ) AS spacing_ns
    FROM staging.gpu_sample
    WHERE metric IN ('gpu_util', 'engine_active') AND time_ns >= $from_ns - 2 * $interval_max_ns AND time_ns < $to_ns
), series AS (
    SELECT
        cluster, gpu_uuid, gpu_instance, target, metric, count(*) AS samples,
        CAST(quantile_disc(spacing_ns, 0.5) AS BIGINT) AS median_ns
    FROM spaced
    WHERE time_ns >= $from_ns AND spacing_ns > 0
    GROUP BY ALL
)
SELECT
    $from_ns AS day_ns, cluster, gpu_uuid, gpu_instance,
    -- the fullest series speaks for the GPU, however many exporters report it
    least($interval_max_ns, greatest($interval_min_ns, arg_max(median_ns, (samples, median_ns)))) AS interval_ns
FROM series
GROUP BY ALL
