"""From rows to what a page says: each function turns query rows into the strings and charts of one section.

Sums here are sums of Decimals within one currency. Nothing here reads a database, a clock or a file.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from typing import Any

from reports import words as w
from reports.charts import Bar, Series, bar_chart, column_chart, share_chart
from reports.weekly_data import Row

TOP_JOBS = 10
TOP_TRANSFERS = 12
TOP_FINDINGS = 25
TOP_RESTATEMENTS = 20
ZERO = Decimal(0)
BUCKET_COLOURS = {"job": "#00805d", "shared": "#4f9a8a", "unattributed": "#c94c05", "out_of_scope": "#68717a"}


def total(values: Iterable[Decimal | None]) -> Decimal:
    """The sum of what is known."""
    return sum((value for value in values if value is not None), ZERO)


# --- one week in one currency ----------------------------------------------------------------------------------
@dataclass
class CurrencyWeek:
    """A week's GPU and inter-AZ figures in one currency; `currency` None holds GPU time without a price."""

    currency: str | None
    states: list[Row] = field(default_factory=list)
    models: list[Row] = field(default_factory=list)
    transfers: list[Row] = field(default_factory=list)

    def hours(self, *states: str) -> float:
        return sum(row["gpu_hours"] for row in self.states if not states or row["state"] in states)

    def cost(self, *states: str) -> Decimal:
        return total(row["cost"] for row in self.states if not states or row["state"] in states)

    @property
    def estimated(self) -> Decimal:
        return total(row["estimated_cost"] for row in self.states)

    @property
    def transfer(self) -> Decimal:
        return total(row["cost"] for row in self.transfers)

    def transfer_by(self, *bases: str) -> Decimal:
        return total(row["cost"] for row in self.transfers if row["basis"] in bases)

    @property
    def transfer_unattributed(self) -> Decimal:
        return total(row["cost"] for row in self.transfers if row["reason"] is not None)

    @property
    def transfer_unknown_rows(self) -> int:
        return sum(row["unknown_rows"] for row in self.transfers)

    @property
    def whole(self) -> Decimal:
        return self.cost() + self.transfer

    @property
    def busy_hour_cost(self) -> Decimal | None:
        """G6, fleet: all GPU cost less unmeasured, over busy hours; unallocated is in it."""
        return per_hour(self.cost() - self.cost("unmeasured"), self.hours("busy"))


def per_hour(cost: Decimal | None, busy_hours: float) -> Decimal | None:
    """Cost over hours; None without busy hours (G6)."""
    if cost is None or busy_hours <= 0:
        return None
    return cost / Decimal(repr(busy_hours))


def by_currency(states: list[Row], models: list[Row], transfers: list[Row]) -> list[CurrencyWeek]:
    """The week per currency, the one with most GPU-hours first, GPU time without a price last."""
    found: dict[str | None, CurrencyWeek] = {}
    for name, rows in (("states", states), ("models", models), ("transfers", transfers)):
        for row in rows:
            week = found.setdefault(row["currency"], CurrencyWeek(row["currency"]))
            getattr(week, name).append(row)
    return sorted(found.values(), key=lambda week: (week.currency is None, -week.hours(), week.currency or ""))


# --- completeness ----------------------------------------------------------------------------------------------
def completeness(
    days: list[Row], sources: list[Row], weeks: list[CurrencyWeek], attributable: list[Row]
) -> dict[str, Any]:
    processed = sum(1 for day in days if day["processed"])
    held = sum(week.hours() - week.hours("unallocated", "reserved_unused") for week in weeks)
    unmeasured = sum(week.hours("unmeasured") for week in weeks)
    all_hours = sum(week.hours() for week in weeks)
    unpriced = sum(week.hours() for week in weeks if week.currency is None)
    measured_share = w.share(held - unmeasured, held)
    read, rejected = _sum(sources, "rows_read"), _sum(sources, "rows_rejected")
    return {
        "processed": processed,
        "partial": processed < 7,
        "provisional_days": sum(1 for day in days if day["status"] == "open"),
        "days": [_day_cell(day) for day in days],
        "sources": [_source_row(row) for row in sources],
        "silent_sources": [row for row in sources if not row["days"]],
        "tiles": [
            {
                "label": "Days processed",
                "value": f"{processed} of 7",
                "note": _bill_note(days),
                "warn": processed < 7 or any(day["status"] in ("open", None) for day in days),
            },
            {
                "label": "GPU time measured",
                "value": w.percent(measured_share) if measured_share is not None else w.UNKNOWN,
                "note": f"{w.hours(held - unmeasured)} of {w.hours(held)} that jobs held"
                if held
                else "no GPU time of any job is known",
                "warn": measured_share is None or measured_share < 0.95,
            },
            _attribution_tile(attributable),
            {
                "label": "GPU time with a price",
                "value": w.percent(w.share(all_hours - unpriced, all_hours)) if all_hours else w.UNKNOWN,
                "note": f"{w.hours(unpriced)} have no price and are in no total"
                if unpriced
                else ("every GPU-hour has a price" if all_hours else "no GPU time is known"),
                "warn": bool(unpriced) or not all_hours,
            },
            {
                "label": "Rows rejected",
                "value": w.count(rejected),
                "note": f"of {w.count(read)} rows read; each is kept with its file, line and reason"
                if read is not None
                else "no source was read on these days",
                "warn": rejected is None or rejected > 0,
            },
        ],
    }


