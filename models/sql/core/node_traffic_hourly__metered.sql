-- One portion of a VPC flow record at the node whose interface wrote it, with its direction there and both ends by node.
WITH ends AS (
    SELECT v.*, CASE WHEN v.sender_is_client THEN r.client_node_key ELSE r.server_node_key END AS sender_node_key,
        CASE WHEN v.sender_is_client THEN r.server_node_key ELSE r.client_node_key END AS receiver_node_key,
        (tunnel_port(v.protocol, v.server_port) OR tunnel_port(v.protocol, v.client_port))
            AND r.client_resolved_by = 'node' AND r.server_resolved_by = 'node' AS tunnel
    FROM flow_portion v JOIN traffic_resolved r ON r.pair_id = v.pair_id
), owned AS (
    SELECT e.*, n.node_key AS instance_node_key, i.node_key AS interface_node_key
    FROM ends e
    LEFT JOIN core.node_life n ON n.cluster = e.cluster AND n.instance_id = e.instance_id
        AND e.at_ns >= n.valid_from_ns AND e.at_ns < n.valid_to_ns
    LEFT JOIN flow_interface i ON i.cluster = e.cluster AND i.interface_id = e.interface_id
), metered AS (
    SELECT *, CASE WHEN instance_id IS NOT NULL THEN instance_node_key
        WHEN interface_id IS NOT NULL THEN interface_node_key
        -- a format without either: whoever the direction makes the local end
        WHEN flow_direction = 'egress' THEN nullif(sender_node_key, -1)
        WHEN flow_direction = 'ingress' THEN nullif(receiver_node_key, -1) END AS node_key
    FROM owned
)
SELECT * EXCLUDE (node_key), node_key, CASE WHEN flow_direction = 'egress' THEN 'out' WHEN flow_direction = 'ingress' THEN 'in'
    WHEN node_key = sender_node_key THEN 'out' WHEN node_key = receiver_node_key THEN 'in' END AS direction
FROM metered
WHERE node_key IS NOT NULL
  AND (flow_direction IS NOT NULL OR node_key = sender_node_key OR node_key = receiver_node_key)
