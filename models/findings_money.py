"""What findings cost: GPU-hours and money of the times in which they were open, each counted in one finding (F1, F2).

GPU money comes from core.gpu_cost_line by the share of its state's time that lies in the finding; transfer money from
core.transfer_cost, member to member. All shares are integers, so that parts never exceed the whole (N4).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from models.engine.warehouse import Warehouse
from models.findings_billed import MEMBER_TO_MEMBER
from models.findings_finding import Span, intersect, length, rows_of, subtract
from models.findings_waiting import RELEASE_CAUSES, WAITING_CAUSES
from models.parameters import DAY_NS, HOUR_NS

GPU_ORDER = ("blocked", "stalled", "slow", "waiting", "unreleased")
TRANSFER_ORDER = ("slow", "billed", "split")
_UNIT = Decimal("0.000000000001")
Key = tuple[Any, ...]


@dataclass
class Impact:
    """What one finding cost: what is its own, and (`full`) what it would be if no other finding had taken any."""

    gpu_hours: float = 0.0
    gpu_cost: dict[str, Decimal] = field(default_factory=lambda: defaultdict(Decimal))
    unpriced_gpu_hours: float = 0.0
    transfer: dict[str, Decimal] = field(default_factory=lambda: defaultdict(Decimal))

    @property
    def empty(self) -> bool:
        return self.gpu_hours == 0 and not any(self.gpu_cost.values()) and not any(self.transfer.values())


@dataclass
class Held:
    """A finding's row with its spans, and what it cost."""

    row: dict[str, Any]
    spans: list[Span]
    own: Impact = field(default_factory=Impact)
    full: Impact = field(default_factory=Impact)


def counts(kind: str, state: str, cause: str | None) -> bool:
    """Does GPU time of this state and cause count in a finding of this kind?"""
    if kind == "blocked":
        return cause == "blocked_by_policy" or state == "comm_stall"
    if kind in ("stalled", "slow"):
        return state == "comm_stall"
    if kind == "waiting":
        return cause in WAITING_CAUSES
    return kind == "unreleased" and cause in RELEASE_CAUSES


def settle(warehouse: Warehouse, findings: list[Held]) -> None:
    """Fill `own` and `full` of every finding."""
    by_job: dict[int, list[Held]] = defaultdict(list)
    for held in findings:
        by_job[held.row["job_key"]].append(held)
    if not by_job:
        return
    _settle_gpus(warehouse, by_job)
    _settle_transfer(warehouse, by_job)


def _ordered(findings: list[Held], order: tuple[str, ...]) -> list[Held]:
    chosen = [held for held in findings if held.row["kind"] in order]
    return sorted(chosen, key=lambda h: (order.index(h.row["kind"]), h.row["first_evidence_ns"], h.row["finding_id"]))


# --- GPUs -------------------------------------------------------------------------------------------------------
def _settle_gpus(warehouse: Warehouse, by_job: dict[int, list[Held]]) -> None:
    times = _times(warehouse, list(by_job))
    lines = rows_of(
        warehouse.query(
            "SELECT job_key, node_key, gpu_model, role, CAST(ts_to_ns(hour_utc) AS BIGINT) AS hour_ns, state, cause, currency,"
            " effective_cost IS NULL AS unpriced, CAST(sum(gpu_hours) AS DOUBLE) AS gpu_hours,"
            " CAST(sum(effective_cost) AS DECIMAL(38, 12)) AS cost FROM core.gpu_cost_line"
            " WHERE list_contains($keys, job_key) AND state IN ('idle', 'starting', 'comm_stall') GROUP BY ALL ORDER BY ALL",
            {"keys": sorted(by_job)},
        )
    )
    for line in lines:
        key = tuple(line[name] for name in ("job_key", "node_key", "gpu_model", "role", "hour_ns", "state", "cause"))
        pieces = times.get(key)
        if not pieces:
            continue
        total = sum(weight * (high - low) for low, high, weight in pieces)
        findings = [
            held for held in _ordered(by_job[line["job_key"]], GPU_ORDER)
            if counts(held.row["kind"], line["state"], line["cause"])
        ]  # fmt: skip
        for held, own, full in _shares(pieces, findings):
            _add(held.own, line, own, total)
            _add(held.full, line, full, total)


def _times(warehouse: Warehouse, job_keys: list[int]) -> dict[Key, list[tuple[int, int, int]]]:
    """Key of a state row to its pieces of time (from, to, weight in millionths of a GPU), cut at hours."""
    segments = rows_of(
        warehouse.query(
            "SELECT s.job_key, s.node_key, s.gpu_model, p.role, s.state, s.cause, s.from_ns, s.to_ns,"
            " CAST(round(s.weight * 1000000) AS BIGINT) AS weight FROM core.gpu_state_segment AS s"
            " LEFT JOIN core.pod_life AS p ON p.cluster = s.cluster AND p.pod_uid = s.pod_uid"
            " WHERE list_contains($keys, s.job_key) AND s.state IN ('idle', 'starting', 'comm_stall') ORDER BY ALL",
            {"keys": sorted(job_keys)},
        )
    )
    found: dict[Key, list[tuple[int, int, int]]] = defaultdict(list)
    for s in segments:
        for hour_ns, low, high in _hours(s["from_ns"], s["to_ns"]):
            key = (s["job_key"], s["node_key"], s["gpu_model"], s["role"], hour_ns, s["state"], s["cause"])
            found[key].append((low, high, s["weight"]))
    return found