def _sum(rows: list[Row], name: str) -> int | None:
    values = [row[name] for row in rows if row[name] is not None]
    return sum(values) if values else None


def _bill_note(days: list[Row]) -> str:
    states = [day["status"] or "none" for day in days]
    said = [
        f"{states.count(status)} {w.BILL_STATUS[status]}"
        for status in ("invoiced", "settled", "open", "none")
        if status in states
    ]
    return "of the 7 days: " + ", ".join(said)


def _day_cell(day: Row) -> dict[str, Any]:
    status = day["status"] or "none"
    data = "processed" if day["processed"] else "not processed"
    seen = day["gpu_hours_seen"]
    return {
        "name": w.day(day["date"]),
        "processed": day["processed"],
        "status": status,
        "words": f"{data}, {w.BILL_STATUS.get(status, status)}",
        "gpu": f"GPU data in {w.plural(seen, 'hour')}" if seen else "no GPU data",
    }


def _source_row(row: Row) -> dict[str, Any]:
    closes = None
    if row["rows_read"] is not None:
        parts = (row["rows_kept"], row["rows_rejected"], row["rows_duplicate"], row["rows_control"])
        closes = row["rows_read"] == sum(part or 0 for part in parts)
    note = w.clean(row["note"] or "")
    if not row["days"]:
        note = f"nothing dated in this week; its last records are of {w.day(row['last_date'])}"
    return {
        "cluster": row["cluster"] if row["cluster_key"] != -1 and row["cluster"] else "all",
        "source": row["source"],
        "days": f"{row['days']} of 7",
        "missing": row["days"] < 7,
        "read": w.count(row["rows_read"]) if row["days"] else "–",
        "kept": w.count(row["rows_kept"]) if row["days"] else "–",
        "rejected": w.count(row["rows_rejected"]) if row["days"] else "–",
        "duplicate": w.count(row["rows_duplicate"]) if row["days"] else "–",
        "control": w.count(row["rows_control"]) if row["days"] else "–",
        "has_rejected": bool(row["rows_rejected"]),
        "closes": closes,
        "coverage": _coverage(row),
        "note": note,
    }


def _coverage(row: Row) -> str:
    if row["coverage_mean"] is None:
        return w.UNKNOWN
    mean, lowest = w.percent(row["coverage_mean"]), w.percent(row["coverage_lowest"])
    return mean if mean == lowest else f"{mean} (lowest day {lowest})"


def _attribution_tile(attributable: list[Row]) -> dict[str, Any]:
    shares, notes = [], []
    several = len(attributable) > 1
    for row in attributable:
        prefix = f"{row['currency']}\u00a0" if several else ""
        shares.append(prefix + w.percent(w.share(row["to_jobs"], row["total"])))
        notes.append(
            f"{prefix}{w.percent(w.share(row['unallocated'], row['total']))} unallocated GPUs,"
            f" {w.percent(w.share(row['unattributed'], row['total']))} other reasons"
        )
    return {
        "label": "GPU and inter-AZ money that names a job",
        "value": ", ".join(shares) if shares else w.UNKNOWN,
        "note": "the rest: " + "; ".join(notes)
        if notes
        else "no bill line of GPU compute or inter-AZ transfer is in this week",
        "warn": not shares,
    }


# --- headline --------------------------------------------------------------------------------------------------
def headline(weeks: list[CurrencyWeek], findings: list[Row]) -> list[dict[str, Any]]:
    """A lead sentence and a few more per currency; figures named, nothing added across currencies."""
    out = []
    for week in weeks:
        if week.currency is None:
            continue
        out.append({"currency": week.currency, "lead": _lead(week), "more": _lead_details(week, findings)})
    return out


def _lead(week: CurrencyWeek) -> str:
    cost, idle = w.money(week.whole, week.currency), week.cost("idle")
    said = f"GPU and inter-AZ cost this week: {cost}"
    if not week.states:
        return f"Inter-AZ cost this week: {cost}; no GPU cost is known in {week.currency}."
    return (
        f"{said}, of which {w.money(idle, week.currency)} ({w.percent(w.share(idle, week.whole))}) was idle GPU time."
    )


def _lead_details(week: CurrencyWeek, findings: list[Row]) -> list[str]:
    said = []
    causes = cause_costs(week, ("idle",))
    if causes:
        cause, row = max(causes.items(), key=lambda item: (item[1][0], item[0] or ""))
        words = w.words(w.CAUSES, cause, "no cause recorded")
        said.append(f"Largest cause of idle time: {words}, {w.money(row[0], week.currency)} for {w.hours(row[1])}.")
    if week.cost("unallocated"):
        part = week.cost("unallocated")
        said.append(
            f"GPUs that no job asked for: {w.money(part, week.currency)} ({w.percent(w.share(part, week.whole))})."
        )
    if week.transfers:
        said.append(_transfer_sentence(week))
    if week.estimated:
        said.append(
            f"{w.money(week.estimated, week.currency)} of the GPU cost is an estimate: the bill does not reach those hours yet."
        )
    if week.transfer_unknown_rows:
        said.append(
            f"{w.plural(week.transfer_unknown_rows, 'inter-AZ row')} without a known effective cost: the total is incomplete."
        )
    counted = [f for f in findings if f["counted"] == 1 and f["currency"] == week.currency]
    if counted:
        said.append(_findings_sentence(counted, week.currency))
    return said


