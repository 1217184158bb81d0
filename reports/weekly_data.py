"""What a week's report is made of: queries over mart tables, one function a question, rows as dicts.

Amounts stay Decimal, null stays None, and currencies are never added (N5): every row of money names its currency.
The notebook asks the same questions through the same functions. Words and drawing do not belong here.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import Any

import duckdb

from reports.weeks import IsoWeek

Row = dict[str, Any]
_ATTRIBUTABLE = "charge_scope IN ('gpu_compute', 'inter_az_transfer')"


def rows(con: duckdb.DuckDBPyConnection, sql: str, parameters: Mapping[str, object] | None = None) -> list[Row]:
    return con.sql(sql, params=dict(parameters) if parameters else None).pl().to_dicts()


def _week(week: IsoWeek) -> dict[str, object]:
    return {"from": week.monday, "to": week.end}


# --- completeness ----------------------------------------------------------------------------------------------
def days(con: duckdb.DuckDBPyConnection, week: IsoWeek) -> list[Row]:
    """The seven days: was it processed, hours with GPU data, the least final status of its bills.

    A day counts as processed when GPU time, traffic, or a bill line that is not `not_run` stands on it.
    """
    found = {
        row["date"]: row
        for row in rows(
            con,
            """
            WITH gpu AS (
                SELECT "date", count(DISTINCT hour_utc) AS gpu_hours_seen FROM mart.fact_gpu_hours
                WHERE "date" >= $from AND "date" < $to GROUP BY ALL
            ), seen AS (
                SELECT "date" FROM gpu
                UNION SELECT "date" FROM mart.fact_zone_traffic WHERE "date" >= $from AND "date" < $to
                UNION SELECT "date" FROM mart.fact_cost_ledger WHERE "date" >= $from AND "date" < $to
                    AND reason IS DISTINCT FROM 'not_run' AND charge_span IS DISTINCT FROM 'period'
            ), bills AS (
                SELECT "date", CASE WHEN bool_or(status = 'open') THEN 'open' WHEN bool_or(status = 'settled') THEN 'settled'
                    ELSE min(status) END AS status, max(bill_horizon_utc) AS bill_horizon_utc
                FROM mart.fact_bill_status WHERE "date" >= $from AND "date" < $to GROUP BY ALL
            )
            SELECT "date", seen."date" IS NOT NULL AS processed, gpu_hours_seen, status, bill_horizon_utc
            FROM seen FULL JOIN bills USING ("date") LEFT JOIN gpu USING ("date")
            """,
            _week(week),
        )
    }
    blank: Row = {"processed": False, "gpu_hours_seen": None, "status": None, "bill_horizon_utc": None}
    return [blank | found.get(day, {}) | {"date": day} for day in week.days]


def sources(con: duckdb.DuckDBPyConnection, week: IsoWeek) -> list[Row]:
    """Each cluster's sources: days with records, counts and coverage in the week.

    A source without records in the week is listed all the same when it had some in the week's billing periods: a
    monthly bill, for example, stands on the first day that it charges.
    """
    return rows(
        con,
        """
        SELECT c.cluster, f.source, f.cluster_key,
            count(DISTINCT f."date") FILTER (WHERE f."date" >= $from AND f."date" < $to) AS days,
            CAST(sum(f.rows_read) FILTER (WHERE f."date" >= $from AND f."date" < $to) AS BIGINT) AS rows_read,
            CAST(sum(f.rows_kept) FILTER (WHERE f."date" >= $from AND f."date" < $to) AS BIGINT) AS rows_kept,
            CAST(sum(f.rows_rejected) FILTER (WHERE f."date" >= $from AND f."date" < $to) AS BIGINT) AS rows_rejected,
            CAST(sum(f.rows_duplicate) FILTER (WHERE f."date" >= $from AND f."date" < $to) AS BIGINT) AS rows_duplicate,
            CAST(sum(f.rows_control) FILTER (WHERE f."date" >= $from AND f."date" < $to) AS BIGINT) AS rows_control,
            min(f.coverage) FILTER (WHERE f."date" >= $from AND f."date" < $to) AS coverage_lowest,
            avg(f.coverage) FILTER (WHERE f."date" >= $from AND f."date" < $to) AS coverage_mean,
            string_agg(DISTINCT f.note, '; ' ORDER BY f.note) FILTER (WHERE f."date" >= $from AND f."date" < $to) AS note,
            max(f."date") AS last_date
        FROM mart.fact_coverage AS f LEFT JOIN mart.dim_cluster AS c USING (cluster_key)
        WHERE list_contains($periods, strftime(f."date", '%Y-%m'))
        GROUP BY ALL ORDER BY c.cluster NULLS FIRST, f.source, f.cluster_key
        """,
        _week(week) | {"periods": week.billing_periods},
    )


def clusters(con: duckdb.DuckDBPyConnection, week: IsoWeek) -> list[str]:
    found = rows(
        con,
        """
        SELECT DISTINCT cluster FROM mart.dim_cluster WHERE cluster_key >= 0 AND cluster_key IN (
            SELECT cluster_key FROM mart.fact_gpu_hours WHERE "date" >= $from AND "date" < $to
            UNION SELECT cluster_key FROM mart.fact_zone_traffic WHERE "date" >= $from AND "date" < $to
            UNION SELECT cluster_key FROM mart.fact_coverage WHERE "date" >= $from AND "date" < $to
        ) ORDER BY 1
        """,
        _week(week),
    )
    return [row["cluster"] for row in found]


# --- GPU time --------------------------------------------------------------------------------------------------
def gpu_states(con: duckdb.DuckDBPyConnection, week: IsoWeek) -> list[Row]:
    """GPU-hours and effective cost by currency, state and cause. Currency None: rows without a price."""
    return rows(
        con,
        """
        SELECT CASE WHEN effective_cost IS NOT NULL THEN currency END AS currency, state, cause,
            sum(gpu_hours) AS gpu_hours, CAST(sum(effective_cost) AS DECIMAL(18,6)) AS cost,
            CAST(sum(effective_cost) FILTER (WHERE cost_basis = 'estimated') AS DECIMAL(18,6)) AS estimated_cost
        FROM mart.fact_gpu_hours WHERE "date" >= $from AND "date" < $to
        GROUP BY ALL ORDER BY ALL
        """,
        _week(week),
    )


def gpu_days(con: duckdb.DuckDBPyConnection, week: IsoWeek) -> list[Row]:
    """Effective cost and GPU-hours by currency, day and state."""
    return rows(
        con,
        """
        SELECT CASE WHEN effective_cost IS NOT NULL THEN currency END AS currency, "date", state,
            sum(gpu_hours) AS gpu_hours, CAST(sum(effective_cost) AS DECIMAL(18,6)) AS cost
        FROM mart.fact_gpu_hours WHERE "date" >= $from AND "date" < $to
        GROUP BY ALL ORDER BY ALL
        """,
        _week(week),
    )


def gpu_models(con: duckdb.DuckDBPyConnection, week: IsoWeek) -> list[Row]:
    """What G6 needs by currency and GPU model: all GPU cost, that of unmeasured time, busy hours (priced rows only)."""
    return rows(
        con,
        """
        SELECT currency, gpu_model, sum(gpu_hours) AS gpu_hours,
            coalesce(sum(gpu_hours) FILTER (WHERE state = 'busy'), 0) AS busy_hours,
            CAST(sum(effective_cost) AS DECIMAL(18,6)) AS cost,
            CAST(coalesce(sum(effective_cost) FILTER (WHERE state = 'unmeasured'), 0) AS DECIMAL(18,6)) AS unmeasured_cost
        FROM mart.fact_gpu_hours WHERE "date" >= $from AND "date" < $to AND effective_cost IS NOT NULL
        GROUP BY ALL ORDER BY currency, cost DESC, gpu_model
        """,
        _week(week),
    )


def jobs(con: duckdb.DuckDBPyConnection, week: IsoWeek) -> list[Row]:
    """One row a currency and job run that held GPUs, most expensive first; its main cause of idle or starting time."""
    return rows(
        con,
        """
        WITH priced AS (
            SELECT *, CASE WHEN effective_cost IS NOT NULL THEN currency END AS known_currency
            FROM mart.fact_gpu_hours WHERE "date" >= $from AND "date" < $to AND job_key <> -1
        ), causes AS (
            SELECT known_currency, job_key, cause, sum(gpu_hours) AS cause_hours FROM priced
            WHERE state IN ('idle', 'starting') AND cause IS NOT NULL GROUP BY ALL
        ), main_cause AS (
            SELECT known_currency, job_key, arg_max(cause, (cause_hours, cause)) AS cause FROM causes GROUP BY ALL
        ), transfers AS (
            SELECT currency, job_key, CAST(sum(effective_cost) AS DECIMAL(18,6)) AS transfer_cost FROM mart.fact_transfer_cost
            WHERE "date" >= $from AND "date" < $to AND reason IS NULL AND job_key <> -1 GROUP BY ALL
        ), held AS (
            SELECT known_currency AS currency, job_key, sum(gpu_hours) AS gpu_hours,
                coalesce(sum(gpu_hours) FILTER (WHERE state = 'busy'), 0) AS busy_hours,
                coalesce(sum(gpu_hours) FILTER (WHERE state = 'underused'), 0) AS underused_hours,
                coalesce(sum(gpu_hours) FILTER (WHERE state = 'comm_stall'), 0) AS comm_stall_hours,
                coalesce(sum(gpu_hours) FILTER (WHERE state = 'idle'), 0) AS idle_hours,
                coalesce(sum(gpu_hours) FILTER (WHERE state = 'starting'), 0) AS starting_hours,
                coalesce(sum(gpu_hours) FILTER (WHERE state = 'unmeasured'), 0) AS unmeasured_hours,
                CAST(sum(effective_cost) AS DECIMAL(18,6)) AS cost,
                CAST(sum(CASE WHEN state = 'idle' THEN effective_cost ELSE 0 END) AS DECIMAL(18,6)) AS idle_cost,
                CAST(sum(CASE WHEN state = 'unmeasured' THEN effective_cost ELSE 0 END) AS DECIMAL(18,6)) AS unmeasured_cost
            FROM priced GROUP BY ALL
        )
        SELECT held.*, main_cause.cause, transfers.transfer_cost, j.cluster, j.namespace, j.kind, j.name, j.run, o.team
        FROM held
        LEFT JOIN main_cause ON main_cause.job_key = held.job_key
            AND main_cause.known_currency IS NOT DISTINCT FROM held.currency
        LEFT JOIN transfers ON transfers.job_key = held.job_key AND transfers.currency = held.currency
        LEFT JOIN mart.dim_job AS j ON j.job_key = held.job_key
        LEFT JOIN mart.dim_owner AS o ON o.owner_key = j.owner_key
        ORDER BY held.currency NULLS LAST, cost DESC NULLS LAST, gpu_hours DESC, held.job_key
        """,
        _week(week),
    )


# --- inter-AZ --------------------------------------------------------------------------------------------------
def transfer_totals(con: duckdb.DuckDBPyConnection, week: IsoWeek) -> list[Row]:
    """Inter-AZ money by currency and how it was split: basis of the attributed part, reason of the rest."""
    return rows(
        con,
        """
        SELECT currency, CASE WHEN reason IS NULL THEN basis END AS basis, reason,
            CAST(sum(effective_cost) AS DECIMAL(18,6)) AS cost, count(*) FILTER (WHERE effective_cost IS NULL) AS unknown_rows,
            sum(billed_gb) AS billed_gb
        FROM mart.fact_transfer_cost WHERE "date" >= $from AND "date" < $to AND reason IS DISTINCT FROM 'not_charged'
        GROUP BY ALL ORDER BY ALL
        """,
        _week(week),
    )


def transfer_pairs(con: duckdb.DuckDBPyConnection, week: IsoWeek) -> list[Row]:
    """Attributed inter-AZ money by currency and ordered zone pair, measured and flow-share money apart."""
    return rows(
        con,
        """
        SELECT t.currency, s.zone AS source_zone, d.zone AS destination_zone, t.source_zone_key, t.destination_zone_key,
            CAST(sum(effective_cost) AS DECIMAL(18,6)) AS cost,
            CAST(coalesce(sum(effective_cost) FILTER (WHERE basis = 'flow_share'), 0) AS DECIMAL(18,6)) AS flow_share_cost,
            sum(billed_gb) AS billed_gb
        FROM mart.fact_transfer_cost AS t
        LEFT JOIN mart.dim_zone AS s ON s.zone_key = t.source_zone_key
        LEFT JOIN mart.dim_zone AS d ON d.zone_key = t.destination_zone_key
        WHERE "date" >= $from AND "date" < $to AND reason IS NULL
        GROUP BY ALL ORDER BY ALL
        """,
        _week(week),
    )


def transfer_jobs(con: duckdb.DuckDBPyConnection, week: IsoWeek) -> list[Row]:
    """Attributed inter-AZ money by job, who talked to whom, zone pair and direction (A6), most expensive first."""
    return rows(
        con,
        """
        SELECT t.currency, t.job_key, t.role, t.peer_role, t.peer_name, t.peer_job_key, p.name AS peer_job_name,
            s.zone AS source_zone, d.zone AS destination_zone, t.source_zone_key, t.destination_zone_key, t.direction, j.name, j.namespace, j.kind, j.cluster, o.team,
            CAST(sum(effective_cost) AS DECIMAL(18,6)) AS cost,
            CAST(coalesce(sum(effective_cost) FILTER (WHERE basis = 'flow_share'), 0) AS DECIMAL(18,6)) AS flow_share_cost,
            sum(billed_gb) AS billed_gb, sum(metered_bytes) AS metered_bytes, min(coverage) AS coverage_lowest
        FROM mart.fact_transfer_cost AS t
        LEFT JOIN mart.dim_zone AS s ON s.zone_key = t.source_zone_key
        LEFT JOIN mart.dim_zone AS d ON d.zone_key = t.destination_zone_key
        LEFT JOIN mart.dim_job AS j ON j.job_key = t.job_key
        LEFT JOIN mart.dim_job AS p ON p.job_key = t.peer_job_key AND t.peer_job_key <> -1
        LEFT JOIN mart.dim_owner AS o ON o.owner_key = j.owner_key
        WHERE "date" >= $from AND "date" < $to AND reason IS NULL
        GROUP BY ALL
        ORDER BY t.currency, cost DESC NULLS LAST, t.job_key, t.direction, source_zone, destination_zone, t.role,
            t.peer_role, t.peer_name
        """,
        _week(week),
    )


def transfer_not_charged(con: duckdb.DuckDBPyConnection, week: IsoWeek) -> list[Row]:
    """Volume that crossed zones and that the provider does not charge: each byte once, at its sender."""
    return rows(
        con,
        """
        SELECT c.cluster, sum(metered_bytes) AS bytes FROM mart.fact_transfer_cost AS t
        LEFT JOIN mart.dim_cluster AS c USING (cluster_key)
        WHERE "date" >= $from AND "date" < $to AND reason = 'not_charged' AND direction = 'out'
        GROUP BY ALL ORDER BY ALL
        """,
        _week(week),
    )


def localities(con: duckdb.DuckDBPyConnection, week: IsoWeek) -> list[Row]:
    """Traffic by locality and verdict: connections, denied attempts, bytes where known."""
    return rows(
        con,
        """
        SELECT * FROM (SELECT locality, CAST(sum(connections) AS BIGINT) AS connections, CAST(sum(attempts) AS BIGINT) AS attempts,
            sum(bytes) AS bytes, CAST(coalesce(sum(connections) FILTER (WHERE bytes IS NULL), 0) AS BIGINT) AS without_bytes
        FROM mart.fact_zone_traffic WHERE "date" >= $from AND "date" < $to
        GROUP BY ALL) AS traffic
        ORDER BY list_position(['same_zone', 'cross_zone', 'cross_region', 'external', 'unknown'], locality), locality
        """,
        _week(week),
    )


# --- findings, ledger, reconciliation --------------------------------------------------------------------------
def findings(con: duckdb.DuckDBPyConnection, week: IsoWeek) -> list[Row]:
    """Findings whose time overlaps the week, those that carry most GPU-hours first."""
    return rows(
        con,
        """
        SELECT f.*, j.cluster, j.namespace, j.kind AS job_kind, j.name, o.team
        FROM mart.fact_finding AS f
        LEFT JOIN mart.dim_job AS j USING (job_key)
        LEFT JOIN mart.dim_owner AS o ON o.owner_key = j.owner_key
        WHERE coalesce(f.first_evidence_utc, f.opened_utc) < CAST($to AS TIMESTAMP)
            AND coalesce(f.closed_utc, CAST($to AS TIMESTAMP)) >= CAST($from AS TIMESTAMP)
        ORDER BY f.counted DESC, f.idle_gpu_hours DESC NULLS LAST, f.transfer_cost DESC NULLS LAST, f.finding_key
        """,
        _week(week),
    )


def ledger(con: duckdb.DuckDBPyConnection, week: IsoWeek) -> list[Row]:
    """The week's ledger by currency, bucket, scope and reason; charges longer than a day are apart (`period`)."""
    return rows(
        con,
        """
        SELECT currency, coalesce(charge_span = 'period', false) AS period, bucket, charge_scope, reason, rule,
            CAST(sum(effective_cost) AS DECIMAL(18,6)) AS cost, CAST(sum(billed_cost) AS DECIMAL(18,6)) AS billed_cost,
            count(*) FILTER (WHERE effective_cost IS NULL) AS unknown_rows
        FROM mart.fact_cost_ledger WHERE "date" >= $from AND "date" < $to
        GROUP BY ALL ORDER BY ALL
        """,
        _week(week),
    )


