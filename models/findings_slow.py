"""`split`, `slow` and `stalled` (F1, F4): GPU members of one run in several zones, and what that costs in work.

What is here: when a run is split, the sliding half hour of `slow` with its baseline, and stretches in which every
GPU of a run waits in communication. Work is tensor activity, else power; never utilisation, which spins while waiting.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from models.engine.warehouse import Warehouse
from models.findings_finding import (
    FOREVER_NS,
    MEMBERS_SQL,
    TELEMETRY_TIMES,
    Evidence,
    Finding,
    Run,
    Span,
    clock,
    closed_at,
    horizons,
    intersect,
    kept,
    length,
    load_runs,
    observe,
    processed_spans,
    rows_of,
    subtract,
    text_list,
    union,
    zone_names,
)
from models.parameters import DAY_NS, HOUR_NS, MINUTE_NS, SECOND_NS, Parameters

STEP_NS = MINUTE_NS  # of the sliding window
MEASURED_SHARE = 0.8
STALL_SHARE = 0.2
BASELINE_MIN_NS = 2 * HOUR_NS
BASELINE_BACK_NS = 30 * DAY_NS
# a connection whose sightings begin or end this near the edge of a window was live throughout it
LIVE_SLACK_NS = MINUTE_NS
EFA = "vpc.amazonaws.com/efa"
_POD_TIMES = "SELECT cluster, last_seen_ns AS at_ns FROM core.pod_life"


@dataclass(frozen=True)
class Spread:
    """When a run was apart: GPU members in two known zones, or a GPU-less coordinator away from every GPU."""

    members: list[Span]
    coordinator: list[Span]
    zones: tuple[str, ...]
    coordinator_zone: str | None


def find_placement(warehouse: Warehouse, parameters: Parameters, blocked: dict[int, list[Span]]) -> list[Finding]:
    """Every `slow` and `split` finding; a run that is blocked or slow is not split at the same time (F1)."""
    jobs = warehouse.query(
        f"SELECT job_key FROM core.pod_life WHERE job_key <> -1 AND role IN {MEMBERS_SQL} AND held_from_ns IS NOT NULL"
        " AND zone_key <> -1 GROUP BY job_key HAVING count(DISTINCT zone_key) > 1 AND sum(gpus) > 0"
    )["job_key"].to_list()
    runs = load_runs(warehouse, jobs)
    if not runs:
        return []
    known_to, processed, names = horizons(warehouse, _POD_TIMES), processed_spans(warehouse), zone_names(warehouse)
    efa = _efa_pods(warehouse, list(runs.values()))
    findings = []
    for run in runs.values():
        until_ns = min(known_to.get(run.job["cluster"], 0) + 1, processed[-1][1] if processed else 0)
        spread = spread_of(run, processed, until_ns, names)
        slow = _slow(warehouse, run, spread, until_ns, parameters)
        if slow is not None:
            findings.append(slow)
        harmed = union([*blocked.get(run.key, []), *(slow.spans if slow else [])])
        split = _split(warehouse, run, spread, harmed, until_ns, efa, parameters)
        if split is not None:
            findings.append(split)
    return findings


# --- apart ------------------------------------------------------------------------------------------------------
def spread_of(run: Run, processed: list[Span], until_ns: int, names: dict[int, str]) -> Spread:
    """When, and over which zones, the run's members were apart, within the processed days."""
    held = [(run.held(pod, until_ns), pod) for pod in run.members]
    held = [(span, pod) for span, pod in held if span[1] > span[0]]
    edges = sorted({instant for span, _ in held for instant in span})
    members, coordinator, zones, coordinator_zones = [], [], set(), set()
    for low, high in itertools.pairwise(edges):
        alive = [pod for span, pod in held if span[0] <= low < span[1]]
        gpu_zones = {pod["zone_key"] for pod in alive if pod["gpus"] > 0} - {-1}
        if len(gpu_zones) > 1:
            members.append((low, high))
            zones |= gpu_zones
        away = {pod["zone_key"] for pod in alive if pod["role"] == "coordinator" and pod["gpus"] == 0} - {-1}
        if gpu_zones and away and not away & gpu_zones:
            coordinator.append((low, high))
            zones |= gpu_zones
            coordinator_zones |= away
    listed = tuple(sorted(names.get(zone, "unnamed zone") for zone in zones))
    apart = ", ".join(sorted(names.get(zone, "unnamed zone") for zone in coordinator_zones)) or None
    return Spread(intersect(union(members), processed), intersect(union(coordinator), processed), listed, apart)