def _findings_sentence(counted: list[Row], currency: str | None) -> str:
    known = [row["idle_cost"] for row in counted if row["idle_cost"] is not None]
    unknown = len(counted) - len(known)
    said = f"{w.plural(len(counted), 'finding')} below {'carries' if len(counted) == 1 else 'carry'}"
    if not known:
        return f"{said} idle or stalled GPU time of unknown cost."
    more = f", and the GPU cost of {w.count(unknown)} of them is unknown" if unknown else ""
    return f"{said} {w.money(total(known), currency)} of idle or stalled GPU time since first seen{more}."


def _transfer_sentence(week: CurrencyWeek) -> str:
    measured = week.transfer_by("measured_bytes", "counter_bytes")
    return (
        f"Inter-AZ transfer: {w.money(week.transfer, week.currency)}, of which {w.money(measured, week.currency)} was attributed"
        f" by measured bytes, {w.money(week.transfer_by('flow_share'), week.currency)} estimated by flow shares, and"
        f" {w.money(week.transfer_unattributed, week.currency)} attributed to no job."
    )


def cause_costs(week: CurrencyWeek, states: Sequence[str]) -> dict[str | None, tuple[Decimal, float]]:
    """Cost and GPU-hours by cause over some states."""
    found: dict[str | None, tuple[Decimal, float]] = {}
    for row in week.states:
        if row["state"] in states:
            cost, hours = found.get(row["cause"], (ZERO, 0.0))
            found[row["cause"]] = (cost + (row["cost"] or ZERO), hours + row["gpu_hours"])
    return found


def tiles(week: CurrencyWeek, billed: bool) -> list[dict[str, str]]:
    """The four figures; `billed` says whether a bill in this currency covers the week at all (N3)."""
    wasted = week.cost(*w.WASTED)
    if not week.states:
        gpu = [
            {
                "label": "GPU cost",
                "value": "none" if billed else w.UNKNOWN,
                "note": "no GPU time has a price in this currency",
            }
        ]
    else:
        gpu = _gpu_tiles(week, wasted)
    if week.transfers:
        value, note = (
            w.money(week.transfer, week.currency),
            (
                f"{w.money(week.transfer_by('measured_bytes', 'counter_bytes'), week.currency)} measured,"
                f" {w.money(week.transfer_by('flow_share'), week.currency)} by flow shares"
            ),
        )
    else:
        value, note = (
            ("none", "the bill has no inter-AZ line in this week")
            if billed
            else (w.UNKNOWN, "no bill covers this week")
        )
    return [*gpu, {"label": "Inter-AZ cost", "value": value, "note": note}]


def _gpu_tiles(week: CurrencyWeek, wasted: Decimal) -> list[dict[str, str]]:
    return [
        {
            "label": "GPU cost",
            "value": w.money(week.cost(), week.currency),
            "note": w.hours(week.hours())
            + (f", {w.money(week.estimated, week.currency)} estimated" if week.estimated else ""),
        },
        {
            "label": "Idle GPU cost",
            "value": w.money(week.cost("idle"), week.currency),
            "note": f"{w.percent(w.share(week.cost('idle'), week.cost()))} of GPU cost; wasted in all ways"
            f" {w.money(wasted, week.currency)}",
        },
        {
            "label": "Cost per busy GPU-hour",
            "value": w.money(week.busy_hour_cost, week.currency)
            if week.busy_hour_cost is not None
            else w.NOT_APPLICABLE,
            "note": f"{w.hours(week.hours('busy'))} busy; unallocated GPUs included, unmeasured left out",
        },
    ]


# --- where GPU time went ---------------------------------------------------------------------------------------
def gpu_section(
    week: CurrencyWeek, gpu_days: list[Row], days: Sequence[date], *, charts: bool = True
) -> dict[str, Any]:
    priced = week.currency is not None
    key = (week.currency or "none").lower()
    unit = week.currency or "GPU-hours"
    states = [state for state in [*w.STATES, *_unlisted(week)] if any(row["state"] == state for row in week.states)]
    whole: Decimal | float = week.cost() if priced else week.hours()

    def size(state: str) -> Decimal | float:
        return week.cost(state) if priced else week.hours(state)

    bars = []
    for state in states:
        known = _state(state)
        percent = w.percent(w.share(size(state), whole))
        said = w.money(week.cost(state), week.currency) if priced else w.hours(week.hours(state))
        bars.append(Bar(known.label, float(size(state)), f"{said} ({percent})", known.colour, percent))
    draw = share_chart if all(bar.value >= 0 for bar in bars) else bar_chart
    summary = "; ".join(f"{bar.label} {bar.text}" for bar in bars)
    waste = _waste_bars(week)
    series = [
        Series(
            _state(state).label,
            _state(state).colour,
            tuple(_day_value(gpu_days, week.currency, day, state) for day in days),
        )
        for state in states
    ]
    return {
        "currency": week.currency,
        "charts": charts,
        "priced": priced,
        "cost": w.money(week.cost(), week.currency) if priced else "no price known",
        "hours": w.hours(week.hours()),
        "estimated": w.money(week.estimated, week.currency) if week.estimated else None,
        "wasted": w.money(week.cost(*w.WASTED), week.currency) if priced else w.hours(week.hours(*w.WASTED)),
        "wasted_percent": w.percent(w.share(sum_of(size, w.WASTED), whole)),
        "legend": [{"label": bar.label, "text": bar.text, "colour": bar.colour} for bar in bars],
        "share_chart": draw(f"share-{key}", f"Where GPU {'money' if priced else 'time'} went ({unit})", summary, bars),
        "waste_chart": bar_chart(
            f"waste-{key}", f"Idle, starting and stalled GPU time by cause ({unit})",
            "; ".join(f"{bar.label}: {bar.text}" for bar in waste), waste,
        ) if waste else None,
        "day_chart": column_chart(
            f"days-{key}", f"GPU {'cost' if priced else 'hours'} by day and state ({unit})",
            "Stacked columns, one a day; the table below has each figure.", [w.day(day) for day in days], series,
            f"{unit} per day",
        ),
        "day_names": [w.day(day) for day in days],
        "day_rows": [
            {"label": one.label, "values": [_day_text(value, priced) for value in one.values]} for one in series
        ],
        "rows": [row for state in states for row in _state_rows(week, state, whole)],
    }  # fmt: skip


