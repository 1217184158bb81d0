"""`zoneledger explain JOB`: one job's story from the published tables: idle time, crossings, cost, evidence, remedy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb

from pipelines.settings import SettingsError, load_settings
from reports.publish import open_published

# K1: what no one can know from these sources; printed where it bears on the job
LIMITS = {
    "always": [
        "Traffic over EFA, RDMA, NVLink or secondary networks leaves no flow records.",
        "Drops by security groups, the kernel or the application are not policy verdicts.",
        "A drop at the sender's door hides the state of the receiver's door.",
    ],
    "util": ["With GPU utilisation alone a stall can't be told from work: busy hours are an upper bound."],
    "flow_share": ["Hubble flows carry no bytes: money split by flow counts is an estimate, shown apart."],
    "unmeasured": ["Unmeasured GPU time is neither busy nor idle: no telemetry was received for it."],
}


def explain_job(config: Path, home: Path | None, wanted: str) -> int:
    """Print the story of the one job that `wanted` names; exit code 2 when none or several match."""
    try:
        published = open_published(load_settings(config, home).home)
    except FileNotFoundError as error:
        raise SettingsError(str(error)) from error
    with published:
        return _tell(published.connection, wanted)


def _tell(con: duckdb.DuckDBPyConnection, wanted: str) -> int:
    jobs = _matching(con, wanted)
    if not jobs:
        raise SettingsError(
            f"no job matches {wanted!r} in what is published\n"
            "  fix:   name it as namespace/name; `zoneledger run` must have covered its days"
        )
    names = {(job["namespace"], job["name"]) for job in jobs}
    if len(names) > 1:
        listed = "\n    ".join(sorted(f"{namespace}/{name}" for namespace, name in names))
        raise SettingsError(f"{wanted!r} matches several jobs\n  fix:   name one of\n    {listed}")
    for job in jobs:
        print(_story(con, job))
    return 0


def _rows(con: duckdb.DuckDBPyConnection, sql: str, **parameters: object) -> list[dict[str, Any]]:
    result = con.execute(sql, parameters or None)
    names = [column[0] for column in result.description or []]
    return [dict(zip(names, row, strict=True)) for row in result.fetchall()]


def _matching(con: duckdb.DuckDBPyConnection, wanted: str) -> list[dict[str, Any]]:
    exact = _rows(
        con,
        "SELECT * FROM mart.dim_job WHERE job_key <> -1 AND ($wanted = name OR $wanted = namespace || '/' || name)"
        " ORDER BY first_seen_utc",
        wanted=wanted,
    )
    return exact or _rows(
        con,
        "SELECT * FROM mart.dim_job WHERE job_key <> -1 AND contains(lower(namespace || '/' || name), lower($wanted))"
        " ORDER BY namespace, name, first_seen_utc",
        wanted=wanted,
    )


def _story(con: duckdb.DuckDBPyConnection, job: dict[str, Any]) -> str:
    key = job["job_key"]
    lines = [
        f"{job['kind']} {job['namespace']}/{job['name']} in {job['cluster']}, run {job['run']}",
        f"seen {job['first_seen_utc']} to {job['last_seen_utc']} UTC; told by {job['resolved_by']}",
        "",
        "GPU time",
    ]
    states = _rows(
        con,
        "SELECT state, coalesce(cause, '') AS cause, currency, sum(gpu_hours) AS gpu_hours, sum(effective_cost) AS cost,"
        " string_agg(DISTINCT activity_basis, ', ') AS basis FROM mart.fact_gpu_hours WHERE job_key = $key"
        " GROUP BY ALL ORDER BY gpu_hours DESC",
        key=key,
    )
    for row in states:
        what = row["state"] + (f", {row['cause'].replace('_', ' ')}" if row["cause"] else "")
        lines.append(f"  {what:<40} {row['gpu_hours']:>9.2f} GPU-hours  {_money(row['cost'], row['currency'])}")
    if not states:
        lines.append("  none is known in what is published")
    crossings = _rows(
        con,
        "SELECT s.zone AS source, d.zone AS destination, t.role, coalesce(t.peer_role, t.peer_name, 'unknown peer') AS peer,"
        " t.direction, t.basis, t.currency, sum(t.metered_bytes) AS bytes, sum(t.effective_cost) AS cost"
        " FROM mart.fact_transfer_cost AS t"
        " JOIN mart.dim_zone AS s ON s.zone_key = t.source_zone_key JOIN mart.dim_zone AS d ON d.zone_key = t.destination_zone_key"
        " WHERE t.job_key = $key GROUP BY ALL ORDER BY cost DESC NULLS LAST LIMIT 12",
        key=key,
    )
    lines += ["", "Billed between zones"]
    for row in crossings:
        volume = "bytes unknown" if row["bytes"] is None else f"{row['bytes'] / 1e9:,.3f} GB"
        lines.append(
            f"  {row['source']} -> {row['destination']}  {row['role'] or 'member'} with {row['peer']}, {row['direction']}:"
            f" {volume}, {_money(row['cost'], row['currency'])} ({row['basis'].replace('_', ' ')})"
        )
    if not crossings:
        lines.append("  nothing was attributed to this job")
    findings = _rows(con, "SELECT * FROM mart.fact_finding WHERE job_key = $key ORDER BY opened_utc", key=key)
    lines += ["", "Findings"]
    lines += [line for finding in findings for line in _finding(finding)] or ["  none"]
    basis = {row["basis"] for row in crossings} | {part for row in states for part in (row["basis"] or "").split(", ")}
    limits = LIMITS["always"] + [
        text
        for name, texts in LIMITS.items()
        if name in basis or name in {row["state"] for row in states}
        for text in texts
    ]
    lines += ["", "What can't be known here", *(f"  - {text}" for text in limits), ""]
    return "\n".join(lines)


def _finding(finding: dict[str, Any]) -> list[str]:
    closed = f"closed {finding['closed_utc']}" if finding["closed_utc"] else "still open"
    lines = [
        f"  {finding['kind']} ({finding['confidence']}), opened {finding['opened_utc']} UTC, {closed}",
        f"    {finding['summary']}",
        f"    idle {finding['idle_gpu_hours']:.2f} GPU-hours, {_money(finding['idle_cost'], finding['currency'])};"
        f" transfer {_money(finding['transfer_cost'], finding['currency'])}",
    ]
    for title, column in (("for", "evidence"), ("against", "counter_evidence")):
        lines += _evidence(title, finding[column])
    lines.append(f"    what helps: {finding['remedy'] or 'nothing that is known to help'}")
    return lines


def _evidence(title: str, text: str | None) -> list[str]:
    """Each piece with its row count and its query (F2); what is no list of pieces is shown as it stands."""
    try:
        pieces = [(item["what"], item["rows"], item["query"]) for item in json.loads(text or "[]")]
    except (ValueError, TypeError, KeyError):
        return [f"    {title}: {text}"]
    return [line for what, rows, query in pieces for line in (f"    {title}: {what} ({rows} rows)", f"      {query}")]


def _money(amount: object, currency: object) -> str:
    return "price unknown" if amount is None else f"{amount:,.2f} {currency or ''}".rstrip()
