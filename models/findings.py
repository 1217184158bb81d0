"""Findings (F1 to F6): what goes wrong with a run, with evidence, money and a remedy.

Two steps, because GPU causes (G4) stand between them: `findings` opens and closes what placement, drops and states
show (blocked, stalled, slow, split); `finding_money` adds what needs causes and cost (waiting, unreleased, billed),
and what each costs. Both read all days that core holds, so that no order of windows matters (N7).
One file a kind: `findings_blocked`, `findings_slow`, `findings_waiting`, `findings_billed`.
"""

from __future__ import annotations

import json
from typing import Any

import polars as pl

from models.contracts import TABLES
from models.engine.run import Model
from models.engine.warehouse import Warehouse, Window
from models.findings_billed import find_billed
from models.findings_blocked import blocked_spans, find_blocked
from models.findings_doors import load_policies
from models.findings_finding import Finding, evidence_json, kept, load_runs, observe, rows_of, store, text_list
from models.findings_money import Held, counts, money_columns, settle
from models.findings_slow import find_placement, find_stalled
from models.findings_waiting import RELEASE_CAUSES, WAITING_CAUSES, find_unreleased, find_waiting
from models.parameters import Parameters
from models.remedies import for_blocked, for_split

EARLY_KINDS = ("blocked", "stalled", "slow", "split")
_CAUSES = {"blocked": ("blocked_by_policy",), "waiting": WAITING_CAUSES, "unreleased": RELEASE_CAUSES}


def build_findings(warehouse: Warehouse, window: Window, parameters: Parameters) -> None:
    """Fill core.finding with what placement, drops and GPU states show; money comes with `finding_money`."""
    found = find_blocked(warehouse, parameters)
    found += find_stalled(warehouse, parameters)
    found += find_placement(warehouse, parameters, blocked_spans(found))
    _add_remedies(warehouse, found, parameters)
    store(warehouse, [finding.row() for finding in found])


def build_finding_money(warehouse: Warehouse, window: Window, parameters: Parameters) -> None:
    """Add waiting, unreleased and billed, then the money of all; replaces core.finding."""
    early = rows_of(
        warehouse.query(
            "SELECT * FROM core.finding WHERE list_contains($kinds, kind) ORDER BY finding_id",
            {"kinds": list(EARLY_KINDS)},
        )
    )
    late = (
        find_waiting(warehouse, parameters)
        + find_unreleased(warehouse, parameters)
        + find_billed(warehouse, parameters)
    )
    _add_remedies(warehouse, late, parameters)
    rows = [*early, *(finding.row() for finding in late)]
    held = [Held(row, [(low, high) for low, high in json.loads(row["spans"])]) for row in rows]
    settle(warehouse, held)
    store(warehouse, [_settled(warehouse, one) for one in held])


def build_fact_finding(warehouse: Warehouse, window: Window, parameters: Parameters) -> None:
    warehouse.run_sql_model("mart.fact_finding", {})


def insufficient_runs(warehouse: Warehouse) -> pl.DataFrame:
    """Runs that held GPUs on processed days of which nothing can be said: no flow record, no GPU telemetry (T6).

    Columns: job_key, gpu_hours (held, unmeasured). Such a run is `insufficient`, never healthy.
    """
    return warehouse.query(
        "SELECT s.job_key, CAST(sum((s.to_ns - s.from_ns) * s.weight) / 3.6e12 AS DOUBLE) AS gpu_hours"
        " FROM core.gpu_state_segment AS s WHERE s.job_key <> -1 GROUP BY s.job_key"
        " HAVING bool_and(s.state IN ('unmeasured', 'starting')) AND NOT EXISTS (SELECT 1 FROM core.gpu_state_segment AS t"
        " JOIN core.node_life AS n ON n.node_key = t.node_key JOIN core.flow_coverage_hourly AS f"
        " ON f.cluster = n.cluster AND f.node_name = n.name AND f.date = t.date AND f.events > 0 WHERE t.job_key = s.job_key)"
        " ORDER BY s.job_key"
    )


