-- A row is one run of one training job; -1 is no job.
SELECT
    job_key, cluster, namespace, kind, name, run, -1 AS owner_key, queue, pipeline, resolved_by,
    ns_to_ts(first_seen_ns) AS first_seen_utc, ns_to_ts(last_seen_ns) AS last_seen_utc
FROM core.job_run
UNION ALL
SELECT -1, NULL, NULL, 'none', 'none', NULL, -1, NULL, NULL, 'none', NULL, NULL
