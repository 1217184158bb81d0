-- One interface of the day's flow log and the node that it belongs to: by instance id, else by whose address all its records share.
WITH owner AS (
    SELECT s.cluster, s.ip, s.hour_ns, s.from_ns, s.to_ns,
        coalesce(s.node_key, CASE WHEN len(s.pods) = 1 AND NOT s.ambiguous THEN p.node_key END) AS node_key
    FROM address_stretch s LEFT JOIN core.pod_life p ON p.cluster = s.cluster AND p.pod_uid = s.pods[1].pod_uid
), instance AS (
    SELECT v.cluster, v.interface_id, min(n.node_key) AS node_key
    FROM flow_portion v JOIN core.node_life n ON n.cluster = v.cluster AND n.instance_id = v.instance_id
        AND v.at_ns >= n.valid_from_ns AND v.at_ns < n.valid_to_ns
    WHERE v.interface_id IS NOT NULL GROUP BY ALL
), unnamed AS (
    SELECT * FROM flow_portion WHERE interface_id IS NOT NULL AND instance_id IS NULL
), total AS (
    SELECT cluster, interface_id, count(*) AS records FROM unnamed GROUP BY ALL
), vote AS (
    SELECT v.cluster, v.interface_id, v.pair_id, o.node_key FROM unnamed v
    JOIN owner o ON o.cluster = v.cluster AND o.ip = v.outer_source_ip AND o.hour_ns = v.at_ns // 3600000000000 * 3600000000000
        AND v.at_ns >= o.from_ns AND v.at_ns < o.to_ns
    WHERE o.node_key <> -1 AND coalesce(v.flow_direction, 'egress') = 'egress'
    UNION
    SELECT v.cluster, v.interface_id, v.pair_id, o.node_key FROM unnamed v
    JOIN owner o ON o.cluster = v.cluster AND o.ip = v.outer_destination_ip AND o.hour_ns = v.at_ns // 3600000000000 * 3600000000000
        AND v.at_ns >= o.from_ns AND v.at_ns < o.to_ns
    WHERE o.node_key <> -1 AND coalesce(v.flow_direction, 'ingress') = 'ingress'
), counted AS (
    SELECT cluster, interface_id, node_key, count(*) AS votes FROM vote GROUP BY ALL
), shared AS (
    SELECT c.cluster, c.interface_id, min(c.node_key) AS node_key
    FROM counted c JOIN total t ON t.cluster = c.cluster AND t.interface_id = c.interface_id AND t.records = c.votes
    GROUP BY ALL HAVING count(*) = 1
)
SELECT cluster, interface_id, node_key FROM instance
UNION ALL
SELECT s.* FROM shared s ANTI JOIN instance i ON i.cluster = s.cluster AND i.interface_id = s.interface_id