def _hours(from_ns: int, to_ns: int) -> Iterator[tuple[int, int, int]]:
    hour_ns = from_ns // HOUR_NS * HOUR_NS
    while hour_ns < to_ns:
        yield hour_ns, max(from_ns, hour_ns), min(to_ns, hour_ns + HOUR_NS)
        hour_ns += HOUR_NS


def _shares(pieces: list[tuple[int, int, int]], findings: list[Held]) -> Iterator[tuple[Held, int, int]]:
    """(finding, its own weighted time, its full weighted time): a piece of time goes to the first finding that covers it."""
    taken: list[Span] = []
    for held in findings:
        free = subtract(held.spans, taken)
        own = sum(weight * length(intersect([(low, high)], free)) for low, high, weight in pieces)
        full = sum(weight * length(intersect([(low, high)], held.spans)) for low, high, weight in pieces)
        taken += free
        if full:
            yield held, own, full


def _add(impact: Impact, line: dict[str, Any], part: int, total: int) -> None:
    hours = line["gpu_hours"] * part / total
    impact.gpu_hours += hours
    if line["unpriced"]:
        impact.unpriced_gpu_hours += hours
    else:
        impact.gpu_cost[line["currency"]] += _part(line["cost"], part, total)


def _part(amount: Decimal, part: int, total: int) -> Decimal:
    units = int(amount / _UNIT)
    sign = -1 if units < 0 else 1
    return sign * (abs(units) * part // total) * _UNIT


# --- transfer ---------------------------------------------------------------------------------------------------
def _settle_transfer(warehouse: Warehouse, by_job: dict[int, list[Held]]) -> None:
    lines = rows_of(
        warehouse.query(
            "SELECT job_key, date, CAST(ts_to_ns(hour_utc) AS BIGINT) AS hour_ns,"
            " CAST(ts_to_ns(CAST(date AS TIMESTAMP)) AS BIGINT) AS day_ns, currency,"
            " CAST(sum(effective_cost) AS DECIMAL(38, 12)) AS cost FROM core.transfer_cost"
            f" WHERE list_contains($keys, job_key) AND {MEMBER_TO_MEMBER} AND effective_cost IS NOT NULL AND currency IS NOT NULL"
            " GROUP BY ALL ORDER BY ALL",
            {"keys": sorted(by_job)},
        )
    )
    for line in lines:
        charged = (
            (line["hour_ns"], line["hour_ns"] + HOUR_NS)
            if line["hour_ns"] is not None
            else (line["day_ns"], line["day_ns"] + DAY_NS)
        )
        first = True
        for held in _ordered(by_job[line["job_key"]], TRANSFER_ORDER):
            if intersect(held.spans, [charged]):
                held.full.transfer[line["currency"]] += line["cost"]
                if first:
                    held.own.transfer[line["currency"]] += line["cost"]
                first = False


# --- what is published ------------------------------------------------------------------------------------------
def money_columns(held: Held) -> dict[str, Any]:
    """The money columns of a finding: its own share, or, uncounted, the full one where another finding carries all."""
    counted = not held.own.empty
    impact = held.own if counted else held.full
    currencies = sorted({name for costs in (impact.gpu_cost, impact.transfer) for name, cost in costs.items() if cost})
    currency = currencies[0] if len(currencies) == 1 else None
    several = len(currencies) > 1  # never added (N5): no single amount can be given
    transfers = held.row["kind"] in TRANSFER_ORDER
    return {
        "idle_gpu_hours": impact.gpu_hours,
        "idle_cost": None
        if several or (impact.unpriced_gpu_hours and not impact.gpu_cost)
        else _amount(impact.gpu_cost, currency),
        "transfer_cost": None if several else _amount(impact.transfer, currency) if transfers else Decimal(0),
        "currency": currency,
        "counted": int(counted),
        "summary": f"{held.row['story']}{_said(held, impact, currency, several)}",
    }


def _amount(costs: dict[str, Decimal], currency: str | None) -> Decimal:
    return costs.get(currency, Decimal(0)) if currency is not None else Decimal(0)


def _said(held: Held, impact: Impact, currency: str | None, several: bool) -> str:
    gpu, transfer = _amount(impact.gpu_cost, currency), _amount(impact.transfer, currency)
    parts = []
    if impact.gpu_hours:
        price = f", {gpu:,.2f} {currency}" if gpu else ", price unknown" if impact.unpriced_gpu_hours else ""
        parts.append(f"{impact.gpu_hours:,.1f} GPU-hours lost{price}")
    if transfer:
        parts.append(f"{transfer:,.2f} {currency} of transfer between zones")
    if several:
        parts.append("in more than one currency, which are not added")
    if not parts:
        return ""
    days = length(held.spans) / DAY_NS
    rate = f"; about {float(gpu + transfer) / days:,.2f} {currency} a day while open" if currency and days else ""
    elsewhere = " (counted in another finding of this run)" if held.own.empty else ""
    return f" So far {' and '.join(parts)}{rate}{elsewhere}."