def _waste_bars(week: CurrencyWeek) -> list[Bar]:
    """Idle, starting and stalled GPU time by cause, largest first."""
    bars = []
    for state in ("idle", "starting", "comm_stall"):
        for cause, (cost, hours) in cause_costs(week, (state,)).items():
            label = f"{_state(state).label}: {w.words(w.CAUSES, cause, 'no cause recorded')}"
            if week.currency is None:
                bars.append(Bar(label, hours, w.hours(hours), _state(state).colour))
            else:
                bars.append(Bar(label, float(cost), w.money(cost, week.currency), _state(state).colour))
    return sorted(bars, key=lambda bar: (-bar.value, bar.label))


def sum_of(size: Callable[[str], Decimal | float], states: Sequence[str]) -> float:
    return float(sum(float(size(state)) for state in states))


def _unlisted(week: CurrencyWeek) -> list[str]:
    return sorted({row["state"] for row in week.states} - set(w.STATES))


def _state(state: str) -> w.State:
    return w.STATES.get(state) or w.State(state, "a state that this report has no words for", "#55606b")


def _day_value(gpu_days: list[Row], currency: str | None, day: date, state: str) -> float | None:
    rows = [row for row in gpu_days if row["currency"] == currency and row["date"] == day]
    if not rows:
        return None
    found = [row for row in rows if row["state"] == state]
    return float(sum(float(row["cost"]) if currency is not None else row["gpu_hours"] for row in found))


def _day_text(value: float | None, priced: bool) -> str:
    return "no data" if value is None else w.number(value, 2 if priced else 1)


def _state_rows(week: CurrencyWeek, state: str, whole: Decimal | float) -> list[dict[str, Any]]:
    priced = week.currency is not None
    rows = [row for row in week.states if row["state"] == state]
    out = [_state_row(state, None, week.hours(state), week.cost(state), whole, priced)]
    caused = [row for row in rows if row["cause"] is not None]
    for row in sorted(caused, key=lambda row: (-(row["cost"] or ZERO), -row["gpu_hours"], row["cause"])):
        out.append(_state_row(state, row["cause"], row["gpu_hours"], row["cost"], whole, priced))
    return out


def _state_row(
    state: str, cause: str | None, hours: float, cost: Decimal | None, whole: Decimal | float, priced: bool
) -> dict[str, Any]:
    return {
        "state": _state(state).label,
        "colour": _state(state).colour,
        "cause": w.words(w.CAUSES, cause) if cause else None,
        "hours": w.number(hours),
        "cost": w.amount(cost) if priced else w.UNKNOWN,
        "share": w.percent(w.share(cost if priced else hours, whole)),
    }


# --- week over week --------------------------------------------------------------------------------------------
def week_over_week(this: CurrencyWeek, last: CurrencyWeek | None) -> dict[str, Any]:
    """This week beside the last, in one currency; a figure that one of them lacks has no change."""
    currency = this.currency or ""
    before = last or CurrencyWeek(this.currency)
    lines: list[tuple[str, Decimal | None, Decimal | None, str]] = [
        ("GPU and inter-AZ cost", this.whole, before.whole, currency),
        ("GPU cost", this.cost(), before.cost(), currency),
    ]
    lines += [
        (f"– {_state(state).label.lower()}", this.cost(state), before.cost(state), currency)
        for state in w.STATES
        if this.cost(state) or before.cost(state)
    ]
    if this.transfers or before.transfers:
        transfer = this.transfer if this.transfers else None
        lines.append(("Inter-AZ cost", transfer, before.transfer if before.transfers else None, currency))
    lines.append(("Cost per busy GPU-hour", this.busy_hour_cost, before.busy_hour_cost, currency))
    lines.append(("GPU-hours paid for", _decimal(this.hours()), _decimal(before.hours()), "GPU-hours"))
    lines.append(("GPU-hours busy", _decimal(this.hours("busy")), _decimal(before.hours("busy")), "GPU-hours"))
    changes = [
        (label.removeprefix("– ").capitalize(), new - old)
        for label, new, old, _ in lines
        if label.startswith("– ") and new is not None and old is not None
    ]
    if this.transfers and before.transfers:
        changes.append(("Inter-AZ", this.transfer - before.transfer))
    bars = [
        Bar(label, float(change), f"{w.signed(change)}", "#b3400a" if change > 0 else "#0072b2")
        for label, change in changes
        if change
    ]
    change = this.whole - before.whole
    direction = "more" if change > 0 else "less"
    return {
        "currency": currency,
        "sentence": "The same as the week before, to the cent."
        if not change
        else f"{w.money(abs(change), currency)} ({w.percent(w.share(abs(change), before.whole))}) {direction} than the week before.",
        "rows": [_change_row(*line) for line in lines],
        "chart": bar_chart(
            f"change-{currency.lower()}",
            f"Change against the week before ({currency})",
            "; ".join(f"{bar.label} {bar.text}" for bar in bars),
            bars,
        )
        if bars
        else None,
    }