def _efa_pods(warehouse: Warehouse, runs: list[Run]) -> set[str]:
    """Pods that request EFA, which never crosses zones."""
    uids = [pod["pod_uid"] for run in runs for pod in run.members if pod["bypasses_kernel"]]
    if not uids:
        return set()
    return set(
        warehouse.query(
            "SELECT DISTINCT uid FROM staging.pod_observation WHERE list_contains($uids, uid) AND contains(resource_requests, $efa)",
            {"uids": uids, "efa": EFA},
        )["uid"].to_list()
    )


def _split(
    warehouse: Warehouse,
    run: Run,
    spread: Spread,
    harmed: list[Span],
    until_ns: int,
    efa_pods: set[str],
    parameters: Parameters,
) -> Finding | None:
    efa = any(pod["pod_uid"] in efa_pods for pod in run.members)
    wait_ns = 0 if efa else parameters.split_min_seconds * SECOND_NS
    spans = [span for span in subtract(spread.members, harmed) if length([span]) >= max(wait_ns, 1)]
    reason = "efa_cross_zone" if efa else "members_apart"
    if not spans:
        wait_ns, reason = parameters.split_min_seconds * SECOND_NS, "coordinator_apart"
        spans = [span for span in subtract(spread.coordinator, harmed) if length([span]) >= wait_ns]
    if not spans:
        return None
    closed_ns = None if spans[-1][1] >= until_ns else spans[-1][1]
    zones = " and ".join(spread.zones)
    harm = (
        "no harm is seen yet" if not harmed or harmed[0][0] >= spans[0][0] else "no harm is seen since its last finding"
    )
    story = {
        "members_apart": f"{run.title}: its GPU pods run in {zones}; {harm}.",
        "efa_cross_zone": f"{run.title}: its GPU pods request EFA, which can't cross zones, and run in {zones}.",
        "coordinator_apart": f"{run.title}: its coordinator runs in {spread.coordinator_zone}, all of its GPUs in {zones};"
        f" {harm}.",
    }[reason]
    finding = Finding(
        "split", run.job["cluster"], run.key, spans[0][0], spans[0][0] + wait_ns, closed_ns, spans,
        f"{story[:-1]}, since {clock(spans[0][0])} ({reason}).",
    )  # fmt: skip
    finding.evidence = [placement_evidence(warehouse, run, spans)]
    finding.counter_evidence = kept([crossing_evidence(warehouse, run, spans), _unknown_zones(warehouse, run)])
    if any(pod["zone_key"] == -1 for pod in run.members if pod["held_from_ns"] is not None):
        finding.confidence = "partial"
    return finding


def placement_evidence(warehouse: Warehouse, run: Run, spans: list[Span]) -> Evidence:
    low, high = spans[0][0], spans[-1][1]
    return observe(
        warehouse,
        "members of the run that were bound in a known zone meanwhile",
        f"SELECT * FROM core.pod_life WHERE job_key = {run.key} AND role IN {MEMBERS_SQL} AND zone_key <> -1"
        f" AND held_from_ns < {high} AND coalesce(held_to_ns, {FOREVER_NS}) > {low}",
    )


def _unknown_zones(warehouse: Warehouse, run: Run) -> Evidence:
    return observe(
        warehouse,
        "members of the run whose zone is unknown",
        f"SELECT * FROM core.pod_life WHERE job_key = {run.key} AND role IN {MEMBERS_SQL} AND zone_key = -1"
        " AND held_from_ns IS NOT NULL",
    )


def crossing_evidence(warehouse: Warehouse, run: Run, spans: list[Span]) -> Evidence:
    return observe(
        warehouse,
        "hours with traffic between members that crossed zones and was answered",
        f"SELECT * FROM core.zone_traffic_hourly WHERE job_key = {run.key} AND peer_job_key = {run.key}"
        f" AND locality = 'cross_zone' AND verdict = 'connected' AND ts_to_ns(hour_utc) < {spans[-1][1]}"
        f" AND ts_to_ns(hour_utc) + {HOUR_NS} > {spans[0][0]}",
    )


