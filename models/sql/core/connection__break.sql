-- One connection of a five-tuple that was used more than once in the day: its number and the time it owns.
-- A SYN starts a new connection when the old one had traffic and none since the clock skew, or after two quiet minutes.
WITH tuple AS (
    SELECT cluster, protocol, a_ip, a_port, b_ip, b_port, min(time_ns) AS first_ns, max(time_ns) AS last_ns,
        max(CASE WHEN opens THEN time_ns END) AS last_open_ns
    FROM flow_packet WHERE a_port >= 0 AND b_port >= 0 GROUP BY ALL
), reused AS (
    SELECT * FROM tuple
    WHERE (protocol = 'TCP' AND last_open_ns > first_ns + $tolerance_ns)
       OR (protocol <> 'TCP' AND last_ns - first_ns >= $quiet_ns)
), history AS (
    SELECT p.cluster, p.protocol, p.a_ip, p.a_port, p.b_ip, p.b_port, p.time_ns, p.opens,
        max(p.time_ns) OVER before AS prior_ns,
        max(CASE WHEN p.opens THEN p.time_ns END) OVER before AS prior_open_ns,
        max(CASE WHEN NOT p.opens AND NOT p.dropped THEN p.time_ns END) OVER before AS prior_data_ns
    FROM flow_packet p JOIN reused USING (cluster, protocol, a_ip, a_port, b_ip, b_port)
    WINDOW before AS (PARTITION BY p.cluster, p.protocol, p.a_ip, p.a_port, p.b_ip, p.b_port ORDER BY p.time_ns, p.opens DESC
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
), start AS (
    SELECT DISTINCT cluster, protocol, a_ip, a_port, b_ip, b_port, time_ns - $tolerance_ns AS from_ns
    FROM history
    WHERE (protocol = 'TCP' AND opens AND (time_ns - prior_ns >= $quiet_ns
            OR (time_ns - prior_data_ns > $tolerance_ns AND coalesce(prior_open_ns <= prior_data_ns, true))))
       OR (protocol <> 'TCP' AND time_ns - prior_ns >= $quiet_ns)
), numbered AS (
    SELECT *, row_number() OVER (PARTITION BY cluster, protocol, a_ip, a_port, b_ip, b_port ORDER BY from_ns) AS sequence
    FROM start
)
SELECT cluster, protocol, a_ip, a_port, b_ip, b_port, sequence, from_ns,
    coalesce(lead(from_ns) OVER (PARTITION BY cluster, protocol, a_ip, a_port, b_ip, b_port ORDER BY from_ns), $to_ns) AS to_ns
FROM numbered
