-- A row is one compute line of a GPU node, hour, and GPU state of that node and hour, with the state's weight.
WITH state AS (
    SELECT
        *,
        row_number() OVER (
            PARTITION BY node_key, hour_utc
            ORDER BY job_key, state, cause NULLS FIRST, role NULLS FIRST, gpu_model NULLS FIRST, activity_basis
        ) AS state_id
    FROM core.gpu_state_hourly
    WHERE date >= $from_date AND date < $to_date AND gpu_hours > 0
),
line AS (
    SELECT
        bill.*,
        sum(bill.instance_hours) OVER (PARTITION BY bill.node_key, bill.hour_utc) AS hours_of_all,
        count(*) OVER (PARTITION BY bill.node_key, bill.hour_utc) AS lines
    FROM core.node_bill_hourly AS bill
    WHERE bill.date >= $from_date AND bill.date < $to_date AND bill.charge_scope = 'gpu_compute'
)
SELECT
    line.date, line.hour_utc, line.node_key, line.delivery_id, line.object_id, line.row_number, line.part,
    line.share_billed, line.share_effective, line.currency, line.cost_basis,
    state.cluster, state.gpu_model, state.job_key, state.role, state.state, state.cause, state.activity_basis, state.state_id,
    state.gpu_hours * CASE WHEN line.hours_of_all > 0 THEN line.instance_hours / line.hours_of_all ELSE 1.0 / line.lines END
        AS gpu_hours,
    CAST(round(state.gpu_hours * 1e12) AS HUGEINT) AS weight
FROM line
JOIN state ON state.node_key = line.node_key AND state.hour_utc = line.hour_utc
