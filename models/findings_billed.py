"""`billed` (F5): inter-AZ cost between members of one run, per UTC day, above a threshold."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime
from decimal import Decimal
from typing import Any

from models.engine.warehouse import Warehouse
from models.findings_finding import (
    MEMBERS_SQL,
    Finding,
    Run,
    clock,
    kept,
    load_runs,
    observe,
    processed_spans,
    rows_of,
    text_literal,
    union,
)
from models.parameters import DAY_NS, HOUR_NS, Parameters

MEMBER_TO_MEMBER = f"job_key = peer_job_key AND job_key <> -1 AND reason IS NULL AND role IN {MEMBERS_SQL} AND peer_role IN {MEMBERS_SQL}"


def find_billed(warehouse: Warehouse, parameters: Parameters) -> list[Finding]:
    """Runs with a day whose member-to-member transfer cost is above the floor, or 1 % of their GPU cost if that is higher."""
    lines = rows_of(
        warehouse.query(
            f"SELECT job_key, date, hour_utc, currency, basis, CAST(sum(effective_cost) AS DECIMAL(38, 12)) AS cost"
            f" FROM core.transfer_cost WHERE {MEMBER_TO_MEMBER} AND effective_cost IS NOT NULL AND currency IS NOT NULL"
            " GROUP BY ALL ORDER BY job_key, date, hour_utc NULLS LAST, currency, basis"
        )
    )
    gpu = _gpu_cost(warehouse, sorted({line["job_key"] for line in lines}))
    days: dict[tuple[int, Any, str], list[dict[str, Any]]] = defaultdict(list)
    for line in lines:
        days[line["job_key"], line["date"], line["currency"]].append(line)
    above: dict[tuple[int, str], list[tuple[Any, list[dict[str, Any]], Decimal]]] = defaultdict(list)
    for (job_key, day, currency), held in days.items():
        limit = threshold(currency, gpu.get((job_key, day, currency)), parameters)
        if limit is not None and sum((line["cost"] for line in held), Decimal(0)) > limit:
            above[job_key, currency].append((day, held, limit))
    runs, processed = load_runs(warehouse, (job_key for job_key, _ in above)), processed_spans(warehouse)
    best: dict[int, Finding] = {}
    for (job_key, currency), found in sorted(above.items()):
        if job_key in runs and job_key not in best:  # one finding a run: two currencies are never added (N5)
            best[job_key] = _finding(warehouse, runs[job_key], currency, found, processed[-1][1] if processed else 0)
    return list(best.values())


def threshold(currency: str, gpu_cost: Decimal | None, parameters: Parameters) -> Decimal | None:
    """The floor of a currency, or 1 % of the run's GPU cost of the day if that is higher; None without either (F5)."""
    floor = parameters.billed_floor.get(currency)
    limits = [Decimal(str(floor))] if floor is not None else []
    if gpu_cost is not None:
        limits.append(gpu_cost * Decimal(str(parameters.billed_ratio)))
    return max(limits) if limits else None


def _gpu_cost(warehouse: Warehouse, job_keys: list[int]) -> dict[tuple[int, Any, str], Decimal]:
    rows = warehouse.query(
        "SELECT job_key, date, currency, CAST(sum(effective_cost) AS DECIMAL(38, 12)) AS cost FROM core.gpu_cost_line"
        " WHERE list_contains($keys, job_key) AND effective_cost IS NOT NULL AND currency IS NOT NULL GROUP BY ALL",
        {"keys": job_keys},
    )
    return {(row["job_key"], row["date"], row["currency"]): row["cost"] for row in rows_of(rows)}


def _day_ns(day: Any) -> int:
    return (day - datetime(1970, 1, 1).date()).days * DAY_NS


def _opened(day: Any, lines: list[dict[str, Any]], limit: Decimal) -> int:
    """End of the hour in which the day's cost passed its threshold; the day's end for daily lines."""
    total = Decimal(0)
    for line in lines:
        total += line["cost"]
        if total > limit and line["hour_utc"] is not None:
            return _day_ns(day) + (line["hour_utc"].hour + 1) * HOUR_NS
    return _day_ns(day) + DAY_NS


def _finding(
    warehouse: Warehouse,
    run: Run,
    currency: str,
    found: list[tuple[Any, list[dict[str, Any]], Decimal]],
    known_to_ns: int,
) -> Finding:
    first_day, first_lines, limit = found[0]
    spans = union((_day_ns(day), _day_ns(day) + DAY_NS) for day, _, _ in found)
    hours = [line["hour_utc"].hour for line in first_lines if line["hour_utc"] is not None and line["cost"] > 0]
    first_ns = _day_ns(first_day) + (min(hours) * HOUR_NS if hours else 0)
    ended_ns = run.ended_ns()
    still = spans[-1][1] >= known_to_ns and (ended_ns is None or ended_ns > spans[-1][1])
    closed_ns = (
        None if still else max(min(spans[-1][1], ended_ns or spans[-1][1]), _opened(first_day, first_lines, limit))
    )
    finding = Finding(
        "billed", run.job["cluster"], run.key, first_ns, _opened(first_day, first_lines, limit), closed_ns, spans,
        f"{run.title}: traffic between its own members is billed between zones on {len(found)}"
        f" day{'s' if len(found) > 1 else ''} from {clock(first_ns)}, above {limit:.2f} {currency} a day.",
    )  # fmt: skip
    dates = ", ".join(f"DATE {text_literal(str(day))}" for day, _, _ in found)
    where = f"job_key = {run.key} AND {MEMBER_TO_MEMBER} AND currency = {text_literal(currency)} AND date IN ({dates})"
    finding.evidence = kept(
        [
            observe(
                warehouse,
                "parts of inter-AZ bill lines, member to member",
                f"SELECT * FROM core.transfer_cost WHERE {where}",
            )
        ]
    )
    finding.counter_evidence = kept(
        [
            observe(
                warehouse,
                "of these, parts that rest on flow counts, not on bytes",
                f"SELECT * FROM core.transfer_cost WHERE {where} AND basis = 'flow_share'",
            ),
            observe(
                warehouse,
                "parts to storage, DNS, registry or others, which are not counted here",
                f"SELECT * FROM core.transfer_cost WHERE job_key = {run.key} AND reason IS NULL"
                f" AND NOT coalesce(job_key = peer_job_key AND role IN {MEMBERS_SQL} AND peer_role IN {MEMBERS_SQL}, false)"
                f" AND date IN ({dates})",
            ),
        ]
    )
    if any(line["basis"] == "flow_share" for _, lines, _ in found for line in lines):
        finding.confidence = "partial"
    return finding
