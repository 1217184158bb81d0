"""`blocked` (F3): members of one run whose connections a policy drops, while the run holds GPUs.

What is here: which drops count as attempts, port classes, and the opening, closing and reopening of a finding.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from models.engine.warehouse import Warehouse
from models.findings_doors import Policy, load_policies
from models.findings_finding import (
    MEMBERS_SQL,
    Evidence,
    Finding,
    Run,
    Span,
    clock,
    horizons,
    intersect,
    kept,
    load_runs,
    observe,
    rows_of,
    text_list,
    text_literal,
    union,
)
from models.parameters import DAY_NS, MINUTE_NS, SECOND_NS, Parameters

POLICY_REASONS = "('POLICY_DENIED', 'POLICY_DENY', 'AUTH_REQUIRED')"
# AUTH_REQUIRED is normal while a mutual handshake is under way: it counts from its third minute (F3)
AUTH_GRACE_NS = 120 * SECOND_NS
# identities under which a member's own pod is seen before its endpoint is ready
YOUNG_IDENTITIES = "('init', 'unmanaged', 'world', 'unknown')"
SIDE_PORT_ACTIVE_SHARE = 0.2
# ports that frameworks name themselves, where no Service or container port does (facts: each project's defaults)
FRAMEWORK_PORTS: dict[str, frozenset[int]] = {
    "PyTorchJob": frozenset({23456, 29400, 29500}),
    "TFJob": frozenset({2222}),
    "XGBoostJob": frozenset({9991, 9999}),
    "PaddleJob": frozenset({36543}),
    "JAXJob": frozenset({6666}),
    "MPIJob": frozenset({22, 2222}),
    "RayJob": frozenset({6379, 8265, 10001}),
    "RayCluster": frozenset({6379, 8265, 10001}),
    "TrainJob": frozenset({22, 2222, 29400, 29500}),
    "JobSet": frozenset({29400, 29500}),
}
_FLOW_TIMES = (
    "SELECT cluster, second_ns AS at_ns FROM core.drop_attempt"
    " UNION ALL SELECT cluster, last_ns AS at_ns FROM core.connection"
)
EXCLUDED = {
    "audit": "would have been dropped: the policy only audits",
    "auxiliary": "an end is neither coordinator nor worker",
    "other_reason": "dropped for another reason than policy",
    "identity": "an end was not yet known by its own identity",
    "startup": "within a minute of an end's start, or of a change of a policy that selects it",
    "authentication": "authentication was under way",
}

Pair = tuple[str, str]
Group = tuple[str, str, str]


@dataclass
class PairTimes:
    """Times of one ordered pair of pods on one port class, sorted."""

    attempts: list[int] = field(default_factory=list)
    connected: list[Span] = field(default_factory=list)


@dataclass
class Opening:
    """One (client role, server role, port class) of a run that opened."""

    first_ns: int
    opened_ns: int
    spans: list[Span]
    closed_ns: int | None
    pairs: list[Pair]
    last_attempt_ns: int


def find_blocked(warehouse: Warehouse, parameters: Parameters) -> list[Finding]:
    """Every `blocked` finding that core's drop attempts support, doors to members and to DNS."""
    jobs = warehouse.query(
        "SELECT DISTINCT source_job_key AS job_key FROM core.drop_attempt WHERE source_job_key <> -1"
        " AND (source_job_key = destination_job_key OR destination_port = 53)"
    )["job_key"].to_list()
    runs = load_runs(warehouse, jobs)
    known_to = horizons(warehouse, _FLOW_TIMES)
    policies = load_policies(warehouse) if runs else []
    return [finding for run in runs.values() for finding in _of_run(warehouse, run, known_to, policies, parameters)]