# --- work -------------------------------------------------------------------------------------------------------
def segments_of(warehouse: Warehouse, job_keys: list[int]) -> list[dict[str, Any]]:
    return rows_of(
        warehouse.query(
            "SELECT job_key, gpu_model, from_ns, to_ns, state, work, weight FROM core.gpu_state_segment"
            " WHERE list_contains($keys, job_key) ORDER BY from_ns, to_ns, node_key, gpu_uuid",
            {"keys": job_keys},
        )
    )


def median_work(segments: list[dict[str, Any]], spans: list[Span]) -> tuple[float | None, float]:
    """(median of work over GPU time, share of held GPU time with work measured) within spans."""
    held, measured, values = 0.0, 0.0, []
    for segment in segments:
        for low, high in spans:
            overlap = min(segment["to_ns"], high) - max(segment["from_ns"], low)
            if overlap <= 0:
                continue
            weight = overlap * segment["weight"]
            held += weight
            if segment["work"] is not None:
                measured += weight
                values.append((segment["work"], weight))
    if not values:
        return None, 0.0
    half, reached = measured / 2, 0.0
    for value, weight in sorted(values):
        reached += weight
        if reached >= half:
            return value, measured / held
    return values[-1][0], measured / held


def all_stalled(segments: list[dict[str, Any]]) -> list[Span]:
    """When every GPU of the run was in `comm_stall` together."""
    changes: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for segment in segments:
        stalled = segment["weight"] if segment["state"] == "comm_stall" else 0.0
        for instant, sign in ((segment["from_ns"], 1), (segment["to_ns"], -1)):
            changes[instant][0] += sign * segment["weight"]
            changes[instant][1] += sign * stalled
    spans, held, stalled = [], 0.0, 0.0
    edges = sorted(changes)
    for low, high in itertools.pairwise(edges):
        held += changes[low][0]
        stalled += changes[low][1]
        if held > 1e-9 and abs(held - stalled) < 1e-9:
            spans.append((low, high))
    return union(spans)


def find_stalled(warehouse: Warehouse, parameters: Parameters) -> list[Finding]:
    """Runs all of whose GPUs waited in communication together for at least ten minutes, whatever the zones (F1)."""
    jobs = warehouse.query(
        "SELECT DISTINCT job_key FROM core.gpu_state_segment WHERE state = 'comm_stall' AND job_key <> -1"
    )["job_key"].to_list()
    runs, known_to = load_runs(warehouse, jobs), horizons(warehouse, TELEMETRY_TIMES)
    wait_ns = parameters.stalled_min_seconds * SECOND_NS
    findings = []
    for run in runs.values():
        spans = [span for span in all_stalled(segments_of(warehouse, [run.key])) if length([span]) >= wait_ns]
        if not spans:
            continue
        closed_ns = closed_at(run, spans[-1][1], known_to[run.job["cluster"]])
        finding = Finding(
            "stalled", run.job["cluster"], run.key, spans[0][0], spans[0][0] + wait_ns, closed_ns, spans,
            f"{run.title}: all of its GPUs waited in communication together, first at {clock(spans[0][0])}.",
        )  # fmt: skip
        finding.evidence = [_stall_evidence(warehouse, run, spans)]
        findings.append(finding)
    return findings


def _stall_evidence(warehouse: Warehouse, run: Run, spans: list[Span]) -> Evidence:
    return observe(
        warehouse,
        "stretches in which GPUs of the run waited in communication",
        f"SELECT * FROM core.gpu_state_segment WHERE job_key = {run.key} AND state = 'comm_stall'"
        f" AND from_ns < {spans[-1][1]} AND to_ns > {spans[0][0]}",
    )