def _decimal(value: float) -> Decimal:
    return Decimal(repr(value))


def _change_row(label: str, new: Decimal | None, old: Decimal | None, unit: str) -> dict[str, Any]:
    change = None if new is None or old is None else new - old
    return {
        "label": label,
        "unit": unit,
        "new": w.amount(new) if new is not None else w.NOT_APPLICABLE,
        "old": w.amount(old) if old is not None else w.NOT_APPLICABLE,
        "change": w.NOT_APPLICABLE if change is None else w.signed(change),
        "percent": "" if change is None else _signed_percent(change, old),
        "arrow": "" if not change else ("▲" if change > 0 else "▼"),
    }


def _signed_percent(change: Decimal, old: Decimal | None) -> str:
    part = w.share(change, old)
    if part is None:
        return w.NOT_APPLICABLE
    return f"+{w.percent(part)}" if part > 0 else w.percent(part)


# --- unit cost and jobs ----------------------------------------------------------------------------------------
def unit_costs(week: CurrencyWeek) -> list[dict[str, str]]:
    """G6 for the fleet and each GPU model."""
    rows = [_unit_row("All GPUs", week.hours(), week.hours("busy"), week.cost(), week.cost("unmeasured"))]
    rows += [
        _unit_row(
            row["gpu_model"] or "model unknown",
            row["gpu_hours"],
            row["busy_hours"],
            row["cost"],
            row["unmeasured_cost"],
        )
        for row in week.models
    ]
    return rows


def _unit_row(label: str, hours: float, busy: float, cost: Decimal, unmeasured: Decimal) -> dict[str, str]:
    value = per_hour(cost - unmeasured, busy)
    paid = per_hour(cost, hours)
    return {
        "label": label,
        "hours": w.number(hours),
        "busy": w.number(busy),
        "busy_share": w.percent(w.share(busy, hours)),
        "paid": w.amount(paid) if paid is not None else w.NOT_APPLICABLE,
        "per_busy_hour": w.amount(value) if value is not None else w.NOT_APPLICABLE,
    }


def job_label(row: Row) -> dict[str, str]:
    """A job as people find it: name, then namespace, kind, cluster; its team apart."""
    name = row.get("name") or f"job key {row['job_key']}"
    parts = [row.get("namespace"), row.get("job_kind") or row.get("kind"), row.get("cluster")]
    return {
        "name": w.clean(name),
        "where": " · ".join(w.clean(part) for part in parts if part),
        "team": w.clean(row.get("team") or "unowned"),
    }


def jobs_section(jobs: list[Row], week: CurrencyWeek) -> dict[str, Any]:
    """The most expensive jobs, then the rest and what no job asked for, so that the rows sum to the GPU cost."""
    mine = [row for row in jobs if row["currency"] == week.currency]
    top, rest = mine[:TOP_JOBS], mine[TOP_JOBS:]
    priced = week.currency is not None
    rows = [_job_row(row, priced) for row in top]
    if rest:
        rows.append(_sum_row(f"{w.plural(len(rest), 'other job')}", rest, priced))
    nobody = _nobody_row(mine, week, priced)
    return {
        "currency": week.currency,
        "priced": priced,
        "rows": rows,
        "nobody": nobody,
        "total_hours": w.number(week.hours()),
        "total_cost": w.amount(week.cost()) if priced else w.UNKNOWN,
        "total_idle": w.amount(week.cost("idle")) if priced else w.UNKNOWN,
    }


def _job_row(row: Row, priced: bool) -> dict[str, Any]:
    unit = per_hour(None if row["cost"] is None else row["cost"] - (row["unmeasured_cost"] or ZERO), row["busy_hours"])
    return {
        "job": job_label(row),
        "hours": w.number(row["gpu_hours"]),
        "cost": w.amount(row["cost"]) if priced else w.UNKNOWN,
        "busy": w.percent(w.share(row["busy_hours"], row["gpu_hours"])),
        "bar": _job_bar(row),
        "idle_cost": w.amount(row["idle_cost"]) if priced else w.UNKNOWN,
        "cause": w.words(w.CAUSES, row["cause"], "") if row["idle_hours"] or row["starting_hours"] else "",
        "transfer": w.amount(row["transfer_cost"]) if row["transfer_cost"] is not None else ("none" if priced else "–"),
        "unit": w.amount(unit) if unit is not None else w.NOT_APPLICABLE,
    }