def attempts_sql(run: Run, policies: list[Policy], parameters: Parameters) -> str:
    """SELECT of the run's attempts between its own pods (and to DNS), with `not_counted`: null, or why (F3)."""
    startup_ns = parameters.blocked_startup_seconds * SECOND_NS
    changed = _policy_change_sql(run, policies, startup_ns)
    return f"""SELECT a.*, CASE
        WHEN a.audit THEN 'audit'
        WHEN s.role NOT IN {MEMBERS_SQL} OR (a.destination_port IS DISTINCT FROM 53 AND d.role NOT IN {MEMBERS_SQL}) THEN 'auxiliary'
        WHEN coalesce(a.drop_reason, '') NOT IN {POLICY_REASONS} THEN 'other_reason'
        WHEN coalesce(a.source_reserved, '') IN {YOUNG_IDENTITIES}
          OR (a.destination_port IS DISTINCT FROM 53 AND coalesce(a.destination_reserved, '') IN {YOUNG_IDENTITIES}) THEN 'identity'
        WHEN a.second_ns < greatest(coalesce(sv.from_ns, s.held_from_ns, s.created_ns, 0),
            coalesce(dv.from_ns, d.held_from_ns, d.created_ns, 0)) + {startup_ns} OR {changed} THEN 'startup'
        WHEN a.drop_reason = 'AUTH_REQUIRED' AND a.second_ns < {AUTH_GRACE_NS} + min(CASE WHEN a.drop_reason = 'AUTH_REQUIRED'
            THEN a.second_ns END) OVER (PARTITION BY a.source_pod_uid, a.destination_pod_uid) THEN 'authentication'
        END AS not_counted
    FROM core.drop_attempt AS a
    JOIN core.pod_life AS s ON s.cluster = a.cluster AND s.pod_uid = a.source_pod_uid
    LEFT JOIN core.pod_life AS d ON d.cluster = a.cluster AND d.pod_uid = a.destination_pod_uid
    LEFT JOIN (SELECT cluster, pod_uid, min(valid_from_ns) AS from_ns FROM core.pod_address GROUP BY ALL) AS sv
      ON sv.cluster = s.cluster AND sv.pod_uid = s.pod_uid
    LEFT JOIN (SELECT cluster, pod_uid, min(valid_from_ns) AS from_ns FROM core.pod_address GROUP BY ALL) AS dv
      ON dv.cluster = d.cluster AND dv.pod_uid = d.pod_uid
    WHERE a.source_job_key = {run.key}
      AND ((a.destination_job_key = {run.key} AND d.pod_uid IS NOT NULL) OR a.destination_port = 53)
      AND a.second_ns + {SECOND_NS} > coalesce(s.held_from_ns, s.created_ns, 0)
      AND a.second_ns < coalesce(s.held_to_ns, {2**62})
      AND (d.pod_uid IS NULL OR d.job_key <> {run.key}
        OR (a.second_ns + {SECOND_NS} > coalesce(d.held_from_ns, d.created_ns, 0) AND a.second_ns < coalesce(d.held_to_ns, {2**62})))"""


def _policy_change_sql(run: Run, policies: list[Policy], startup_ns: int) -> str:
    tests = []
    for policy in policies:
        if not policy.changed_ns or policy.cluster != run.job["cluster"]:
            continue
        selected = [pod["pod_uid"] for pod in run.members if policy.selects(pod["namespace"], labels_of(pod))]
        if selected:
            uids = text_list(selected)
            tests += [
                f"(a.second_ns >= {at_ns} AND a.second_ns < {at_ns + startup_ns}"
                f" AND (a.source_pod_uid IN {uids} OR a.destination_pod_uid IN {uids}))"
                for at_ns in policy.changed_ns
            ]
    return " OR ".join(tests) if tests else "false"


def labels_of(pod: dict[str, Any]) -> dict[str, str]:
    return dict(json.loads(pod["labels"])) if pod["labels"] else {}


