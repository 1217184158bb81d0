-- One attempt: source pod, destination pod, protocol, destination port, second, however many records saw it (F3).
WITH policy AS (
    SELECT pair_id, unnest(CAST(CAST(policies AS JSON) AS VARCHAR[])) AS policy FROM drop_resolved WHERE policies IS NOT NULL
)
SELECT ns_date(d.second_ns) AS date, d.cluster, d.second_ns,
    d.client_pod_uid AS source_pod_uid, d.client_job_key AS source_job_key, d.client_role AS source_role, min(d.source_ip) AS source_ip,
    d.server_pod_uid AS destination_pod_uid, d.server_job_key AS destination_job_key, d.server_role AS destination_role,
    min(d.destination_ip) AS destination_ip, d.server_name AS destination_name, d.protocol, d.destination_port,
    coalesce(min(CASE WHEN d.drop_reason IN ('POLICY_DENIED', 'POLICY_DENY', 'AUTH_REQUIRED') THEN d.drop_reason END),
             min(d.drop_reason)) AS drop_reason,
    CAST(sum(d.records) AS BIGINT) AS records,
    CASE WHEN count(p.policy) > 0 THEN CAST(to_json(list_sort(list(DISTINCT p.policy) FILTER (WHERE p.policy IS NOT NULL))) AS VARCHAR)
        END AS policies,
    CAST(to_json(list_sort(coalesce(list(DISTINCT d.node_name) FILTER (WHERE d.node_name IS NOT NULL), []))) AS VARCHAR) AS node_names,
    d.audited AS audit, min(d.source_reserved) AS source_reserved, min(d.destination_reserved) AS destination_reserved
FROM drop_resolved d
LEFT JOIN (SELECT pair_id, policy FROM policy QUALIFY row_number() OVER (PARTITION BY pair_id, policy ORDER BY policy) = 1) p
    ON p.pair_id = d.pair_id
GROUP BY d.cluster, d.second_ns, d.client_pod_uid, d.client_job_key, d.client_role, d.server_pod_uid, d.server_job_key, d.server_role,
    d.server_name, d.protocol, d.destination_port, d.audited,
    -- ends that are no pods are told apart by address
    CASE WHEN d.client_pod_uid IS NULL THEN d.source_ip END, CASE WHEN d.server_pod_uid IS NULL THEN d.destination_ip END
