-- One reading of one GPU (or MIG instance) in one pod: the metrics of one time bucket, each once, however many exporters report it (G2).
WITH sample AS (
    SELECT
        cluster, gpu_uuid, coalesce(gpu_instance, '') AS gpu_instance, time_ns, metric, value, gpu_model,
        pod_uid IS NOT NULL OR coalesce(pod, '') <> '' AS labelled,
        CASE
            WHEN pod_uid IS NOT NULL THEN 'uid' || chr(31) || pod_uid
            WHEN coalesce(pod, '') <> '' THEN 'pod' || chr(31) || coalesce(namespace, '') || chr(31) || pod
            ELSE 'node' || chr(31) || node_name
        END AS owner_key
    FROM staging.gpu_sample
    WHERE time_ns >= $load_from_ns AND time_ns < $load_to_ns
        AND hash(gpu_uuid) % $chunks = $chunk
        -- a value that its unit can't have is no measurement
        AND (
            (metric = 'gpu_util' AND value >= 0 AND value <= 101)
            OR (metric IN ('engine_active', 'tensor_active', 'dram_active') AND value >= 0 AND value <= 1.01)
            OR (metric = 'power_watts' AND value >= 0 AND value <= 100000)
        )
), sliced AS (
    SELECT DISTINCT cluster, gpu_uuid FROM sample WHERE gpu_instance <> ''
), owned AS (
    SELECT s.cluster, s.gpu_uuid, s.gpu_instance, s.labelled, o.pod_uid, s.time_ns, s.metric, s.value, s.gpu_model
    FROM sample AS s
    LEFT JOIN gpu_owner AS o
        ON o.cluster = s.cluster AND o.owner_key = s.owner_key AND o.from_ns <= s.time_ns AND s.time_ns < o.to_ns
    -- of a device in MIG mode only its instances count
    WHERE s.gpu_instance <> '' OR NOT EXISTS (SELECT 1 FROM sliced AS m WHERE m.cluster = s.cluster AND m.gpu_uuid = s.gpu_uuid)
), wide AS (
    SELECT
        cluster, gpu_uuid, gpu_instance, labelled, pod_uid, time_ns // $bucket_ns AS bucket,
        min(time_ns) AS time_ns,
        max(gpu_model) AS gpu_model,
        max(least(value / 100, 1)) FILTER (WHERE metric = 'gpu_util') AS util,
        max(least(value, 1)) FILTER (WHERE metric = 'engine_active') AS engine,
        max(value) FILTER (WHERE metric = 'tensor_active') AS tensor,
        max(value) FILTER (WHERE metric = 'dram_active') AS dram,
        max(value) FILTER (WHERE metric = 'power_watts') AS power_watts
    FROM owned
    GROUP BY ALL
), device AS (
    SELECT
        *,
        coalesce(bool_or(labelled) OVER bucket_rows, false) AS any_labelled,
        count(pod_uid) FILTER (WHERE labelled) OVER bucket_rows AS labelled_pods,
        count(pod_uid) FILTER (WHERE NOT labelled) OVER bucket_rows AS unlabelled_pods,
        max(util) FILTER (WHERE NOT labelled) OVER bucket_rows AS device_util,
        max(util) OVER bucket_rows AS highest_util,
        max(engine) OVER bucket_rows AS device_engine
    FROM wide
    WINDOW bucket_rows AS (PARTITION BY cluster, gpu_uuid, gpu_instance, bucket)
), held AS (
    SELECT
        d.*, h.held_from_ns, h.held_to_ns, h.started_ns,
        coalesce(d.gpu_model, h.node_gpu_model) AS known_model,
        h.fractional OR CASE WHEN d.labelled THEN d.labelled_pods > 1 ELSE d.unlabelled_pods > 1 END AS shared,
        -- beside a row of the device, a pod's utilisation is that of its own processes
        CASE WHEN d.labelled AND d.device_util IS NOT NULL THEN d.util END AS process_util,
        coalesce(d.device_engine, d.device_util, d.highest_util) AS device_activity
    FROM device AS d
    JOIN gpu_holder AS h ON h.cluster = d.cluster AND h.pod_uid = d.pod_uid
    -- a row without a pod label stands for a pod only where no row names one
    WHERE d.labelled OR NOT d.any_labelled
)
SELECT
    h.cluster, h.gpu_uuid, h.gpu_instance, h.pod_uid, h.time_ns, h.known_model AS gpu_model, h.held_to_ns, h.started_ns,
    CASE
        WHEN NOT h.shared THEN coalesce(h.engine, h.util)
        WHEN h.device_activity < $idle_threshold THEN h.device_activity
        ELSE coalesce(h.process_util, h.device_activity)
    END AS activity,
    CASE
        WHEN h.shared AND h.device_activity >= $idle_threshold THEN CASE WHEN h.process_util IS NULL THEN 'device_shared' ELSE 'util' END
        WHEN h.tensor IS NOT NULL THEN 'tensor'
        WHEN coalesce(h.engine, CASE WHEN h.shared THEN h.device_engine END) IS NOT NULL THEN 'engine'
        ELSE 'util'
    END AS basis,
    CASE
        WHEN h.shared THEN NULL
        WHEN h.tensor IS NOT NULL THEN h.tensor
        ELSE (h.power_watts - m.idle_watts) / (m.limit_watts - m.idle_watts)
    END AS work,
    -- G3: high by utilisation, low by everything else that exists, of which something must
    NOT h.shared
    AND (coalesce(h.util, 0) >= 0.9 OR coalesce(h.engine, 0) >= 0.9)
    AND ((h.tensor IS NOT NULL AND h.dram IS NOT NULL) OR (h.power_watts IS NOT NULL AND m.limit_watts IS NOT NULL))
    AND coalesce(h.tensor < 0.05, true)
    AND coalesce(h.dram < 0.10, true)
    AND coalesce(h.power_watts < m.idle_watts + 0.25 * (m.limit_watts - m.idle_watts), true) AS stalled
FROM held AS h
LEFT JOIN gpu_model AS m ON m.raw = h.known_model
WHERE coalesce(h.engine, h.util, CASE WHEN h.shared THEN h.device_activity END) IS NOT NULL