# --- port classes -----------------------------------------------------------------------------------------------
def named_ports(warehouse: Warehouse, run: Run) -> dict[str, set[int]]:
    """Pod uid to the ports that a container, a Service that selects the pod, or the framework's table names."""
    services = rows_of(
        warehouse.query(
            "SELECT DISTINCT selector, ports FROM staging.service_observation"
            " WHERE cluster = $cluster AND namespace = $namespace AND selector IS NOT NULL AND ports IS NOT NULL",
            {"cluster": run.job["cluster"], "namespace": run.job["namespace"]},
        )
    )
    parsed = [(json.loads(row["selector"]), json.loads(row["ports"])) for row in services]
    found: dict[str, set[int]] = {}
    for pod in run.pods:
        labels = labels_of(pod)
        ports = set(FRAMEWORK_PORTS.get(run.job["kind"], ()))
        ports |= {int(port["port"]) for port in json.loads(pod["ports"] or "[]") if port.get("port")}
        for selector, service_ports in parsed:
            if selector and all(labels.get(key) == value for key, value in selector.items()):
                ports |= {number for port in service_ports for number in _numbers(port)}
        found[pod["pod_uid"]] = ports
    return found


def _numbers(port: dict[str, Any]) -> Iterator[int]:
    for value in (port.get("port"), port.get("target_port")):
        if isinstance(value, int) or (isinstance(value, str) and value.isdigit()):
            yield int(value)


def port_class(port: int | None, protocol: str, named: set[int]) -> str:
    """`23456/TCP` where something names the port, else `dynamic` (F3)."""
    return f"{port}/{protocol}" if port is not None and port in named else "dynamic"


# --- opening and closing ----------------------------------------------------------------------------------------
def _of_run(
    warehouse: Warehouse, run: Run, known_to: dict[str, int], policies: list[Policy], parameters: Parameters
) -> list[Finding]:
    select = attempts_sql(run, policies, parameters)
    attempts = rows_of(warehouse.query(f"SELECT * FROM ({select}) ORDER BY second_ns"))
    if not any(row["not_counted"] is None for row in attempts):
        return []
    named = named_ports(warehouse, run)
    groups = _group(run, attempts, named)
    connections = _connections(warehouse, run)
    _add_connected(groups, connections, named)
    active = _Activity(warehouse, run)
    findings = []
    for group, pairs in sorted(groups.items()):
        side = _side_spans(group, pairs, connections, named)
        opening = open_group(pairs, side, active, run, known_to[run.job["cluster"]], parameters)
        if opening is not None:
            findings.append(_finding(warehouse, run, group, opening, select, named))
    return findings


def _group(run: Run, attempts: list[dict[str, Any]], named: dict[str, set[int]]) -> dict[Group, dict[Pair, PairTimes]]:
    groups: dict[Group, dict[Pair, PairTimes]] = defaultdict(lambda: defaultdict(PairTimes))
    roles = {pod["pod_uid"]: pod["role"] for pod in run.pods}
    for row in attempts:
        source, destination = row["source_pod_uid"], row["destination_pod_uid"]
        if row["not_counted"] is not None:
            continue
        if row["destination_port"] == 53:
            group, pair = (roles[source], "dns", f"53/{row['protocol']}"), (source, "dns")
        else:
            ports = port_class(row["destination_port"], row["protocol"], named.get(destination, set()))
            group, pair = (roles[source], roles[destination], ports), (source, destination)
        groups[group][pair].attempts.append(row["second_ns"])
    return groups


def _connections(warehouse: Warehouse, run: Run) -> list[dict[str, Any]]:
    return rows_of(
        warehouse.query(
            "SELECT client_pod_uid, server_pod_uid, server_port, protocol, first_ns, coalesce(answered_ns, last_ns) AS last_ns"
            " FROM core.connection WHERE verdict = 'connected' AND client_job_key = $key"
            " AND (server_job_key = $key OR server_port = 53) AND client_pod_uid IS NOT NULL ORDER BY first_ns",
            {"key": run.key},
        )
    )


def _pair_of(connection: dict[str, Any]) -> Pair:
    if connection["server_port"] == 53:
        return (connection["client_pod_uid"], "dns")
    return (connection["client_pod_uid"], connection["server_pod_uid"])


