-- One stretch of one state, with the causes that rest on findings: blocked_by_policy and cross_zone_sync (G4).
WITH span AS (
    SELECT
        f.job_key, f.kind,
        CAST(json_extract(s.span, '$[0]') AS BIGINT) AS from_ns,
        CAST(json_extract(s.span, '$[1]') AS BIGINT) AS to_ns
    FROM core.finding AS f, unnest(CAST(CAST(f.spans AS JSON) AS JSON[])) AS s(span)
    WHERE f.kind IN ('blocked', 'slow') AND f.spans IS NOT NULL
), segment AS MATERIALIZED (
    SELECT row_number() OVER () AS segment_id, * FROM core.gpu_state_segment WHERE date >= $from_date AND date < $to_date
), hit AS (
    SELECT s.segment_id, greatest(s.from_ns, f.from_ns) AS from_ns, least(s.to_ns, f.to_ns) AS to_ns
    FROM segment AS s
    JOIN span AS f ON f.job_key = s.job_key AND f.from_ns < s.to_ns AND f.to_ns > s.from_ns
    WHERE s.job_key <> -1
        AND CASE f.kind
            -- creating and image_pull come before it in the order of the rule
            WHEN 'blocked' THEN s.state IN ('idle', 'starting') AND coalesce(s.early_cause, '') NOT IN ('creating', 'image_pull')
            ELSE s.state = 'comm_stall'
        END
), edge AS (
    SELECT segment_id, from_ns AS at_ns FROM hit
    UNION SELECT segment_id, to_ns FROM hit
    UNION SELECT segment_id, from_ns FROM segment
    UNION SELECT segment_id, to_ns FROM segment
), part AS (
    SELECT segment_id, at_ns AS from_ns, lead(at_ns) OVER (PARTITION BY segment_id ORDER BY at_ns) AS to_ns FROM edge
), named AS (
    SELECT
        s.* EXCLUDE (segment_id, from_ns, to_ns, cause), p.from_ns, p.to_ns,
        CASE
            WHEN NOT EXISTS (
                SELECT 1 FROM hit AS h WHERE h.segment_id = p.segment_id AND h.from_ns <= p.from_ns AND p.to_ns <= h.to_ns
            ) THEN s.early_cause
            WHEN s.state = 'comm_stall' THEN 'cross_zone_sync'
            ELSE 'blocked_by_policy'
        END AS cause
    FROM part AS p
    JOIN segment AS s ON s.segment_id = p.segment_id
    WHERE p.to_ns IS NOT NULL
), changed AS (
    -- parts that an earlier run cut and that now agree are one stretch again (N7); active time keeps its cells
    SELECT
        *,
        coalesce(
            from_ns <> lag(to_ns) OVER same OR state = 'busy', true
        ) AS new_stretch
    FROM named
    WINDOW same AS (
        PARTITION BY date, cluster, node_key, gpu_uuid, pod_uid, weight, state, cause, early_cause, activity_basis, activity, work, provisional
        ORDER BY from_ns
    )
), numbered AS (
    SELECT
        *,
        sum(CAST(new_stretch AS INTEGER)) OVER (
            PARTITION BY date, cluster, node_key, gpu_uuid, pod_uid, weight, state, cause, early_cause, activity_basis, activity, work,
                provisional
            ORDER BY from_ns
        ) AS number
    FROM changed
)
SELECT
    date, cluster, node_key, gpu_uuid, gpu_model, job_key, pod_uid, CAST(min(from_ns) AS BIGINT) AS from_ns,
    CAST(max(to_ns) AS BIGINT) AS to_ns, state, cause, activity_basis, activity, work, weight, provisional, early_cause
FROM numbered
GROUP BY date, cluster, node_key, gpu_uuid, gpu_model, job_key, pod_uid, number, state, cause, activity_basis, activity, work, weight,
    provisional, early_cause
