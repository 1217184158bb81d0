-- One connection, hour and direction between two nodes, with its events at one observation point: the flow shares (T5, T7).
WITH directed AS (
    SELECT *, true AS sender_is_client, client_node_key AS sender_node_key, server_node_key AS receiver_node_key, request_events AS events
    FROM core.connection WHERE date = $from_date
    UNION ALL
    SELECT *, false, server_node_key, client_node_key, reply_events FROM core.connection WHERE date = $from_date
)
-- what was dropped moved nothing (T4)
SELECT *, CAST(ts_to_ns(hour_utc) AS BIGINT) AS hour_ns FROM directed
WHERE events > 0 AND verdict <> 'dropped' AND (sender_node_key <> receiver_node_key OR sender_node_key = -1)