def _add_connected(
    groups: dict[Group, dict[Pair, PairTimes]], connections: list[dict[str, Any]], named: dict[str, set[int]]
) -> None:
    of_pair: dict[Pair, list[tuple[str, Span]]] = defaultdict(list)
    for row in connections:
        ports = (
            f"53/{row['protocol']}"
            if row["server_port"] == 53
            else port_class(row["server_port"], row["protocol"], named.get(row["server_pod_uid"], set()))
        )
        of_pair[_pair_of(row)].append((ports, (row["first_ns"], row["last_ns"] + 1)))
    for (_, peer, ports), pairs in groups.items():
        for pair, times in pairs.items():
            # an answered look-up over either protocol opens the DNS door
            times.connected = union(span for held, span in of_pair[pair] if held == ports or peer == "dns")


def _side_spans(
    group: Group, pairs: dict[Pair, PairTimes], connections: list[dict[str, Any]], named: dict[str, set[int]]
) -> dict[Pair, list[Span]]:
    """When the same two pods were connected on another port, in either direction."""
    if group[1] == "dns":
        return {}
    found: dict[Pair, list[Span]] = defaultdict(list)
    for row in connections:
        if row["server_port"] == 53:
            continue
        pair = _pair_of(row)
        ports = port_class(row["server_port"], row["protocol"], named.get(row["server_pod_uid"], set()))
        for candidate in (pair, pair[::-1]):
            if candidate in pairs and (candidate != pair or ports != group[2]):
                found[candidate].append((row["first_ns"], row["last_ns"] + 1))
    return found


class _Activity:
    """Share of a run's measured GPU time in a span that was active (busy or underused)."""

    def __init__(self, warehouse: Warehouse, run: Run) -> None:
        self._segments: list[dict[str, Any]] | None = None
        self._load = lambda: rows_of(
            warehouse.query(
                "SELECT from_ns, to_ns, weight, state IN ('busy', 'underused') AS active FROM core.gpu_state_segment"
                " WHERE job_key = $key AND state <> 'unmeasured'",
                {"key": run.key},
            )
        )

    def share(self, span: Span) -> float:
        if self._segments is None:
            self._segments = self._load()
        total = active = 0.0
        for segment in self._segments:
            overlap = min(segment["to_ns"], span[1]) - max(segment["from_ns"], span[0])
            if overlap > 0:
                total += overlap * segment["weight"]
                active += overlap * segment["weight"] * segment["active"]
        return active / total if total else 0.0


def _events(pairs: dict[Pair, PairTimes]) -> list[tuple[int, int, Pair, int]]:
    """(instant, order, pair, end): 0 an attempt, 1 the start of a connected span."""
    events = [(at_ns, 0, pair, at_ns) for pair, times in pairs.items() for at_ns in times.attempts]
    events += [(start, 1, pair, end) for pair, times in pairs.items() for start, end in times.connected]
    return sorted(events)


def _reached(times: PairTimes, after_ns: int, until_ns: int) -> bool:
    """Was the pair connected at any instant in `(after, until]`?"""
    place = bisect_right(times.connected, (until_ns, 2**62))
    return place > 0 and times.connected[place - 1][1] > after_ns


