-- One end of one connection and hour, and what the records call it: the end's own node knows best, then the most records.
WITH called AS (
    SELECT cluster, protocol, a_ip, a_port, b_ip, b_port, sequence, hour_ns, source_first AS is_a,
        {'local': coalesce(source_local, false), 'records': CAST(sum(records) AS BIGINT), 'namespace': coalesce(source_namespace, ''),
         'pod': coalesce(source_pod, ''), 'cluster': coalesce(source_cluster, ''), 'reserved': coalesce(source_reserved, ''),
         'zone': CASE WHEN source_local THEN coalesce(node_zone, '') ELSE '' END,
         'host': CASE WHEN source_reserved = 'host' THEN coalesce(node_name, '') ELSE '' END,
         'observer': CASE WHEN source_local THEN coalesce(node_name, '') ELSE '' END, 'dns': ''} AS called
    FROM flow_sighting
    GROUP BY cluster, protocol, a_ip, a_port, b_ip, b_port, sequence, hour_ns, source_first, source_local, source_namespace,
        source_pod, source_cluster, source_reserved, CASE WHEN source_local THEN coalesce(node_zone, '') ELSE '' END,
        CASE WHEN source_reserved = 'host' THEN coalesce(node_name, '') ELSE '' END,
        CASE WHEN source_local THEN coalesce(node_name, '') ELSE '' END
    UNION ALL
    SELECT cluster, protocol, a_ip, a_port, b_ip, b_port, sequence, hour_ns, NOT source_first AS is_a,
        {'local': coalesce(destination_local, false), 'records': CAST(sum(records) AS BIGINT),
         'namespace': coalesce(destination_namespace, ''), 'pod': coalesce(destination_pod, ''),
         'cluster': coalesce(destination_cluster, ''), 'reserved': coalesce(destination_reserved, ''),
         'zone': CASE WHEN destination_local THEN coalesce(node_zone, '') ELSE '' END,
         'host': CASE WHEN destination_reserved = 'host' THEN coalesce(node_name, '') ELSE '' END,
         'observer': CASE WHEN destination_local THEN coalesce(node_name, '') ELSE '' END,
         'dns': coalesce(destination_dns, '')} AS called
    FROM flow_sighting
    GROUP BY cluster, protocol, a_ip, a_port, b_ip, b_port, sequence, hour_ns, source_first, destination_local,
        destination_namespace, destination_pod, destination_cluster, destination_reserved,
        CASE WHEN destination_local THEN coalesce(node_zone, '') ELSE '' END,
        CASE WHEN destination_reserved = 'host' THEN coalesce(node_name, '') ELSE '' END,
        CASE WHEN destination_local THEN coalesce(node_name, '') ELSE '' END, destination_dns
)
SELECT cluster, protocol, a_ip, a_port, b_ip, b_port, sequence, hour_ns, is_a, max(called) AS called
FROM called GROUP BY cluster, protocol, a_ip, a_port, b_ip, b_port, sequence, hour_ns, is_a