# --- slow -------------------------------------------------------------------------------------------------------
@dataclass
class Crossing:
    """What crossed zones between members: bytes by hour (None: unknown), and spans of live worker connections."""

    bytes_by_hour: dict[int, float] | None
    live: list[Span]

    def holds(self, window: Span, min_bytes: int) -> bool:
        if self.bytes_by_hour is not None:
            crossed = sum(
                self.bytes_by_hour.get(hour, 0.0) * (min(window[1], hour + HOUR_NS) - max(window[0], hour)) / HOUR_NS
                for hour in range(window[0] // HOUR_NS * HOUR_NS, window[1], HOUR_NS)
            )
            return crossed >= min_bytes
        return any(low <= window[0] + LIVE_SLACK_NS and high >= window[1] - LIVE_SLACK_NS for low, high in self.live)


def _crossing(warehouse: Warehouse, run: Run) -> Crossing:
    volumes = rows_of(
        warehouse.query(
            "SELECT CAST(ts_to_ns(hour_utc) AS BIGINT) AS hour_ns, sum(bytes) AS bytes FROM core.zone_traffic_hourly"
            " WHERE job_key = $key AND peer_job_key = $key AND locality = 'cross_zone' AND bytes IS NOT NULL"
            f" AND role IN {MEMBERS_SQL} AND peer_role IN {MEMBERS_SQL} GROUP BY ALL ORDER BY 1",
            {"key": run.key},
        )
    )
    if volumes:
        return Crossing({row["hour_ns"]: float(row["bytes"]) for row in volumes}, [])
    live = rows_of(
        warehouse.query(
            "SELECT client_ip, client_port, server_ip, server_port, first_ns, last_ns FROM core.connection"
            " WHERE client_job_key = $key AND server_job_key = $key"
            " AND client_role = 'worker' AND server_role = 'worker' AND locality = 'cross_zone' AND verdict = 'connected'"
            " ORDER BY first_ns",
            {"key": run.key},
        )
    )
    by_connection: dict[tuple[Any, ...], list[Span]] = defaultdict(list)
    for row in live:
        ends = (row["client_ip"], row["client_port"], row["server_ip"], row["server_port"])
        by_connection[ends].append((row["first_ns"], row["last_ns"] + 1))
    # sightings of one connection in two hours are one stretch: an event may be five minutes from the next
    return Crossing(None, [span for spans in by_connection.values() for span in union(spans, 5 * MINUTE_NS)])


def baseline_of(warehouse: Warehouse, run: Run, before_ns: int) -> float | None:
    """Median work of the same job in one zone, at least two hours in the last thirty days before an instant (F4)."""
    same = warehouse.query(
        "SELECT job_key FROM core.job_run WHERE cluster = $cluster AND namespace = $namespace AND kind = $kind"
        " AND name = $name AND gpus = $gpus AND first_seen_ns < $before AND last_seen_ns > $after ORDER BY job_key",
        {**{key: run.job[key] for key in ("cluster", "namespace", "kind", "name", "gpus")},
         "before": before_ns, "after": before_ns - BASELINE_BACK_NS},
    )["job_key"].to_list()  # fmt: skip
    segments = segments_of(warehouse, same)
    model = _gpu_model(segments, run.key)
    spans: list[Span] = []
    pieces: list[dict[str, Any]] = []
    for other in load_runs(warehouse, same).values():
        together = intersect(_one_zone(other, before_ns), [(before_ns - BASELINE_BACK_NS, before_ns)])
        held = [s for s in segments if s["job_key"] == other.key and s["gpu_model"] == model and s["work"] is not None]
        covered = intersect(together, union((s["from_ns"], s["to_ns"]) for s in held))
        spans += covered
        pieces += [
            {**segment, "from_ns": low, "to_ns": high}
            for segment in held
            for low, high in intersect([(segment["from_ns"], segment["to_ns"])], covered)
        ]
    if length(spans) < BASELINE_MIN_NS:
        return None
    return median_work(pieces, [(0, FOREVER_NS)])[0]


def _gpu_model(segments: list[dict[str, Any]], job_key: int) -> str | None:
    models = sorted({segment["gpu_model"] or "" for segment in segments if segment["job_key"] == job_key})
    return (models[0] or None) if models else None


def _one_zone(run: Run, until_ns: int) -> list[Span]:
    """When all GPU members of a run, as many as it ever held, were in one known zone."""
    held = [(run.held(pod, until_ns), pod) for pod in run.members if pod["gpus"] > 0]
    edges = sorted({instant for span, _ in held if span[1] > span[0] for instant in span})
    found = []
    for low, high in itertools.pairwise(edges):
        alive = [pod for span, pod in held if span[0] <= low < span[1]]
        zones = {pod["zone_key"] for pod in alive}
        if len(zones) == 1 and -1 not in zones and sum(pod["gpus"] for pod in alive) == run.job["gpus"]:
            found.append((low, high))
    return union(found)


def _slow(warehouse: Warehouse, run: Run, spread: Spread, until_ns: int, parameters: Parameters) -> Finding | None:
    window_ns = parameters.slow_window_seconds * SECOND_NS
    if not any(length([span]) >= window_ns for span in spread.members):
        return None
    segments = segments_of(warehouse, [run.key])
    crossing = _crossing(warehouse, run)
    stalls, by_hour = all_stalled(segments), _by_hour(segments)
    holds: list[Span] = []
    baseline: float | None = None
    for start, end in spread.members:
        if length([(start, end)]) < window_ns:
            continue
        baseline = baseline_of(warehouse, run, start)
        for low in range(start, end - window_ns + 1, STEP_NS):
            window = (low, low + window_ns)
            if not crossing.holds(window, parameters.slow_min_bytes):
                continue
            hours = range(window[0] // HOUR_NS * HOUR_NS, window[1], HOUR_NS)
            inside = [piece for hour in hours for piece in by_hour.get(hour, ())]
            work, measured = median_work(inside, [window])
            if work is None or measured < MEASURED_SHARE:
                continue
            if baseline is not None:
                slow = work < parameters.slow_work_ratio * baseline
            else:
                slow = length(intersect(stalls, [window])) >= STALL_SHARE * window_ns
            if slow:
                holds.append(window)
    if not holds:
        return None
    return _slow_finding(warehouse, run, spread, holds, segments, crossing, baseline, until_ns, window_ns)


def _by_hour(segments: list[dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
    """Segments cut at hours, so that a window looks at two hours and not at the whole run."""
    found: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for segment in segments:
        first = segment["from_ns"] // HOUR_NS * HOUR_NS
        for hour in range(first, segment["to_ns"], HOUR_NS):
            piece = {"from_ns": max(segment["from_ns"], hour), "to_ns": min(segment["to_ns"], hour + HOUR_NS)}
            found[hour].append({**segment, **piece})
    return found


def _slow_finding(
    warehouse: Warehouse,
    run: Run,
    spread: Spread,
    holds: list[Span],
    segments: list[dict[str, Any]],
    crossing: Crossing,
    baseline: float | None,
    until_ns: int,
    window_ns: int,
) -> Finding:
    # open until half an hour without a window that holds
    spans = [(low, min(high + window_ns, until_ns)) for low, high in union(holds, window_ns)]
    ended_ns = run.ended_ns()
    if ended_ns is not None:
        spans = [(low, min(high, ended_ns)) for low, high in spans if low < ended_ns]
    ends_open = spans[-1][1] >= until_ns and (ended_ns is None or ended_ns > until_ns)
    work = median_work(segments, union(holds))[0] or 0.0
    against = (
        f"{work:.0%} against {baseline:.0%} in one zone"
        if baseline is not None
        else f"{work:.0%}, no baseline in one zone"
    )
    finding = Finding(
        "slow", run.job["cluster"], run.key, holds[0][0], holds[0][1], None if ends_open else spans[-1][1], spans,
        f"{run.title}: its GPUs in {' and '.join(spread.zones)} wait for each other across zones"
        f" (median work {against}), since {clock(holds[0][0])}.",
    )  # fmt: skip
    finding.confidence = "complete" if crossing.bytes_by_hour is not None and baseline is not None else "partial"
    low, high = holds[0][0], holds[-1][1]
    finding.evidence = kept(
        [
            placement_evidence(warehouse, run, spans),
            crossing_evidence(warehouse, run, spans),
            _stall_evidence(warehouse, run, spans),
            observe(
                warehouse,
                "stretches with work measured while the members were apart",
                f"SELECT * FROM core.gpu_state_segment WHERE job_key = {run.key} AND work IS NOT NULL"
                f" AND from_ns < {high} AND to_ns > {low}",
            ),
        ]
    )
    together = {pod["pod_uid"] for pod in run.members}
    finding.counter_evidence = kept(
        [
            observe(
                warehouse,
                "stretches in which some GPUs worked while others of the run waited (a straggler would look so)",
                f"SELECT s.* FROM core.gpu_state_segment AS s WHERE s.job_key = {run.key} AND s.state = 'busy'"
                f" AND s.from_ns < {high} AND s.to_ns > {low} AND EXISTS (SELECT 1 FROM core.gpu_state_segment AS o"
                f" WHERE o.job_key = {run.key} AND o.state = 'comm_stall' AND o.from_ns < s.to_ns AND o.to_ns > s.from_ns)",
            ),
            observe(
                warehouse,
                "members that use a network past the kernel, which leaves no flows inside a zone",
                f"SELECT * FROM core.pod_life WHERE pod_uid IN {text_list(together)} AND job_key = {run.key} AND bypasses_kernel",
            ),
        ]
    )
    return finding
