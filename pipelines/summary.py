"""What a run tells at its end, in plain words, from what was published."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import duckdb

from models.engine.warehouse import Window
from pipelines.assets.publication import iso_week
from pipelines.resources import Workspace
from reports.publish import open_published

_WASTE_SQL = """
    SELECT currency,
           sum(effective_cost) AS gpu_cost,
           sum(effective_cost) FILTER (WHERE state IN ('idle', 'starting')) AS idle_cost,
           sum(gpu_hours) AS gpu_hours,
           sum(gpu_hours) FILTER (WHERE state IN ('idle', 'starting')) AS idle_gpu_hours,
           sum(gpu_hours) FILTER (WHERE state = 'unmeasured') AS unmeasured_gpu_hours
    FROM mart.fact_gpu_hours WHERE date >= $from_date AND date < $to_date GROUP BY ALL ORDER BY currency NULLS LAST
"""
_TRANSFER_SQL = """
    SELECT currency, sum(effective_cost) AS cost, sum(effective_cost) FILTER (WHERE reason IS NULL) AS attributed
    FROM mart.fact_transfer_cost WHERE date >= $from_date AND date < $to_date AND currency IS NOT NULL
    GROUP BY ALL ORDER BY currency
"""
_RECONCILIATION_SQL = """
    SELECT billing_period, billing_account, currency, measure, bill_total, ledger_total, difference
    FROM mart.fact_reconciliation ORDER BY ALL
"""
_FINDINGS_SQL = """
    SELECT f.kind, f.confidence, f.summary, f.remedy, j.namespace || '/' || j.name AS job
    FROM mart.fact_finding AS f JOIN mart.dim_job AS j USING (job_key)
    WHERE f.opened_utc < $to_date AND (f.closed_utc IS NULL OR f.closed_utc >= $from_date)
    ORDER BY f.counted DESC, f.idle_cost DESC NULLS LAST, f.transfer_cost DESC NULLS LAST, f.kind, job
"""


def summary(workspace: Workspace, window: Window) -> str:
    """Findings, money, reconciliation and where the reports are, as text for a terminal."""
    with open_published(workspace.home) as published:
        con = published.connection
        bounds = {"from_date": window.from_date, "to_date": window.to_date}
        lines = [f"\n{window.from_date} to {window.to_date} (end exclusive, UTC)", ""]
        lines += _findings(_rows(con, _FINDINGS_SQL, bounds))
        lines += _money(_rows(con, _WASTE_SQL, bounds), _rows(con, _TRANSFER_SQL, bounds))
        lines += _reconciliation(_rows(con, _RECONCILIATION_SQL))
    lines += ["", *(f"weekly report      {path}" for path in report_paths(workspace, window))]
    lines.append(f"tables for readers {workspace.home / 'published' / 'v1'}")
    return "\n".join(lines)


def report_paths(workspace: Workspace, window: Window) -> list[Path]:
    """The report file of each ISO week that the window touches."""
    weeks = dict.fromkeys(iso_week(day) for day in window.days)
    return [workspace.home / "reports" / f"{week}.html" for week in weeks]


def _rows(con: duckdb.DuckDBPyConnection, sql: str, parameters: dict[str, date] | None = None) -> list[dict[str, Any]]:
    result = con.execute(sql, parameters)
    names = [column[0] for column in result.description or []]
    return [dict(zip(names, row, strict=True)) for row in result.fetchall()]


def _findings(rows: list[dict[str, Any]]) -> list[str]:
    if not rows:
        return ["Nothing was found wrong. What could not be seen is listed first in the report.", ""]
    lines = [f"{len(rows)} finding{'s' if len(rows) > 1 else ''}:"]
    for row in rows:
        lines.append(f"  {row['kind'].upper():<10} {row['job']} ({row['confidence'].replace('_', ' ')})")
        lines.append(f"             {row['summary']}")
        if row["remedy"]:
            lines.append(f"             what helps: {row['remedy']}")
    return [*lines, ""]


def _money(gpu: list[dict[str, Any]], transfer: list[dict[str, Any]]) -> list[str]:
    lines = []
    for row in gpu:
        hours = f"{row['gpu_hours']:,.1f} GPU-hours, {row['idle_gpu_hours'] or 0:,.1f} idle or starting"
        unmeasured = f", {row['unmeasured_gpu_hours']:,.1f} unmeasured" if row["unmeasured_gpu_hours"] else ""
        if row["currency"] is None or row["gpu_cost"] is None:
            lines.append(f"GPUs without price  {hours}{unmeasured}")
        else:
            idle = f"{row['idle_cost'] or 0:,.2f} {row['currency']} idle or starting"
            lines.append(
                f"GPUs                {row['gpu_cost']:,.2f} {row['currency']}, of which {idle} ({hours}{unmeasured})"
            )
    for row in transfer:
        lines.append(
            f"between zones       {row['cost']:,.2f} {row['currency']}, of which"
            f" {row['attributed'] or 0:,.2f} {row['currency']} with jobs"
        )
    return lines or ["no GPU time and no inter-AZ cost in this window"]


def _reconciliation(rows: list[dict[str, Any]]) -> list[str]:
    return [
        f"bill {row['billing_period']} ({row['measure']})  {row['bill_total']:,.2f} {row['currency']} of account"
        f" {row['billing_account']} = ledger {row['ledger_total']:,.2f}; difference {row['difference']:.12f}"
        for row in rows
    ] or ["no bill was given: there is no money in these numbers"]
