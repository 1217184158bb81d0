-- One pair with both ends resolved; ends on the host network that rule P3 gives to a pod or run are `host_inferred`.
WITH two AS (
    SELECT p.pair_id, p.cluster, p.at_ns, p.protocol, p.server_port, p.client_port, p.same_node,
        c.pod_uid AS c_pod_uid, c.node_key AS c_node_key, c.node_name AS c_node_name, c.zone_key AS c_zone_key, c.job_key AS c_job_key,
        c.role AS c_role, c.name AS c_name, c.resolved_by AS c_resolved_by, c.reason AS c_reason, c.external AS c_external,
        s.pod_uid AS s_pod_uid, s.node_key AS s_node_key, s.node_name AS s_node_name, s.zone_key AS s_zone_key, s.job_key AS s_job_key,
        s.role AS s_role, s.name AS s_name, s.resolved_by AS s_resolved_by, s.reason AS s_reason, s.external AS s_external
    FROM traffic_pair p
    JOIN traffic_end_resolved c ON c.pair_id = p.pair_id AND c.side = 'client'
    JOIN traffic_end_resolved s ON s.pair_id = p.pair_id AND s.side = 'server'
), eligible AS (
    SELECT *, $host_inferred AND (c_resolved_by = 'node' OR s_resolved_by = 'node')
        AND c_resolved_by IN ('pod', 'ip', 'node') AND s_resolved_by IN ('pod', 'ip', 'node')
        AND NOT system_port(server_port) AND NOT tunnel_port(protocol, server_port) AND NOT tunnel_port(protocol, client_port)
        AS may_infer
    FROM two
), matched AS (
    SELECT e.*, hp.pod_uid AS port_pod_uid, sh.near_jobs AS s_near_jobs, sh.only_job_key AS s_only_job, sh.only_pod_uid AS s_only_pod,
        sh.only_role AS s_only_role, ch.only_job_key AS c_only_job, ch.only_pod_uid AS c_only_pod, ch.only_role AS c_only_role
    FROM eligible e
    LEFT JOIN host_port hp ON e.may_infer AND e.s_resolved_by = 'node' AND hp.cluster = e.cluster AND hp.node_key = e.s_node_key
        AND hp.protocol = e.protocol AND hp.port = e.server_port AND e.at_ns >= hp.from_ns AND e.at_ns < hp.to_ns
    LEFT JOIN host_stretch sh ON e.may_infer AND e.s_resolved_by = 'node' AND sh.cluster = e.cluster AND sh.node_key = e.s_node_key
        AND e.at_ns >= sh.from_ns AND e.at_ns < sh.to_ns
    LEFT JOIN host_stretch ch ON e.may_infer AND e.c_resolved_by = 'node' AND ch.cluster = e.cluster AND ch.node_key = e.c_node_key
        AND e.at_ns >= ch.from_ns AND e.at_ns < ch.to_ns
), by_port AS (
    SELECT m.*, CASE WHEN len(list_filter(coalesce(m.s_near_jobs, []), lambda k: k <> -1 AND k <> d.job_key)) = 0
        THEN m.port_pod_uid END AS declared_pod_uid, d.job_key AS declared_job, d.role AS declared_role
    FROM matched m LEFT JOIN core.pod_life d ON d.cluster = m.cluster AND d.pod_uid = m.port_pod_uid
), mutual AS (
    SELECT *, CASE WHEN declared_pod_uid IS NOT NULL THEN declared_job WHEN s_resolved_by IN ('pod', 'ip') THEN s_job_key
            ELSE s_only_job END AS s_side_job,
        CASE WHEN c_resolved_by IN ('pod', 'ip') THEN c_job_key ELSE c_only_job END AS c_side_job
    FROM by_port
), inferred AS (
    SELECT *, s_resolved_by = 'node' AND declared_pod_uid IS NOT NULL AS s_by_port,
        s_resolved_by = 'node' AND declared_pod_uid IS NULL AND s_only_job IS NOT NULL AND coalesce(s_only_job = c_side_job, false) AS s_by_mutual,
        c_resolved_by = 'node' AND c_only_job IS NOT NULL AND coalesce(c_only_job = s_side_job, false) AS c_by_mutual
    FROM mutual
), filled AS (
    SELECT i.*, CASE WHEN s_by_port THEN declared_pod_uid WHEN s_by_mutual THEN s_only_pod ELSE s_pod_uid END AS server_pod_uid,
        CASE WHEN s_by_port THEN declared_job WHEN s_by_mutual THEN s_only_job ELSE s_job_key END AS server_job_key,
        CASE WHEN s_by_port THEN declared_role WHEN s_by_mutual THEN s_only_role ELSE s_role END AS server_role,
        CASE WHEN s_by_port OR s_by_mutual THEN 'host_inferred' ELSE s_resolved_by END AS server_resolved_by,
        CASE WHEN c_by_mutual THEN c_only_pod ELSE c_pod_uid END AS client_pod_uid,
        CASE WHEN c_by_mutual THEN c_only_job ELSE c_job_key END AS client_job_key,
        CASE WHEN c_by_mutual THEN c_only_role ELSE c_role END AS client_role,
        CASE WHEN c_by_mutual THEN 'host_inferred' ELSE c_resolved_by END AS client_resolved_by
    FROM inferred i
)
SELECT f.pair_id, f.client_pod_uid, f.c_node_key AS client_node_key, f.c_node_name AS client_node_name, f.c_zone_key AS client_zone_key,
    f.client_job_key, f.client_role,
    CASE WHEN f.c_by_mutual THEN coalesce(cj.namespace || '/' || cj.name, f.c_name) ELSE f.c_name END AS client_name,
    f.client_resolved_by,
    CASE WHEN f.c_by_mutual THEN NULL WHEN f.c_reason IS NULL AND f.c_zone_key = -1 AND NOT f.c_external THEN 'no_zone'
         ELSE f.c_reason END AS client_reason, f.c_external AS client_external,
    f.server_pod_uid, f.s_node_key AS server_node_key, f.s_node_name AS server_node_name, f.s_zone_key AS server_zone_key,
    f.server_job_key, f.server_role,
    CASE WHEN f.s_by_port OR f.s_by_mutual THEN coalesce(sj.namespace || '/' || sj.name, f.s_name) ELSE f.s_name END AS server_name,
    f.server_resolved_by,
    CASE WHEN f.s_by_port OR f.s_by_mutual THEN NULL WHEN f.s_reason IS NULL AND f.s_zone_key = -1 AND NOT f.s_external THEN 'no_zone'
         ELSE f.s_reason END AS server_reason, f.s_external AS server_external,
    CASE WHEN f.c_external OR f.s_external THEN 'external'
         WHEN f.same_node OR (f.c_node_key <> -1 AND f.c_node_key = f.s_node_key) THEN 'same_zone'
         WHEN f.c_zone_key = -1 OR f.s_zone_key = -1 THEN 'unknown'
         WHEN f.c_zone_key = f.s_zone_key THEN 'same_zone'
         WHEN cz.region <> sz.region THEN 'cross_region'
         ELSE 'cross_zone' END AS locality
FROM filled f
LEFT JOIN core.job_run cj ON cj.job_key = f.client_job_key AND f.client_job_key <> -1
LEFT JOIN core.job_run sj ON sj.job_key = f.server_job_key AND f.server_job_key <> -1
LEFT JOIN core.zone cz ON cz.zone_key = f.c_zone_key
LEFT JOIN core.zone sz ON sz.zone_key = f.s_zone_key