def attributable(con: duckdb.DuckDBPyConnection, week: IsoWeek) -> list[Row]:
    """GPU and inter-AZ money of the ledger by currency: all of it, what names a job, what is unallocated GPUs."""
    return rows(
        con,
        f"""
        SELECT currency, CAST(sum(effective_cost) AS DECIMAL(18,6)) AS total,
            CAST(coalesce(sum(effective_cost) FILTER (WHERE bucket = 'job'), 0) AS DECIMAL(18,6)) AS to_jobs,
            CAST(coalesce(sum(effective_cost) FILTER (WHERE reason = 'unallocated'), 0) AS DECIMAL(18,6)) AS unallocated,
            CAST(coalesce(sum(effective_cost) FILTER (
                WHERE bucket = 'unattributed' AND reason IS DISTINCT FROM 'unallocated'), 0) AS DECIMAL(18,6)) AS unattributed
        FROM mart.fact_cost_ledger
        WHERE "date" >= $from AND "date" < $to AND {_ATTRIBUTABLE} AND charge_span IS DISTINCT FROM 'period'
        GROUP BY ALL ORDER BY ALL
        """,
        _week(week),
    )


def reconciliation(con: duckdb.DuckDBPyConnection, week: IsoWeek) -> list[Row]:
    return rows(
        con,
        "SELECT * FROM mart.fact_reconciliation WHERE list_contains($periods, billing_period) ORDER BY ALL",
        {"periods": week.billing_periods},
    )


