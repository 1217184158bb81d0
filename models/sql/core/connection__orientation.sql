-- One connection of the day: is end a its client? By is_reply, else by SYN, else by a well-known port, else by who was dropped.
WITH vote AS (
    SELECT cluster, protocol, a_ip, a_port, b_ip, b_port, sequence,
        CAST(sum(CASE WHEN source_first THEN forward_events - reply_events ELSE reply_events - forward_events END) AS BIGINT) AS by_reply,
        CAST(sum(CASE WHEN source_first THEN opens - accepts ELSE accepts - opens END) AS BIGINT) AS by_syn,
        CAST(sum(CASE WHEN source_first THEN drops ELSE -drops END) AS BIGINT) AS by_drop
    FROM flow_sighting GROUP BY ALL
)
SELECT cluster, protocol, a_ip, a_port, b_ip, b_port, sequence, CASE
    WHEN by_reply <> 0 THEN by_reply > 0
    WHEN by_syn <> 0 THEN by_syn > 0
    WHEN a_port >= 32768 AND b_port < 32768 THEN true
    WHEN b_port >= 32768 AND a_port < 32768 THEN false
    WHEN by_drop <> 0 THEN by_drop > 0
    ELSE a_port >= b_port END AS a_is_client
FROM vote
