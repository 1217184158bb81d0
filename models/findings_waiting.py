"""`waiting` and `unreleased` (F1): GPUs held for members that are not there, or after the work was done.

Both read the causes of GPU time (G4), which are settled after `blocked` is known.
"""

from __future__ import annotations

import itertools
from typing import Any

from models.engine.warehouse import Warehouse
from models.findings_finding import (
    MEMBERS_SQL,
    TELEMETRY_TIMES,
    Finding,
    Run,
    Span,
    clock,
    closed_at,
    horizons,
    kept,
    load_runs,
    observe,
    rows_of,
    text_list,
    union,
)
from models.parameters import HOUR_NS, MINUTE_NS, SECOND_NS, Parameters
from models.remedies import for_unreleased, for_waiting

WAITING_CAUSES = ("waiting_for_members", "restarting")
RELEASE_CAUSES = ("finished_not_released",)
# two stretches of one wait: a restart between them is part of it
EPISODE_GAP_NS = 5 * MINUTE_NS


def find_waiting(warehouse: Warehouse, parameters: Parameters) -> list[Finding]:
    """Runs that held GPUs for missing or restarting members: at least 15 min and 1 GPU-hour."""
    findings = []
    for run, segments, known_to_ns in _runs(warehouse, WAITING_CAUSES):
        episodes = _episodes(segments, parameters.waiting_min_seconds * SECOND_NS, parameters.waiting_min_gpu_hours)
        if not episodes:
            continue
        finding = _finding("waiting", run, episodes, known_to_ns)
        missing, unscheduled, why = _why(run, finding.opened_ns)
        finding.story = f"{run.title}: holds GPUs and waits, since {clock(finding.first_evidence_ns)}; {why}."
        finding.remedy = for_waiting(missing, unscheduled, bool(run.job["gang"]))
        _add_evidence(warehouse, run, finding, WAITING_CAUSES, "stretches in which GPUs waited for members of the run")
        findings.append(finding)
    return findings


def find_unreleased(warehouse: Warehouse, parameters: Parameters) -> list[Finding]:
    """Runs whose work was over while they held GPUs: at least 1 GPU-hour."""
    findings = []
    for run, segments, known_to_ns in _runs(warehouse, RELEASE_CAUSES):
        episodes = _episodes(segments, 0, parameters.unreleased_min_gpu_hours)
        if not episodes:
            continue
        finding = _finding("unreleased", run, episodes, known_to_ns)
        done = any(pod["role"] == "coordinator" and pod["succeeded"] for pod in run.pods)
        sign = "its coordinator succeeded" if done else "no GPU of it was active again"
        finding.story = f"{run.title}: its work is over ({sign}) and its pods still hold GPUs, since {clock(finding.first_evidence_ns)}."
        finding.remedy = for_unreleased()
        _add_evidence(
            warehouse, run, finding, RELEASE_CAUSES, "stretches in which GPUs were held after the work was done"
        )
        findings.append(finding)
    return findings


def _runs(warehouse: Warehouse, causes: tuple[str, ...]) -> list[tuple[Run, list[dict[str, Any]], int]]:
    segments = rows_of(
        warehouse.query(
            "SELECT job_key, from_ns, to_ns, weight FROM core.gpu_state_segment WHERE job_key <> -1"
            " AND list_contains($causes, cause) ORDER BY job_key, from_ns, to_ns",
            {"causes": list(causes)},
        )
    )
    by_job: dict[int, list[dict[str, Any]]] = {}
    for segment in segments:
        by_job.setdefault(segment["job_key"], []).append(segment)
    runs, known_to = load_runs(warehouse, by_job), horizons(warehouse, TELEMETRY_TIMES)
    return [(run, by_job[run.key], known_to[run.job["cluster"]]) for run in runs.values()]


