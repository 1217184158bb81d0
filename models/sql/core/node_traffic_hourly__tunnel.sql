-- One connection's part of the tunnel bytes that one node measured to or from one other in an hour; the parts sum to the bytes (T7).
WITH tunnel AS (
    SELECT node_key, direction, other_side, hour_ns, sender_node_key, receiver_node_key, CAST(sum(bytes) AS HUGEINT) AS bytes
    FROM flow_measured WHERE tunnel GROUP BY ALL
), link AS (
    SELECT * FROM flow_link
    WHERE client_resolved_by IN ('pod', 'ip') AND server_resolved_by IN ('pod', 'ip') AND sender_node_key <> -1 AND receiver_node_key <> -1
), shared AS (
    SELECT t.node_key, t.direction, t.other_side, t.bytes AS tunnel_bytes, l.*,
        CAST(sum(l.events) OVER upto AS HUGEINT) AS events_upto, CAST(sum(l.events) OVER whole AS HUGEINT) AS events_total
    FROM tunnel t JOIN link l ON l.hour_ns = t.hour_ns AND l.sender_node_key = t.sender_node_key
        AND l.receiver_node_key = t.receiver_node_key
    WINDOW upto AS (PARTITION BY t.node_key, t.direction, t.other_side, t.hour_ns, t.sender_node_key, t.receiver_node_key
            ORDER BY l.connection_id, l.sender_is_client ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW),
        whole AS (PARTITION BY t.node_key, t.direction, t.other_side, t.hour_ns, t.sender_node_key, t.receiver_node_key)
)
SELECT *, CAST(tunnel_bytes * events_upto // events_total - tunnel_bytes * (events_upto - events) // events_total AS BIGINT)
    AS shared_bytes
FROM shared