def open_group(
    pairs: dict[Pair, PairTimes],
    side: dict[Pair, list[Span]],
    active: _Activity,
    run: Run,
    known_to_ns: int,
    parameters: Parameters,
) -> Opening | None:
    """Walk a group's attempts and connections in time; None when it never opens (F3)."""
    held, ended_ns = run.gpu_spans(), run.ended_ns()
    gap_ns, quiet_ns = parameters.blocked_gap_seconds * SECOND_NS, parameters.blocked_quiet_seconds * SECOND_NS
    chains: dict[Pair, tuple[int, int, int]] = {}  # pair -> first, last, count
    checked: dict[Pair, int] = {}
    blocked: dict[Pair, bool] = {}
    opening: Opening | None = None
    start_ns: int | None = None  # of the open span

    def close(at_ns: int) -> None:
        nonlocal start_ns
        if opening is not None and start_ns is not None:
            opening.spans.append((start_ns, max(at_ns, start_ns + 1)))
            opening.closed_ns, start_ns = at_ns, None

    for at_ns, order, pair, _ in _events(pairs):
        if ended_ns is not None and at_ns >= ended_ns:
            break
        if opening is not None and start_ns is not None and at_ns > opening.last_attempt_ns + quiet_ns:
            close(opening.last_attempt_ns + quiet_ns)
        if order == 1:
            chains.pop(pair, None)
            if blocked.get(pair):
                blocked[pair] = False
                if not any(blocked.values()):
                    close(at_ns)
            continue
        times = pairs[pair]
        first_ns, last_ns, count = chains.get(pair, (at_ns, at_ns, 0))
        if at_ns - last_ns > gap_ns or _reached(times, last_ns, at_ns):
            first_ns, count = at_ns, 0
        chains[pair] = (first_ns, at_ns, count + 1)
        if _reached(times, at_ns, at_ns):  # connected at this very moment: the attempt proves nothing
            continue
        if opening is not None and start_ns is not None:
            opening.last_attempt_ns = max(opening.last_attempt_ns, at_ns)
            if pair in blocked:
                blocked[pair] = True
                continue
        elif (
            opening is not None
            and pair in blocked
            and opening.closed_ns is not None
            and at_ns < opening.closed_ns + DAY_NS
        ):
            blocked[pair], start_ns, opening.closed_ns, opening.last_attempt_ns = True, at_ns, None, at_ns
            continue
        if count + 1 < parameters.blocked_min_attempts or at_ns - first_ns < parameters.blocked_min_seconds * SECOND_NS:
            continue
        if not intersect(held, [(at_ns, at_ns + 1)]):
            continue
        span = (first_ns, at_ns + 1)
        if intersect(side.get(pair, []), [span]):
            if at_ns - checked.get(pair, -MINUTE_NS) < MINUTE_NS:
                continue
            checked[pair] = at_ns
            if active.share(span) >= SIDE_PORT_ACTIVE_SHARE:
                continue
        blocked[pair] = True
        if opening is None:
            opening = Opening(first_ns, at_ns, [], None, [], at_ns)
        if start_ns is None:
            start_ns, opening.closed_ns = (first_ns if not opening.spans else at_ns), None
        opening.last_attempt_ns = at_ns
    if opening is None:
        return None
    if start_ns is not None:
        end_ns = opening.last_attempt_ns + quiet_ns
        if ended_ns is not None and ended_ns <= min(end_ns, known_to_ns):
            close(ended_ns)
        elif end_ns < known_to_ns:
            close(end_ns)
        else:
            opening.spans.append((start_ns, max(known_to_ns, opening.last_attempt_ns) + 1))
    opening.pairs = sorted(blocked)
    return opening


# --- what is said ----------------------------------------------------------------------------------------------
def _finding(
    warehouse: Warehouse,
    run: Run,
    group: Group,
    opening: Opening,
    select: str,
    named: dict[str, set[int]],
) -> Finding:
    role, peer_role, ports = group
    finding = Finding(
        "blocked", run.job["cluster"], run.key, opening.first_ns, opening.opened_ns, opening.closed_ns, opening.spans,
        "", role, peer_role, ports,
    )  # fmt: skip
    span_sql = f"second_ns BETWEEN {opening.first_ns} AND {opening.last_attempt_ns}"
    pair_sql = _pairs_sql(opening.pairs)
    port_sql = _port_sql(group, opening.pairs, named)
    door = (
        "DNS" if peer_role == "dns" else f"{peer_role} on {'ports chosen at run time' if ports == 'dynamic' else ports}"
    )
    finding.evidence = kept(
        [
            observe(
                warehouse,
                f"connection attempts from {role} to {door}, dropped by policy",
                f"SELECT * FROM ({select}) AS attempt WHERE not_counted IS NULL AND {span_sql} AND {pair_sql} AND {port_sql}",
            ),
            *_idle_evidence(warehouse, run, opening),
        ]
    )
    finding.counter_evidence = kept(
        [
            observe(
                warehouse,
                f"drops between members that were not counted ({code}): {words}",
                f"SELECT * FROM ({select}) AS attempt WHERE not_counted = {text_literal(code)}"
                f" AND destination_port IS DISTINCT FROM 53",
            )
            for code, words in EXCLUDED.items()
        ]
        + [
            observe(
                warehouse,
                "connections between members of the run that were answered while the finding was open",
                f"SELECT * FROM core.connection WHERE client_job_key = {run.key} AND server_job_key = {run.key}"
                f" AND verdict = 'connected' AND last_ns >= {opening.first_ns} AND first_ns <= {opening.last_attempt_ns}",
            )
        ]
    )
    finding.confidence = _confidence(warehouse, run, opening)
    clients, servers = len({pair[0] for pair in opening.pairs}), len({pair[1] for pair in opening.pairs})
    who = f"{clients} {role}{'s' if clients != 1 else ''}"
    whom = "DNS" if peer_role == "dns" else f"the {peer_role}" if servers == 1 else f"{servers} {peer_role}s"
    finding.story = (
        f"{run.title}: network policy drops what {who} open{'s' if clients == 1 else ''} to {whom}"
        f" ({door if peer_role != 'dns' else ports}), since {clock(opening.first_ns)};"
        f" {finding.evidence[0].rows if finding.evidence else 0} attempts, none answered."
    )
    return finding