def _episodes(segments: list[dict[str, Any]], min_ns: int, min_gpu_hours: float) -> list[tuple[Span, int]]:
    """(span, instant at which both minima were reached) of each episode that reached them."""
    found = []
    for low, high in union(((s["from_ns"], s["to_ns"]) for s in segments), EPISODE_GAP_NS):
        inside = [s for s in segments if s["from_ns"] < high and s["to_ns"] > low]
        reached = _reached(inside, min_gpu_hours * HOUR_NS)
        if high - low >= min_ns and reached is not None:
            found.append(((low, high), max(low + min_ns, reached)))
    return found


def _reached(segments: list[dict[str, Any]], gpu_ns: float) -> int | None:
    """When the summed GPU time of segments reached `gpu_ns`; None when it never did."""
    edges = sorted({instant for s in segments for instant in (s["from_ns"], s["to_ns"])})
    total = 0.0
    for low, high in itertools.pairwise(edges):
        weight = sum(s["weight"] for s in segments if s["from_ns"] <= low and s["to_ns"] >= high)
        if weight and total + weight * (high - low) >= gpu_ns - 1:
            return low + max(int((gpu_ns - total) / weight), 0)
        total += weight * (high - low)
    return None


def _finding(kind: str, run: Run, episodes: list[tuple[Span, int]], known_to_ns: int) -> Finding:
    spans = [span for span, _ in episodes]
    closed_ns = closed_at(run, spans[-1][1], known_to_ns)
    return Finding(kind, run.job["cluster"], run.key, spans[0][0], episodes[0][1], closed_ns, spans, "")


def _why(run: Run, at_ns: int) -> tuple[int, int, str]:
    """(members without a pod, members without a node, in words) at an instant."""
    alive = [pod for pod in run.members if (pod["created_ns"] or 0) <= at_ns and at_ns < (pod["held_to_ns"] or 2**62)]
    unbound = [pod for pod in alive if pod["held_from_ns"] is None or pod["held_from_ns"] > at_ns]
    unstarted = [
        pod
        for pod in alive
        if pod not in unbound and (pod["main_started_ns"] is None or pod["main_started_ns"] > at_ns)
    ]
    restarting = [
        pod for pod in alive if pod["waiting_reason"] == "CrashLoopBackOff" or (pod["restart_count"] or 0) > 0
    ]
    size = run.job["declared_size"]
    missing = max(size - len(alive), 0) if size is not None else 0
    words = [
        *([f"{missing} of {size} members have no pod"] if missing else []),
        *([f"{len(unbound)} of its pods have no node"] if unbound else []),
        *([f"{len(unstarted)} of its pods are bound and not started"] if unstarted else []),
        *([f"{len(restarting)} of its pods restarted"] if restarting else []),
    ]
    return missing, len(unbound), ", ".join(words) or "which member is missing is not known"


def _add_evidence(warehouse: Warehouse, run: Run, finding: Finding, causes: tuple[str, ...], what: str) -> None:
    low, high = finding.spans[0][0], finding.spans[-1][1]
    finding.evidence = kept(
        [
            observe(
                warehouse,
                what,
                f"SELECT * FROM core.gpu_state_segment WHERE job_key = {run.key} AND cause IN {text_list(causes)}"
                f" AND from_ns < {high} AND to_ns > {low}",
            ),
            observe(
                warehouse,
                "members that never started their main container",
                f"SELECT * FROM core.pod_life WHERE job_key = {run.key} AND role IN {MEMBERS_SQL} AND main_started_ns IS NULL",
            ),
        ]
    )
    finding.counter_evidence = kept(
        [
            observe(
                warehouse,
                "stretches of the run with activity meanwhile",
                f"SELECT * FROM core.gpu_state_segment WHERE job_key = {run.key} AND state IN ('busy', 'underused')"
                f" AND from_ns < {high} AND to_ns > {low}",
            ),
            observe(
                warehouse,
                "stretches whose cause may still change",
                f"SELECT * FROM core.gpu_state_segment WHERE job_key = {run.key} AND cause IN {text_list(causes)}"
                f" AND provisional AND from_ns < {high} AND to_ns > {low}",
            ),
        ]
    )


__all__ = ["find_unreleased", "find_waiting"]