def _add_remedies(warehouse: Warehouse, found: list[Finding], parameters: Parameters) -> None:
    runs = load_runs(warehouse, (finding.job_key for finding in found))
    policies = load_policies(warehouse) if found else []
    for finding in found:
        run = runs[finding.job_key]
        if finding.kind == "blocked":
            finding.remedy = for_blocked(warehouse, run, finding, policies, parameters)
        elif finding.kind in ("split", "slow", "billed", "stalled"):
            finding.remedy = for_split(
                warehouse, run, finding, policies, parameters, _while_members_run(run.gpu_spans(), finding.opened_ns)
            )


def _while_members_run(held: list[tuple[int, int]], at_ns: int) -> int:
    """The instant itself, or the last one before it at which the run held GPUs (a bill is told after the fact)."""
    earlier = [(low, high) for low, high in held if low <= at_ns]
    return min(at_ns, earlier[-1][1] - 1) if earlier else at_ns


def _settled(warehouse: Warehouse, held: Held) -> dict[str, Any]:
    row = {**held.row, **money_columns(held)}
    impact = held.own if not held.own.empty else held.full
    if row["confidence"] in ("complete", "impact_unmeasured"):
        unknown = impact.gpu_hours == 0 and _unmeasured(warehouse, held)
        row["confidence"] = "impact_unmeasured" if unknown else "complete"
    for name in ("evidence", "counter_evidence"):
        row[name] = _counted_again(warehouse, row[name])
    if row["kind"] in _CAUSES and not held.full.empty:
        row["evidence"] = _with_cost_lines(warehouse, held, row["evidence"])
    return {name: row[name] for name in TABLES["core.finding"].column_names}


def _unmeasured(warehouse: Warehouse, held: Held) -> bool:
    """Was most GPU time of the run unmeasured while a finding that costs GPU time was open?"""
    if not counts(held.row["kind"], "comm_stall", None) or not held.spans:
        return False
    low, high = held.spans[0][0], held.spans[-1][1]
    share = warehouse.query(
        "SELECT CAST(sum(CASE WHEN state = 'unmeasured' THEN least(to_ns, $high) - greatest(from_ns, $low) ELSE 0 END) AS DOUBLE)"
        " / CAST(sum(least(to_ns, $high) - greatest(from_ns, $low)) AS DOUBLE) AS share FROM core.gpu_state_segment"
        " WHERE job_key = $key AND from_ns < $high AND to_ns > $low",
        {"key": held.row["job_key"], "low": low, "high": high},
    )["share"][0]
    return share is None or share > 0.5


def _counted_again(warehouse: Warehouse, evidence: str) -> str:
    """Evidence with today's counts: causes cut states anew after a finding opened."""
    return evidence_json(kept(observe(warehouse, item["what"], item["query"]) for item in json.loads(evidence)))


def _with_cost_lines(warehouse: Warehouse, held: Held, evidence: str) -> str:
    """The row's evidence, with the parts of bill lines that paid for its cause in the hours of its spans."""
    low, high = held.spans[0][0], held.spans[-1][1]
    lines = observe(
        warehouse,
        "rows of what these GPUs cost in these hours, by bill line",
        f"SELECT * FROM core.gpu_cost_line WHERE job_key = {held.row['job_key']}"
        f" AND cause IN {text_list(_CAUSES[held.row['kind']])} AND ts_to_ns(hour_utc) < {high}"
        f" AND ts_to_ns(hour_utc) + 3600000000000 > {low}",
    )
    before = [item for item in json.loads(evidence) if item["what"] != lines.what]
    return json.dumps([*before, *json.loads(evidence_json(kept([lines])))])


MODELS: tuple[Model, ...] = (
    Model(
        "findings",
        ("core.finding",),
        (
            "core.connection",
            "core.drop_attempt",
            "core.flow_coverage_hourly",
            "core.gpu_state_segment",
            "core.job_run",
            "core.node_life",
            "core.pod_address",
            "core.pod_life",
            "core.processed_day",
            "core.zone",
            "core.zone_traffic_hourly",
            "staging.pod_observation",
            "staging.policy_observation",
            "staging.service_observation",
        ),
        build_findings,
        "open and close blocked, stalled, slow and split",
    ),
    Model(
        "finding_money",
        ("core.finding",),
        ("core.finding", "core.gpu_cost_line", "core.gpu_state_segment", "core.transfer_cost"),
        build_finding_money,
        "add waiting, unreleased and billed, and what each finding costs",
    ),
    Model("fact_finding", ("mart.fact_finding",), ("core.finding",), build_fact_finding, "publish findings"),
)