def _idle_evidence(warehouse: Warehouse, run: Run, opening: Opening) -> list[Evidence]:
    low, high = opening.spans[0][0], opening.spans[-1][1]
    return [
        observe(
            warehouse,
            "stretches in which GPUs of the run stood idle meanwhile",
            f"SELECT * FROM core.gpu_state_segment WHERE job_key = {run.key} AND state IN ('idle', 'starting')"
            f" AND from_ns < {high} AND to_ns > {low}",
        )
    ]


def _pairs_sql(pairs: list[Pair]) -> str:
    if len(pairs) > 64:  # a list that no one can read; the roles and the port still bound it
        return f"source_pod_uid IN {text_list(pair[0] for pair in pairs)}"
    tests = [
        f"(source_pod_uid = {text_literal(source)})"
        if destination == "dns"
        else f"(source_pod_uid = {text_literal(source)} AND destination_pod_uid = {text_literal(destination)})"
        for source, destination in pairs
    ]
    return "(" + " OR ".join(tests) + ")"


def _port_sql(group: Group, pairs: list[Pair], named: dict[str, set[int]]) -> str:
    if group[2] != "dynamic":
        port, protocol = group[2].split("/", 1)
        return f"destination_port = {int(port)} AND protocol = {text_literal(protocol)}"
    known = sorted(set().union(*(named.get(destination, set()) for _, destination in pairs)))
    listed = ", ".join(str(port) for port in known)
    return f"(destination_port IS NULL OR destination_port NOT IN ({listed}))" if known else "true"


def _confidence(warehouse: Warehouse, run: Run, opening: Opening) -> str:
    """`complete` when forwarded records were seen from every node of the pairs: else "not connected" is not proven (T6)."""
    uids = {uid for pair in opening.pairs for uid in pair}
    nodes = {pod["node_name"] for pod in run.pods if pod["pod_uid"] in uids and pod["node_name"]}
    seen = warehouse.query(
        "SELECT node_name FROM core.flow_coverage_hourly WHERE cluster = $cluster AND hour_utc >= ns_hour($low)"
        " AND hour_utc < ns_to_ts($high) GROUP BY node_name HAVING bool_and(forwarded_seen)",
        {"cluster": run.job["cluster"], "low": opening.first_ns, "high": opening.opened_ns + SECOND_NS},
    )["node_name"].to_list()
    return "complete" if nodes and nodes <= set(seen) else "partial"


def blocked_spans(findings: list[Finding]) -> dict[int, list[Span]]:
    """Run to the times in which a `blocked` finding of it was open."""
    spans: dict[int, list[Span]] = defaultdict(list)
    for finding in findings:
        if finding.kind == "blocked":
            spans[finding.job_key] += finding.spans
    return {key: union(found) for key, found in spans.items()}