def _job_bar(row: Row) -> list[dict[str, str]]:
    """Shares of the job's GPU time, for a bar drawn by widths."""
    states = ("busy", "underused", "comm_stall", "idle", "starting", "unmeasured")
    parts = [(state, w.share(row[f"{state}_hours"], row["gpu_hours"]) or 0.0) for state in states]
    return [
        {
            "width": f"{part * 100:.2f}",
            "colour": _state(state).colour,
            "title": f"{_state(state).label} {w.percent(part)}",
        }
        for state, part in parts
        if part > 0
    ]


def _sum_row(label: str, rows: list[Row], priced: bool) -> dict[str, Any]:
    hours = sum(row["gpu_hours"] for row in rows)
    busy = sum(row["busy_hours"] for row in rows)
    transfers = [row["transfer_cost"] for row in rows if row["transfer_cost"] is not None]
    cost = total(row["cost"] for row in rows)
    unit = per_hour(cost - total(row["unmeasured_cost"] for row in rows), busy) if priced else None
    return {
        "job": {"name": label, "where": "", "team": ""},
        "hours": w.number(hours),
        "cost": w.amount(cost) if priced else w.UNKNOWN,
        "busy": w.percent(w.share(busy, hours)),
        "bar": [],
        "idle_cost": w.amount(total(row["idle_cost"] for row in rows)) if priced else w.UNKNOWN,
        "cause": "",
        "transfer": w.amount(total(transfers)) if transfers else ("none" if priced else "–"),
        "unit": w.amount(unit) if unit is not None else w.NOT_APPLICABLE,
    }


def _nobody_row(jobs: list[Row], week: CurrencyWeek, priced: bool) -> dict[str, str] | None:
    """GPU time of no job: unallocated, reserved, or without a record of what ran."""
    hours = week.hours() - sum(row["gpu_hours"] for row in jobs)
    cost = week.cost() - total(row["cost"] for row in jobs)
    if abs(hours) < 1e-6 and not cost:
        return None
    return {"hours": w.number(hours), "cost": w.amount(cost) if priced else w.UNKNOWN}


# --- inter-AZ --------------------------------------------------------------------------------------------------
def transfer_section(week: CurrencyWeek, pairs: list[Row], transfers: list[Row]) -> dict[str, Any]:
    currency = week.currency
    parts = [
        ("measured_bytes", "Attributed by measured bytes", "#00805d"),
        ("counter_bytes", "Attributed by byte counters", "#4f9a8a"),
        ("flow_share", "Estimated by flow shares", "#8f6b00"),
    ]
    bars = [Bar(label, float(week.transfer_by(basis)), w.money(week.transfer_by(basis), currency), colour)
            for basis, label, colour in parts if week.transfer_by(basis)]  # fmt: skip
    reasons: dict[str, Decimal] = defaultdict(Decimal)
    for row in week.transfers:
        if row["reason"] is not None:
            reasons[row["reason"]] += row["cost"] or ZERO
    for reason, cost in sorted(reasons.items(), key=lambda item: (-item[1], item[0])):
        bars.append(Bar(f"No job: {w.words(w.REASONS, reason)}", float(cost), w.money(cost, currency), "#c94c05"))
    mine = [row for row in transfers if row["currency"] == currency]
    rest = mine[TOP_TRANSFERS:]
    return {
        "currency": currency,
        "sentence": _transfer_sentence(week),
        "chart": bar_chart(
            f"transfer-{(currency or 'none').lower()}", f"Inter-AZ cost by how it was attributed ({currency})",
            "; ".join(f"{bar.label}: {bar.text}" for bar in bars), bars,
        ) if bars else None,
        "matrix": _matrix([row for row in pairs if row["currency"] == currency]),
        "rows": [_transfer_row(row) for row in mine[:TOP_TRANSFERS]],
        "rest": {"count": w.plural(len(rest), "other row"), "cost": w.amount(total(row["cost"] for row in rest))} if rest else None,
        "attributed": w.amount(total(row["cost"] for row in mine)),
        "billed_gb": w.number(sum(row["billed_gb"] or 0.0 for row in week.transfers)),
    }  # fmt: skip


def _zone(name: str | None, key: int) -> str:
    return "zone unknown" if key == -1 or name is None else w.clean(name)


def _matrix(pairs: list[Row]) -> dict[str, Any] | None:
    """Cost by sender's zone (rows) and receiver's zone (columns)."""
    if not pairs:
        return None
    named = [(_zone(p["source_zone"], p["source_zone_key"]), _zone(p["destination_zone"], p["destination_zone_key"]), p) for p in pairs]  # fmt: skip
    zones = sorted({zone for source, destination, _ in named for zone in (source, destination)})
    largest = max(abs(float(pair["cost"] or 0)) for pair in pairs) or 1.0
    cells: dict[tuple[str, str], Row] = {(source, destination): pair for source, destination, pair in named}
    return {
        "zones": zones,
        "rows": [
            {
                "zone": source,
                "cells": [_matrix_cell(cells.get((source, destination)), largest) for destination in zones],
            }
            for source in zones
        ],
    }


