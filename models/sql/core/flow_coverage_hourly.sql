-- One node and hour of the day: what its flow log can prove (T6). Nodes that lived then, and nodes that wrote anything that day.
WITH hour AS (
    SELECT CAST(h AS BIGINT) AS hour_ns FROM range($from_ns, $to_ns, 3600000000000) AS t(h)
), tick AS (
    SELECT cluster, node_name, time_ns // 3600000000000 * 3600000000000 AS hour_ns, time_ns // 10000000000 AS tick_number,
        min(time_ns) AS low_ns, max(time_ns) AS high_ns, CAST(sum(events) AS BIGINT) AS events,
        bool_or(coalesce(event_type, 4) <> 5 AND coalesce(verdict IN ('FORWARDED', 'REDIRECTED'), false)) AS forwarded,
        bool_or(coalesce(event_type IN (1, 5), false) OR coalesce(verdict IN ('DROPPED', 'AUDIT'), false)) AS decided
    FROM staging.hubble_flow
    WHERE time_ns >= $from_ns AND time_ns < $to_ns AND node_name IS NOT NULL
    GROUP BY ALL
), quiet AS (
    SELECT *, low_ns - coalesce(lag(high_ns) OVER (PARTITION BY cluster, node_name, hour_ns ORDER BY tick_number), hour_ns) AS before_ns,
        CASE WHEN lead(low_ns) OVER (PARTITION BY cluster, node_name, hour_ns ORDER BY tick_number) IS NULL
             THEN hour_ns + 3600000000000 - high_ns ELSE 0 END AS after_ns
    FROM tick
), seen AS (
    SELECT cluster, node_name, hour_ns, CAST(sum(events) AS BIGINT) AS events, bool_or(forwarded) AS forwarded,
        CAST(sum(greatest(before_ns - 300000000000, 0) + greatest(after_ns - 300000000000, 0)) AS DOUBLE) / 1000000000 AS gap_seconds
    FROM quiet GROUP BY ALL
), decided AS (
    SELECT cluster, node_name, bool_or(decided) AS decided FROM tick GROUP BY ALL
), lost AS (
    SELECT cluster, node_name, coalesce(last_ns, time_ns) // 3600000000000 * 3600000000000 AS hour_ns,
        CAST(sum(events_lost) AS BIGINT) AS events_lost
    FROM staging.hubble_control
    WHERE control_kind = 'lost_events' AND node_name IS NOT NULL
      AND coalesce(last_ns, time_ns) >= $from_ns AND coalesce(last_ns, time_ns) < $to_ns
    GROUP BY ALL
), interface_record AS (
    SELECT cluster, interface_id, start_ns, end_ns, false AS skipped FROM staging.vpc_flow
    WHERE start_ns < $to_ns AND end_ns + 1000000000 > $from_ns AND interface_id IS NOT NULL
    UNION ALL
    SELECT cluster, interface_id, start_ns, end_ns, log_status = 'SKIPDATA' FROM staging.vpc_gap
    WHERE start_ns < $to_ns AND end_ns + 1000000000 > $from_ns AND interface_id IS NOT NULL
), interface_hour AS (
    SELECT i.node_key, r.interface_id, h.hour_ns,
        1 - least(sum(CASE WHEN r.skipped THEN greatest(least(r.end_ns, h.hour_ns + 3600000000000) - greatest(r.start_ns, h.hour_ns), 0)
            ELSE 0 END) / 3600000000000.0, 1) AS kept
    FROM interface_record r
    JOIN flow_interface i ON i.cluster = r.cluster AND i.interface_id = r.interface_id
    JOIN hour h ON r.start_ns < h.hour_ns + 3600000000000 AND r.end_ns + 1000000000 > h.hour_ns
    GROUP BY ALL
), logged AS (
    SELECT DISTINCT node_key, interface_id FROM interface_hour
    -- a format without interface ids still says that the node was logged
    UNION SELECT DISTINCT node_key, '' FROM flow_metered WHERE interface_id IS NULL
), vpc AS (
    SELECT n.cluster, n.name AS node_name, h.hour_ns, avg(coalesce(k.kept, m.kept, 0)) AS vpc_coverage
    FROM logged g CROSS JOIN hour h JOIN core.node_life n ON n.node_key = g.node_key
    LEFT JOIN interface_hour k ON k.node_key = g.node_key AND k.interface_id = g.interface_id AND k.hour_ns = h.hour_ns
    LEFT JOIN (SELECT DISTINCT node_key, hour_ns, 1.0 AS kept FROM flow_metered WHERE interface_id IS NULL) m
        ON g.interface_id = '' AND m.node_key = g.node_key AND m.hour_ns = h.hour_ns
    GROUP BY ALL
), node AS (
    SELECT DISTINCT n.cluster, n.name AS node_name, h.hour_ns FROM core.node_life n
    JOIN hour h ON n.valid_from_ns < h.hour_ns + 3600000000000 AND n.valid_to_ns > h.hour_ns
    UNION SELECT s.cluster, s.node_name, h.hour_ns FROM (SELECT DISTINCT cluster, node_name FROM tick) s CROSS JOIN hour h
    UNION SELECT cluster, node_name, hour_ns FROM lost
)
SELECT ns_date(n.hour_ns) AS date, ns_hour(n.hour_ns) AS hour_utc, n.cluster, n.node_name, coalesce(s.forwarded, false) AS forwarded_seen,
    coalesce(d.decided, false) AS drops_seen, coalesce(s.events, 0) AS events, coalesce(l.events_lost, 0) AS events_lost,
    coalesce(s.gap_seconds, 3300.0) AS gap_seconds,
    CASE WHEN s.events IS NULL THEN 0.0
         ELSE CAST(s.events AS DOUBLE) / (s.events + coalesce(l.events_lost, 0)) * (1 - s.gap_seconds / 3600) END AS coverage,
    v.vpc_coverage
FROM node n
LEFT JOIN seen s ON s.cluster = n.cluster AND s.node_name = n.node_name AND s.hour_ns = n.hour_ns
LEFT JOIN decided d ON d.cluster = n.cluster AND d.node_name = n.node_name
LEFT JOIN lost l ON l.cluster = n.cluster AND l.node_name = n.node_name AND l.hour_ns = n.hour_ns
LEFT JOIN vpc v ON v.cluster = n.cluster AND v.node_name = n.node_name AND v.hour_ns = n.hour_ns
