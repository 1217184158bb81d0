"""The weekly report: one HTML file that needs no network and no script, for the people who pay.

Reads mart tables only (R4), through `weekly_data`; `weekly_sections` says it in words; the template lays it out.
No clock is read: the same mart gives the same bytes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import jinja2

from reports import weekly_data as data
from reports import weekly_sections as sections
from reports import words as w
from reports.weeks import IsoWeek, week_of

_TEMPLATES = Path(__file__).resolve().parent / "templates"


def weekly_report(connection: duckdb.DuckDBPyConnection, week: str, out: Path) -> Path:
    """Write the report of an ISO week (`2026-W47`, UTC) to `out`, replacing what was there in one step.

    `connection` holds the mart: a published snapshot (`open_published`), which also knows revisions, or a warehouse.
    Raises ValueError when `week` is not an ISO week.
    """
    html = render_week(connection, week)
    out.parent.mkdir(parents=True, exist_ok=True)
    aside = out.with_name(f".{out.name}.next")
    aside.write_text(html, encoding="utf-8")
    aside.replace(out)
    return out


def render_week(connection: duckdb.DuckDBPyConnection, week: str) -> str:
    return _environment().get_template("weekly.html.j2").render(week_context(connection, week_of(week)))


def week_context(con: duckdb.DuckDBPyConnection, week: IsoWeek) -> dict[str, Any]:
    """Everything that the page says, as strings and charts."""
    days, sources = data.days(con, week), data.sources(con, week)
    this, last = _currency_weeks(con, week), _currency_weeks(con, week.previous)
    findings, jobs = data.findings(con, week), data.jobs(con, week)
    gpu_days, ledger = data.gpu_days(con, week), data.ledger(con, week)
    pairs, transfers = data.transfer_pairs(con, week), data.transfer_jobs(con, week)
    complete = sections.completeness(days, sources, this, data.attributable(con, week))
    priced = [one for one in this if one.currency is not None]
    currencies = sorted({row["currency"] for row in ledger if row["currency"] is not None})
    return {
        "week": week.name,
        "span": f"{week.monday.day} {week.monday:%b} to {week.days[-1].day} {week.days[-1]:%b %Y}",
        "clusters": [w.clean(name) for name in data.clusters(con, week)],
        "publication": _publication(con, week),
        "empty": not this and not ledger and not findings,
        "several_currencies": len({*currencies, *(one.currency for one in priced)}) > 1,
        "completeness": complete,
        "headline": sections.headline(this, findings),
        "tiles": [
            {"currency": one.currency, "tiles": sections.tiles(one, one.currency in currencies)} for one in priced
        ],
        "gpu": [
            sections.gpu_section(one, gpu_days, week.days, charts=one.currency is not None or len(this) == 1)
            for one in this
            if one.states
        ],
        "comparison": _comparison(con, week, complete["partial"], priced, last),
        "units": [{"currency": one.currency, "rows": sections.unit_costs(one)} for one in priced if one.states],
        "jobs": [sections.jobs_section(jobs, one) for one in this if one.states],
        "transfer": [sections.transfer_section(one, pairs, transfers) for one in priced if one.transfers],
        "localities": sections.localities_section(data.localities(con, week), data.transfer_not_charged(con, week)),
        "findings": sections.findings_section(findings),
        "ledger": [sections.ledger_section(ledger, currency) for currency in currencies],
        "reconciliation": sections.reconciliation_section(data.reconciliation(con, week), data.bridge(con, week)),
        "restatements": sections.restatement_section(data.restatements(con, week)),
        "states": w.STATES,
        "causes": w.CAUSES,
        "reasons": w.REASONS,
        "bases": w.BASES,
    }


def _currency_weeks(con: duckdb.DuckDBPyConnection, week: IsoWeek) -> list[sections.CurrencyWeek]:
    return sections.by_currency(data.gpu_states(con, week), data.gpu_models(con, week), data.transfer_totals(con, week))


def _publication(con: duckdb.DuckDBPyConnection, week: IsoWeek) -> str | None:
    found = data.publication(con, week)
    return None if found is None else f"Revision {found['revision']}, published {w.moment(found['published_utc'])}"


def _comparison(
    con: duckdb.DuckDBPyConnection, week: IsoWeek, partial: bool, this: list[sections.CurrencyWeek],
    last: list[sections.CurrencyWeek],
) -> dict[str, Any]:  # fmt: skip
    """Week over week, only between whole weeks; otherwise the reason why there is none."""
    before = week.previous
    known = sum(1 for day in data.days(con, before) if day["processed"])
    why = None
    if partial:
        why = f"{week.name} is not whole yet, so it is not compared with the week before."
    elif known == 0:
        why = f"Nothing is known of {before.name}, so there is nothing to compare with."
    elif known < 7:
        why = f"Only {known} of the 7 days of {before.name} were processed, so the weeks are not compared."
    matched = {one.currency: one for one in last}
    published = data.publication(con, before)
    return {
        "before": before.name,
        "restated": published["revision"] if published is not None and published["revision"] > 1 else None,
        "why": why,
        "tables": [] if why else [sections.week_over_week(one, matched.get(one.currency)) for one in this],
    }


def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