def _matrix_cell(pair: Row | None, largest: float) -> dict[str, Any]:
    if pair is None:
        return {"cost": "–", "note": "", "strength": 0}
    flow = pair["flow_share_cost"]
    gigabytes = "" if pair["billed_gb"] is None else f"{w.number(pair['billed_gb'])} GB billed"
    return {
        "cost": w.amount(pair["cost"]),
        "note": gigabytes + (f", {w.amount(flow)} by flow shares" if flow else ""),
        "strength": round(abs(float(pair["cost"] or 0)) / largest * 100),
    }


def _transfer_row(row: Row) -> dict[str, Any]:
    own = row["role"] or "member"
    if row["peer_job_key"] == row["job_key"]:
        peer = f"its {row['peer_role'] or 'members'}"
    elif row["peer_job_key"] != -1:
        peer = f"{row['peer_role'] or 'member'} of {w.clean(row['peer_job_name'] or 'another job')}"
    else:
        peer = w.clean(row["peer_name"] or "an unknown peer")
    source = _zone(row["source_zone"], row["source_zone_key"])
    destination = _zone(row["destination_zone"], row["destination_zone_key"])
    measured = None if row["cost"] is None else row["cost"] - row["flow_share_cost"]
    return {
        "job": job_label(row),
        "talk": f"{own} {'→' if row['direction'] == 'out' else '←'} {peer}",
        "source": source,
        "destination": destination,
        "direction": {"out": "sent", "in": "received"}.get(row["direction"], w.UNKNOWN),
        "billed_gb": w.number(row["billed_gb"]) if row["billed_gb"] is not None else w.UNKNOWN,
        "metered": w.volume(row["metered_bytes"]),
        "measured": w.amount(measured) if measured != 0 or not row["flow_share_cost"] else "–",
        "flow_share": w.amount(row["flow_share_cost"]) if row["flow_share_cost"] else "–",
        "cost": w.amount(row["cost"]),
        "coverage": w.percent(row["coverage_lowest"]) if row["coverage_lowest"] is not None else w.UNKNOWN,
    }


def localities_section(rows: list[Row], not_charged: list[Row]) -> dict[str, Any]:
    labels = {
        "same_zone": "inside one zone", "cross_zone": "between zones", "cross_region": "between regions",
        "external": "to or from outside", "unknown": "zone of one end unknown",
    }  # fmt: skip
    return {
        "rows": [
            {
                "label": labels.get(row["locality"], row["locality"]),
                "connections": w.count(row["connections"]),
                "attempts": w.count(row["attempts"]),
                "bytes": w.volume(row["bytes"]) if row["bytes"] is not None else w.UNKNOWN,
                "without_bytes": w.count(row["without_bytes"]),
            }
            for row in rows
        ],
        "not_charged": [
            f"{w.volume(row['bytes'])} crossed zones in {w.clean(row['cluster'] or 'an unnamed cluster')} and its provider"
            " does not charge for it: cost 0, no price is borrowed from another provider."
            for row in not_charged
        ],
    }


# --- findings --------------------------------------------------------------------------------------------------
def findings_section(findings: list[Row]) -> dict[str, Any]:
    return {
        "cards": [_finding(row, index) for index, row in enumerate(findings[:TOP_FINDINGS], 1)],
        "more": max(0, len(findings) - TOP_FINDINGS),
        "count": w.plural(len(findings), "finding"),
    }


def _finding(row: Row, index: int) -> dict[str, Any]:
    between = " to ".join(w.clean(role) for role in (row["role"], row["peer_role"]) if role)
    closed = (
        "still open at the end of what is known"
        if row["closed_utc"] is None
        else f"closed {w.moment(row['closed_utc'])}"
    )
    return {
        "number": index,
        "kind": w.words(w.FINDING_KINDS, row["kind"]),
        "kind_id": row["kind"],
        "id": row["finding_id"] or str(row["finding_key"]),
        "job": job_label(row),
        "status": row["status"] or w.UNKNOWN,
        "confidence": w.words(w.CONFIDENCE, row["confidence"], "confidence unknown"),
        "sure": row["confidence"] == "complete",
        "summary": w.clean(row["summary"] or "No summary was recorded."),
        "between": between + (f", port {w.clean(row['port'])}" if row["port"] else ""),
        "times": f"opened {w.moment(row['opened_utc'])}, {closed}",
        "detected": f"seen {w.duration(row['detected_after_seconds'])} after the first evidence"
        if row["detected_after_seconds"] is not None
        else "",
        "hours": w.hours(row["idle_gpu_hours"]),
        "money": _finding_money(row),
        "counted": row["counted"] == 1,
        "evidence": evidence_items(row["evidence"]),
        "counter_evidence": evidence_items(row["counter_evidence"]),
        "remedy": w.clean(row["remedy"]) if row["remedy"] else None,
    }


def _finding_money(row: Row) -> list[dict[str, str]]:
    out = []
    if row["idle_gpu_hours"] or row["idle_cost"] is not None:
        cost = w.money(row["idle_cost"], row["currency"]) if row["idle_cost"] is not None else "price unknown"
        out.append({"label": "GPU time", "value": cost})
    if row["transfer_cost"] is not None:
        out.append({"label": "Inter-AZ", "value": w.money(row["transfer_cost"], row["currency"])})
    return out


