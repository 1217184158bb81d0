-- One end of one pair, resolved at the pair's own time (T1): pod, address owner, node, service, entity, or unknown with a reason.
WITH zone_name AS (
    SELECT zone, min(zone_key) AS zone_key FROM core.zone GROUP BY zone HAVING count(*) = 1
), job AS (
    SELECT job_key, min(namespace || '/' || name) AS job_name FROM core.job_run GROUP BY job_key
), located AS (
    SELECT e.*, b.ambiguous, b.node_key AS address_node_key, b.service, b.pods,
        list_filter(b.pods, lambda p: p.name = e.pod AND p.namespace = e.namespace) AS named
    FROM traffic_end e
    LEFT JOIN address_stretch b ON b.cluster = coalesce(nullif(e.foreign_cluster, ''), e.cluster) AND b.ip = e.ip
        AND b.hour_ns = e.at_ns // 3600000000000 * 3600000000000 AND e.at_ns >= b.from_ns AND e.at_ns < b.to_ns
), owned AS (
    SELECT *, CASE WHEN len(named) = 1 THEN named[1].pod_uid
                   WHEN len(pods) = 1 AND NOT ambiguous THEN pods[1].pod_uid END AS pod_uid,
        coalesce(len(named) = 1, false) AS as_named
    FROM located
), joined AS (
    SELECT o.*, p.node_key AS pod_node_key, p.zone_key AS pod_zone_key, p.job_key AS pod_job_key, p.role AS pod_role,
        coalesce(j.job_name, p.namespace || '/' || coalesce(json_extract_string(p.labels, '$."app.kubernetes.io/name"'),
            json_extract_string(p.labels, '$.app'), json_extract_string(p.labels, '$."k8s-app"'), p.name)) AS pod_label,
        coalesce(o.address_node_key, h.node_key) AS found_node_key, l.node_key AS observer_node_key, l.zone_key AS observer_zone_key
    FROM owned o
    LEFT JOIN core.pod_life p ON p.cluster = coalesce(nullif(o.foreign_cluster, ''), o.cluster) AND p.pod_uid = o.pod_uid
    LEFT JOIN job j ON j.job_key = p.job_key AND p.job_key <> -1
    -- identity `host` is the observing node itself, by whatever address
    LEFT JOIN core.node_life h ON o.host <> '' AND h.cluster = o.cluster AND h.name = o.host
        AND o.at_ns >= h.valid_from_ns AND o.at_ns < h.valid_to_ns
    -- an end that is local to the observing node runs there, known pod or not
    LEFT JOIN core.node_life l ON o.is_local AND l.cluster = o.cluster AND l.name = o.observer
        AND o.at_ns >= l.valid_from_ns AND o.at_ns < l.valid_to_ns
), settled AS (
    SELECT j.*, CASE WHEN pod_uid IS NOT NULL AND as_named THEN 'pod' WHEN pod_uid IS NOT NULL THEN 'ip'
                     WHEN coalesce(ambiguous, false) THEN 'none'
                     WHEN found_node_key IS NOT NULL THEN 'node' WHEN service IS NOT NULL THEN 'service' ELSE 'none' END AS resolved_by,
        n.name AS node_name, n.zone_key AS node_zone_key
    FROM joined j LEFT JOIN core.node_life n ON n.node_key = coalesce(j.pod_node_key, j.found_node_key)
), zoned AS (
    SELECT s.*, CASE WHEN resolved_by IN ('pod', 'ip') THEN coalesce(nullif(s.pod_zone_key, -1), nullif(s.node_zone_key, -1), s.observer_zone_key, -1)
                     WHEN resolved_by = 'node' THEN coalesce(s.node_zone_key, -1) ELSE coalesce(s.observer_zone_key, -1) END AS placed_zone_key,
        -- the observing node's label, for its own end only
        CASE WHEN s.is_local THEN z.zone_key END AS label_zone_key,
        resolved_by = 'none' AND NOT coalesce(ambiguous, false)
            AND (public_address(s.ip) AND (s.from_flow_log OR (s.reserved = '' AND s.pod = '' AND NOT s.is_local) OR starts_with(s.reserved, 'world') OR s.reserved = 'kube-apiserver')
                OR (starts_with(s.reserved, 'world') AND contains(s.ip, ':') AND NOT private_address(s.ip))) AS external
    FROM settled s LEFT JOIN zone_name z ON z.zone = s.zone
)
SELECT pair_id, side, CASE WHEN resolved_by IN ('pod', 'ip') THEN pod_uid END AS pod_uid,
    CASE WHEN resolved_by IN ('pod', 'ip') THEN coalesce(nullif(pod_node_key, -1), observer_node_key, -1)
         WHEN resolved_by = 'node' THEN found_node_key WHEN resolved_by = 'none' THEN coalesce(observer_node_key, -1)
         ELSE -1 END AS node_key,
    coalesce(CASE WHEN resolved_by IN ('pod', 'ip', 'node') THEN node_name END, nullif(observer, '')) AS node_name,
    CASE WHEN external THEN -1 WHEN placed_zone_key <> -1 THEN placed_zone_key ELSE coalesce(label_zone_key, -1) END AS zone_key,
    CASE WHEN resolved_by IN ('pod', 'ip') THEN coalesce(pod_job_key, -1)
         WHEN resolved_by = 'service' THEN coalesce(service.job_key, -1) ELSE -1 END AS job_key,
    CASE WHEN resolved_by IN ('pod', 'ip') THEN pod_role END AS role,
    CASE WHEN resolved_by IN ('pod', 'ip') THEN pod_label
         WHEN resolved_by = 'node' THEN 'host/' || coalesce(node_name, ip)
         WHEN resolved_by = 'service' THEN service.namespace || '/' || service.name
         WHEN external THEN coalesce(nullif(dns, ''), CASE WHEN reserved = 'kube-apiserver' THEN reserved ELSE 'world' END)
         WHEN pod <> '' THEN namespace || '/' || pod
         WHEN reserved <> '' THEN reserved ELSE ip END AS name,
    resolved_by,
    CASE WHEN resolved_by = 'pod' THEN NULL
         WHEN resolved_by = 'ip' THEN CASE WHEN pod <> '' OR reserved IN ('world', 'world-ipv4', 'world-ipv6', 'unmanaged', 'init',
             'remote-node', 'host') THEN 'ipcache_stale' END
         WHEN coalesce(ambiguous, false) THEN 'ambiguous'
         WHEN resolved_by = 'node' THEN 'host_network'
         WHEN resolved_by = 'service' THEN CASE WHEN coalesce(service.job_key, -1) = -1 THEN 'service_ip' END
         WHEN external THEN NULL
         WHEN reserved <> '' AND reserved NOT IN ('host', 'remote-node') AND pod = '' THEN 'no_zone'
         ELSE 'no_live_owner' END AS reason,
    reserved, external
FROM zoned