def bridge(con: duckdb.DuckDBPyConnection, week: IsoWeek) -> list[Row]:
    return rows(
        con,
        "SELECT * FROM mart.fact_cost_bridge WHERE list_contains($periods, billing_period) ORDER BY ALL",
        {"periods": week.billing_periods},
    )


def restatements(con: duckdb.DuckDBPyConnection, week: IsoWeek) -> list[Row]:
    """What changed in the week since its earlier revisions, effective cost and GPU-hours."""
    return rows(
        con,
        """
        SELECT r.*, j.name FROM mart.fact_restatement AS r LEFT JOIN mart.dim_job AS j ON j.job_key = r.job_key AND r.job_key <> -1
        WHERE r.week = $week ORDER BY revision DESC, abs(delta) DESC NULLS LAST, "table", job_key, charge_scope, measure
        """,
        {"week": week.name},
    )


def publication(con: duckdb.DuckDBPyConnection, week: IsoWeek) -> Row | None:
    """Revision of the week and when it was published; None outside a published snapshot (a warehouse)."""
    present = rows(
        con,
        "SELECT 1 AS present FROM information_schema.tables"
        " WHERE table_catalog = current_database() AND table_schema = 'publication' AND table_name = 'week'",
    )
    if not present:
        return None
    found = rows(con, "SELECT revision, published_utc FROM publication.week WHERE week = $week", {"week": week.name})
    return found[0] if found else None


def weeks_with_data(con: duckdb.DuckDBPyConnection) -> list[date]:
    """Mondays of the weeks that have GPU time, traffic or bill lines that were run."""
    return [
        row["monday"]
        for row in rows(
            con,
            """
            SELECT DISTINCT CAST(date_trunc('week', "date") AS DATE) AS monday FROM (
                SELECT "date" FROM mart.fact_gpu_hours UNION SELECT "date" FROM mart.fact_zone_traffic
                UNION SELECT "date" FROM mart.fact_cost_ledger WHERE reason IS DISTINCT FROM 'not_run'
            ) AS days ORDER BY 1
            """,
        )
    ]