def evidence_items(text: str | None) -> list[str]:
    """Evidence as sentences with their counts; text that is no list of {what, rows} is shown as it is."""
    if not text:
        return []
    try:
        read = json.loads(text)
    except ValueError:
        return [w.clean(text)]
    if not isinstance(read, list):
        return [w.clean(text)]
    out = []
    for item in read:
        if isinstance(item, dict) and "what" in item:
            rows = item.get("rows")
            counted = f" ({w.plural(rows, 'row')})" if isinstance(rows, int) else ""
            out.append(f"{w.clean(str(item['what']))}{counted}")
        else:
            out.append(w.clean(str(item)))
    return out


# --- ledger, reconciliation, restatements ----------------------------------------------------------------------
def ledger_section(ledger: list[Row], currency: str) -> dict[str, Any]:
    """Every cent dated in the week, by bucket; charges that span more than a day are beside it (N6)."""
    mine = [row for row in ledger if row["currency"] == currency]
    daily, period = [row for row in mine if not row["period"]], [row for row in mine if row["period"]]
    buckets = [(bucket, total(row["cost"] for row in daily if row["bucket"] == bucket)) for bucket in w.BUCKETS]
    whole = total(row["cost"] for row in daily)
    bars = [
        Bar(
            w.BUCKETS[bucket],
            float(cost),
            f"{w.money(cost, currency)} ({w.percent(w.share(cost, whole))})",
            BUCKET_COLOURS[bucket],
        )
        for bucket, cost in buckets
        if cost
    ]
    unknown = sum(row["unknown_rows"] for row in mine)
    return {
        "currency": currency,
        "total": w.money(whole, currency),
        "chart": bar_chart(
            f"ledger-{currency.lower()}", f"The week's bill by what it names ({currency})",
            "; ".join(f"{bar.label}: {bar.text}" for bar in bars), bars,
        ) if bars else None,
        "unattributed": _grouped(daily, "unattributed", whole),
        "elsewhere": _grouped(daily, "out_of_scope", whole) + _grouped(daily, "shared", whole),
        "period": [
            {"scope": w.words(w.SCOPES, row["charge_scope"]), "cost": w.amount(row["cost"])} for row in period
        ],
        "period_total": w.money(total(row["cost"] for row in period), currency),
        "unknown_rows": w.plural(unknown, "ledger row") if unknown else None,
    }  # fmt: skip


def _grouped(rows: list[Row], bucket: str, whole: Decimal) -> list[dict[str, str]]:
    found: dict[tuple[str, str], Decimal] = defaultdict(Decimal)
    for row in rows:
        if row["bucket"] == bucket:
            why = {
                "unattributed": w.words(w.REASONS, row["reason"], "no reason recorded"),
                "shared": f"shared {w.words({}, row['rule'], 'by a rule')}",
                "out_of_scope": "outside GPU compute and inter-AZ transfer",
            }[bucket]
            found[w.words(w.SCOPES, row["charge_scope"]), why] += row["cost"] or ZERO
    return [
        {"scope": scope, "why": why, "cost": w.amount(cost), "share": w.percent(w.share(cost, whole))}
        for (scope, why), cost in sorted(found.items(), key=lambda item: (-item[1], item[0]))
    ]


def reconciliation_section(rows: list[Row], bridge: list[Row]) -> dict[str, Any]:
    broken = [row for row in rows if row["difference"] != 0]
    return {
        "rows": [
            {
                "period": row["billing_period"],
                "account": " ".join(w.clean(part) for part in (row["provider"], row["billing_account"]) if part),
                "measure": row["measure"],
                "currency": row["currency"],
                "bill": w.exact(row["bill_total"]),
                "ledger": w.exact(row["ledger_total"]),
                "difference": w.exact(row["difference"]),
                "equal": row["difference"] == 0,
            }
            for row in rows
        ],
        "equal": bool(rows) and not broken,
        "none": not rows,
        "bridge": [
            {
                "period": row["billing_period"],
                "account": w.clean(row["billing_account"] or w.UNKNOWN),
                "currency": row["currency"],
                **{
                    name: w.amount(row[name])
                    for name in (
                        "billed_cost",
                        "purchases",
                        "used_amortisation",
                        "unused_amortisation",
                        "effective_cost",
                    )
                },
            }
            for row in bridge
        ],
    }


def restatement_section(rows: list[Row]) -> dict[str, Any]:
    tables = {"fact_gpu_hours": "GPU time", "fact_transfer_cost": "inter-AZ", "fact_cost_ledger": "ledger"}
    shown = [row for row in rows if row["measure"] in ("effective_cost", "gpu_hours")]
    return {
        "rows": [
            {
                "revision": row["revision"],
                "what": f"{tables.get(row['table'], row['table'])}, {w.words(w.SCOPES, row['charge_scope'])}",
                "job": w.clean(row["name"]) if row["name"] else "no job",
                "unit": row.get("currency") or ("GPU-hours" if row["measure"] == "gpu_hours" else w.UNKNOWN),
                "before": w.amount(row["before"]),
                "after": w.amount(row["after"]),
                "delta": w.signed(row["delta"]),
                "cause": w.clean(row["cause"] or w.UNKNOWN)
                + (f" ({w.clean(row['delivery_id'])})" if row["delivery_id"] else ""),
            }
            for row in shown[:TOP_RESTATEMENTS]
        ],
        "more": max(0, len(shown) - TOP_RESTATEMENTS),
    }
