"""Where every pod was, from when to when, and for which job (P1-P6): sightings and lifecycle stamps to intervals.

Sightings are folded in SQL; pods are few beside flows, so the rest is plain Python over one row a pod. All tables
are rebuilt whole from what is staged, which makes the result independent of the order of arrival (N7).
"""

from __future__ import annotations

import bisect
import hashlib
import json
import re
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from typing import Any

from models.contracts import TABLES
from models.engine.run import Model
from models.engine.warehouse import Warehouse, Window
from models.jobs import (
    NONE,
    WORKER,
    Captured,
    Membership,
    PodFacts,
    Workload,
    declared_size,
    is_gang,
    parse_map,
    pipeline_of,
    queue_of,
    resolve,
)
from models.parameters import HOUR_NS, SECOND_NS, Parameters

US = "\x1f"
IMAGE_REASONS = ("ErrImagePull", "ImagePullBackOff", "Pulling", "ImageInspectError")
TERMINAL = ("Succeeded", "Failed")
BYPASS_PREFIXES = ("vpc.amazonaws.com/efa", "rdma/", "nvidia.com/hostdev", "nvidia.com/sriov", "openshift.io/sriov")
Row = dict[str, Any]


def build_placement(warehouse: Warehouse, window: Window, parameters: Parameters) -> None:
    """Fill the placement tables from every staged observation."""
    clock = _SnapshotClock(warehouse.table("staging.snapshot").to_dicts(), parameters)
    nodes = _node_lives(warehouse, clock)
    pods = _pod_lives(warehouse, clock, nodes)
    _place_nodes(warehouse, nodes, pods)
    captured = Captured.of(_workloads(warehouse))
    memberships = _resolve(pods, captured, parameters)
    zones = _zones(warehouse, nodes, pods)
    _write(warehouse, "core.zone", zones)
    _write(warehouse, "core.node_life", [_public(node, "core.node_life") for node in nodes])
    _write(warehouse, "core.node_address", _node_addresses(nodes))
    _finish_pods(pods, memberships, parameters)
    _write(warehouse, "core.pod_life", [_public(pod, "core.pod_life") for pod in pods])
    _write(warehouse, "core.pod_address", _pod_addresses(pods, parameters))
    _write(warehouse, "core.placement_coverage", clock.coverage())
    _write(warehouse, "core.job_run", _job_runs(pods, memberships, captured, parameters))
    _write(warehouse, "core.service_address", _service_addresses(warehouse, clock, pods))


def _write(warehouse: Warehouse, table: str, rows: list[Row]) -> None:
    warehouse.replace(table, TABLES[table].frame(rows))


def _public(row: Row, table: str) -> Row:
    return {name: row.get(name) for name in TABLES[table].column_names}


class _SnapshotClock:
    """When complete lists were taken and watches ran, by cluster and kind, and how far one may look past them (P1)."""

    def __init__(self, snapshots: list[Row], parameters: Parameters) -> None:
        self.default_ns = min(parameters.default_snapshot_interval_seconds * SECOND_NS, HOUR_NS)
        self.skew_ns = parameters.clock_skew_seconds * SECOND_NS
        times: dict[tuple[str, str], set[int]] = defaultdict(set)
        watches: dict[tuple[str, str], list[tuple[int, int, str]]] = defaultdict(list)
        for row in snapshots:
            key = (row["cluster"], row["resource_kind"])
            if row["mode"] == "watch":
                if row["scope"] is None and row["watch_to_ns"] is not None:
                    watches[key].append((row["observed_ns"], row["watch_to_ns"] + 1, "watch"))
            elif row["complete"]:
                times[key].add(row["observed_ns"])
        self.times = {key: sorted(values) for key, values in times.items()}
        self.watches = {key: _merged(values) for key, values in watches.items()}

    def next_complete(self, cluster: str, kind: str, after_ns: int) -> int | None:
        """The first complete list after a moment; what was not in it is gone."""
        times = self.times.get((cluster, kind), [])
        position = bisect.bisect_right(times, after_ns)
        return times[position] if position < len(times) else None

    def watched_until(self, cluster: str, kind: str, seen_ns: int) -> int:
        """How long an object seen at `seen_ns` is known to be there: a watch without a gap would have told its end."""
        stretches = self.watches.get((cluster, kind), [])
        position = bisect.bisect_right(stretches, seen_ns, key=lambda stretch: stretch[0]) - 1
        return (
            max(seen_ns, stretches[position][1] - 1) if position >= 0 and seen_ns < stretches[position][1] else seen_ns
        )

    def interval_ns(self, cluster: str, kind: str) -> int:
        """The median distance of complete lists, one hour at most."""
        times = self.times.get((cluster, kind), [])
        gaps = sorted(b - a for a, b in pairwise(times))
        return min(gaps[len(gaps) // 2], HOUR_NS) if gaps else self.default_ns

    def coverage(self) -> list[Row]:
        """Intervals in which the placement of pods is known: from complete lists on, and along a watch that follows one."""
        rows = []
        for (cluster, kind), times in sorted(self.times.items()):
            if kind != "Pod":
                continue
            interval = self.interval_ns(cluster, kind)
            reach = max(2 * interval, HOUR_NS)
            spans = []
            for start, following in zip(times, [*times[1:], None], strict=True):
                known_to = following if following is not None and following - start <= reach else start + interval
                spans.append((start, known_to, "list"))
            spans = _merged(spans)
            for start, end, basis in self.watches.get((cluster, kind), []):
                begin = max(start, min((s for s, e, _ in spans if e >= start and s < end), default=end))
                spans.append((begin, end, basis))
            rows += [
                {"cluster": cluster, "from_ns": start, "to_ns": end, "basis": basis}
                for start, end, basis in _merged(spans)
            ]
        return rows


def _merged(spans: list[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    merged: list[tuple[int, int, str]] = []
    for start, end, basis in sorted(spans):
        if end <= start:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end), merged[-1][2])
        else:
            merged.append((start, end, basis))
    return merged


# --- lives ---------------------------------------------------------------------------------------------------------
# the order of sightings; equal ones are told apart by where they stand, never by when they arrived (N7)
_SIGHTINGS = """SELECT *, printf('%020d', observed_ns)
    || CASE mode WHEN 'list' THEN '0' WHEN 'added' THEN '1' WHEN 'modified' THEN '2' ELSE '3' END || snapshot_id AS sighting
    FROM {table}"""


def _folded(
    warehouse: Warehouse,
    table: str,
    last: list[str],
    first: list[str],
    most: tuple[str, ...] = (),
    now: tuple[str, ...] = (),
) -> list[Row]:
    """One row a (cluster, uid): last known value of `last`, value at the last sighting of `now`, earliest of `first`, most of `most`."""
    columns = [f"arg_max({name}, sighting) AS {name}" for name in last]
    columns += [f"arg_max_null({name}, sighting) AS {name}" for name in now]
    columns += [f"min({name}) AS {name}" for name in first] + [f"max({name}) AS {name}" for name in most]
    return warehouse.query(
        f"""SELECT cluster, uid, {", ".join(columns)},
            min(observed_ns) FILTER (WHERE mode <> 'deleted') AS first_seen_ns,
            max(observed_ns) FILTER (WHERE mode <> 'deleted') AS last_seen_ns,
            max(observed_ns) FILTER (WHERE mode = 'deleted') AS deleted_ns
        FROM ({_SIGHTINGS.format(table=table)}) GROUP BY cluster, uid ORDER BY cluster, uid"""
    ).to_dicts()


def _end(row: Row, clock: _SnapshotClock, kind: str) -> tuple[int, str, int, bool]:
    """(end, basis, uncertainty, still alive) of an object, by its sightings (P1).

    A watched deletion is the end unless the object is seen later: a watch with a selector says so of what only left it.
    """
    last = row["last_seen_ns"]
    if row["deleted_ns"] is not None and (last is None or last <= row["deleted_ns"] + clock.skew_ns):
        return row["deleted_ns"], "deleted", 0, False
    alive = clock.watched_until(row["cluster"], kind, last)
    missing = clock.next_complete(row["cluster"], kind, last)
    if missing is not None:
        return missing, "missing_from_snapshot", missing - min(alive, missing), False
    reach = clock.interval_ns(row["cluster"], kind)
    return alive + reach, "last_seen", reach, True


def _node_lives(warehouse: Warehouse, clock: _SnapshotClock) -> list[Row]:
    last = [
        "name", "provider_id", "instance_id", "instance_type", "lifecycle", "node_pool", "region", "zone", "zone_basis",
        "zone_id", "gpu_model", "gpus_allocatable", "gpu_replicas", "internal_ips",
    ]  # fmt: skip
    # a device plugin that restarts shows no devices; the GPUs are still in the machine
    nodes = _folded(warehouse, "staging.node_observation", last, ["created_ns"], most=("gpus",))
    configured = {row["cluster"]: row for row in warehouse.table("staging.cluster").iter_rows(named=True)}
    for node in nodes:
        node["node_uid"] = node.pop("uid")
        node["node_key"] = stable_key(node["cluster"], node["node_uid"])
        end, basis, _, _ = _end(node, clock, "Node")
        seen = [t for t in (node["first_seen_ns"], node["deleted_ns"]) if t is not None]
        created = node["created_ns"]
        node["valid_from_ns"], node["from_basis"] = (
            (created, "created") if created is not None else (min(seen), "first_seen")
        )
        node["valid_to_ns"], node["to_basis"] = max(end, node["valid_from_ns"]), basis
        cluster = configured.get(node["cluster"], {})
        node["provider"], node["cluster_region"] = cluster.get("provider") or "unknown", cluster.get("region")
        node["lifecycle"] = node["lifecycle"] or "unknown"
        node["gpus"] = node["gpus"] or 0.0
    _clip_namesakes(nodes)
    return nodes


def _place_nodes(warehouse: Warehouse, nodes: list[Row], pods: list[Row]) -> None:
    """Zones of the nodes that have none of their own, by the rest of P4's precedence."""
    _zones_of_pods(pods)
    missing = {node["instance_id"] for node in nodes if node["zone"] is None and node["instance_id"]}
    billed, captured = _billed_zones(warehouse, missing), _captured_zones(warehouse, missing)
    by_id = {(n["cluster"], n["zone_id"]): n["zone"] for n in nodes if n["zone"] is not None and n["zone_id"]}
    for node in nodes:
        if node["zone"] is None and node["instance_id"] in billed:
            node["zone"], node["zone_basis"] = billed[node["instance_id"]], "bill"
        if node["zone"] is None and node["instance_id"] in captured:
            node["zone_id"] = node["zone_id"] or captured[node["instance_id"]]
            # an id names a zone only where another node of the cluster tells which
            node["zone"] = by_id.get((node["cluster"], node["zone_id"]))
            node["zone_basis"] = "flow_log" if node["zone"] is not None else None
    for node in nodes:
        node["region"] = node["region"] or region_of(node["zone"]) or node["cluster_region"]


def region_of(zone: str | None) -> str | None:
    """The region that a zone's name states (AWS `us-east-1a`, Google `us-central1-a`, Azure `eastus-1`), else None."""
    match = re.match(r"^([a-z]{2}(?:-[a-z]+)+-\d+)[a-z]$|^([a-z]+-[a-z]+\d+)-[a-z]$|^([a-z]+\d?)-\d$", zone or "")
    return next((part for part in match.groups() if part), None) if match else None


def _billed_zones(warehouse: Warehouse, instances: set[str]) -> dict[str, str]:
    """Zone of the bill line with the node's instance id."""
    return _told_by(
        warehouse,
        "SELECT resource_id AS instance_id, availability_zone AS zone FROM staging.bill_line"
        " WHERE list_contains($wanted, resource_id)",
        instances,
    )


def _captured_zones(warehouse: Warehouse, instances: set[str]) -> dict[str, str]:
    """az-id of the node's interface in flow logs."""
    return _told_by(
        warehouse,
        "SELECT instance_id, az_id AS zone FROM staging.vpc_flow WHERE list_contains($wanted, instance_id)",
        instances,
    )


def _told_by(warehouse: Warehouse, select: str, instances: set[str]) -> dict[str, str]:
    """{instance: zone} of a SELECT, where it names one zone for the instance and no other."""
    if not instances:
        return {}
    rows = warehouse.query(
        f"SELECT instance_id, min(zone) AS zone FROM ({select}) WHERE zone IS NOT NULL"
        " GROUP BY instance_id HAVING count(DISTINCT zone) = 1",
        {"wanted": sorted(instances)},
    )
    return dict(rows.iter_rows())


def _clip_namesakes(nodes: list[Row]) -> None:
    """A node that comes back under its name with a new uid ends the life before it."""
    by_name = defaultdict(list)
    for node in nodes:
        by_name[(node["cluster"], node["name"])].append(node)
    for lives in by_name.values():
        lives.sort(key=lambda n: (n["valid_from_ns"], n["node_uid"]))
        for earlier, later in pairwise(lives):
            if later["valid_from_ns"] < earlier["valid_to_ns"]:
                earlier["valid_to_ns"], earlier["to_basis"] = later["valid_from_ns"], "replaced"


def _pod_lives(warehouse: Warehouse, clock: _SnapshotClock, nodes: list[Row]) -> list[Row]:
    last = [
        "namespace", "name", "node_name", "host_network", "host_ip", "phase", "reason", "finished_ns", "restart_count",
        "last_finished_ns", "gpu_resource", "gpus", "resource_requests", "owner_kind",
        "owner_api_version", "owner_name", "owner_uid", "labels", "annotations", "ports", "spread_constraints",
    ]  # fmt: skip
    first = ["created_ns", "scheduled_ns", "ready_to_start_ns", "initialized_ns", "start_ns", "main_started_ns"]
    pods = _folded(warehouse, "staging.pod_observation", last, first, now=("waiting_reason",))
    extra, addresses, claims = _pod_extras(warehouse), _addresses_seen(warehouse), _claimed_gpus(warehouse)
    by_name = defaultdict(list)
    for node in nodes:
        by_name[(node["cluster"], node["name"])].append(node)
    for lives in by_name.values():
        lives.sort(key=lambda n: (n["valid_from_ns"], n["node_uid"]))
    for pod in pods:
        pod["pod_uid"] = pod.pop("uid")
        pod |= extra[(pod["cluster"], pod["pod_uid"])]
        pod["addresses"] = addresses.get((pod["cluster"], pod["pod_uid"]), [])
        pod["label_map"] = parse_map(pod["labels"])
        if not pod["gpus"]:  # a request that a claim serves says the same GPUs already
            pod["gpu_resource"], pod["gpus"] = claims.get((pod["cluster"], pod["pod_uid"]), (None, 0.0))
        _life_of(pod, clock)
        pod["node"] = _node_at(by_name.get((pod["cluster"], pod["node_name"]), []), pod)
    for pod in pods:
        _bound_by_node(pod)
    _clip_namesakes(nodes)
    return pods


def _pod_extras(warehouse: Warehouse) -> dict[tuple[str, str], Row]:
    """What the last value does not tell: image pulls, the first sighting of a terminal phase, the last of a live one."""
    frame = warehouse.query(
        "SELECT cluster, uid,"
        " min(observed_ns) FILTER (WHERE list_contains($image, waiting_reason)) AS image_pulling_from_ns,"
        " max(observed_ns) FILTER (WHERE list_contains($image, waiting_reason)) AS image_pulling_to_ns,"
        " min(observed_ns) FILTER (WHERE list_contains($terminal, phase)) AS terminal_seen_ns,"
        " max(observed_ns) FILTER (WHERE phase IS NULL OR NOT list_contains($terminal, phase)) AS last_live_ns"
        " FROM staging.pod_observation GROUP BY cluster, uid",
        {"image": list(IMAGE_REASONS), "terminal": list(TERMINAL)},
    )
    return {(row.pop("cluster"), row.pop("uid")): row for row in frame.to_dicts()}


def _claimed_gpus(warehouse: Warehouse) -> dict[tuple[str, str], tuple[str, float]]:
    """(driver, GPUs) of each pod by its resource claims; a claim that several pods share is split, not multiplied (P6)."""
    frame = warehouse.query(
        f"""SELECT cluster, uid, arg_max(replicas, sighting) AS devices, list(DISTINCT annotations) AS users
        FROM ({_SIGHTINGS.format(table="staging.workload_observation")}) WHERE kind = 'ResourceClaim' AND replicas IS NOT NULL
        GROUP BY cluster, uid ORDER BY cluster, uid"""
    )
    held: dict[tuple[str, str], tuple[str, float]] = {}
    for row in frame.iter_rows(named=True):
        pods = sorted({uid for text in row["users"] if text for uid in parse_map(text).get("reserved_for", [])})
        for driver, count in parse_map(row["devices"]).items():
            for uid in pods:
                _, before = held.get((row["cluster"], uid), ("", 0.0))
                held[(row["cluster"], uid)] = (driver, before + count / len(pods))
    return held


def _addresses_seen(warehouse: Warehouse) -> dict[tuple[str, str], list[tuple[str, int | None, int | None]]]:
    """(address, from, to) of each pod; None: as long as the pod. A pod whose sandbox was made anew may have another address.

    A sighting without an address says nothing: it is empty for a moment when a pod ends.
    """
    frame = warehouse.query(
        "SELECT cluster, uid, pod_ips, min(observed_ns) AS first_ns FROM staging.pod_observation"
        " WHERE pod_ips IS NOT NULL GROUP BY cluster, uid, pod_ips ORDER BY cluster, uid, first_ns, pod_ips"
    )
    lists: dict[tuple[str, str], list[tuple[int, list[str]]]] = defaultdict(list)
    for cluster, uid, text, first_ns in frame.iter_rows():
        lists[(cluster, uid)].append((first_ns, json.loads(text)))
    found = {}
    for key, seen in lists.items():
        spans = []
        for ip in dict.fromkeys(ip for _, ips in seen for ip in ips):
            first = next(n for n, (_, ips) in enumerate(seen) if ip in ips)
            ended = next((at for at, ips in seen[first + 1 :] if ip not in ips), None)
            spans.append((ip, seen[first][0] if first else None, ended))
        found[key] = spans
    return found


def _life_of(pod: Row, clock: _SnapshotClock) -> None:
    """When the pod held its node: from binding to terminal or gone (P6), with the basis of both ends."""
    seen = [t for t in (pod["first_seen_ns"], pod["deleted_ns"]) if t is not None]
    for column, basis in (("scheduled_ns", "scheduled"), ("start_ns", "start_time")):
        if pod[column] is not None:
            pod["held_from_ns"], pod["from_basis"] = pod[column], basis
            break
    else:
        bound = pod["node_name"] is not None
        pod["held_from_ns"], pod["from_basis"] = (min(seen), "first_seen") if bound else (None, None)
    end, basis, width, alive = _end(pod, clock, "Pod")
    if pod["phase"] in TERMINAL:
        if pod["finished_ns"] is not None and pod["finished_ns"] <= end:
            end, basis, width = pod["finished_ns"], "finished", 0
        elif pod["terminal_seen_ns"] is not None and pod["terminal_seen_ns"] <= end:
            live = pod["last_live_ns"]
            end, basis = pod["terminal_seen_ns"], "terminal_seen"
            width = end - live if live is not None and live < end else 0
        alive = False
    start = pod["held_from_ns"]
    pod["held_to_ns"] = None if start is None else max(end, start)
    pod["to_basis"], pod["to_uncertainty_ns"], pod["still_alive"] = basis, width, alive
    pod["last_seen_ns"] = max(t for t in (pod["last_seen_ns"], pod["deleted_ns"]) if t is not None)


def _node_at(lives: list[Row], pod: Row) -> Row | None:
    """The life of the pod's node, by name, that was there when the pod was bound; lives are in order of time.

    Names come back (an address, a spot pool), so a life that had ended for certain, or had not begun, is not it.
    """
    start = pod["held_from_ns"]
    if start is None:
        return None
    begun = [n for n in lives if n["valid_from_ns"] <= start or n["from_basis"] == "first_seen"]
    if begun:
        latest = begun[-1]
        # nothing says that a node last seen ended; a pod bound to its name says that it did not
        return latest if start < latest["valid_to_ns"] or latest["to_basis"] == "last_seen" else None
    # the kubelet's clock may be a little before the API server's
    return next((n for n in lives if n["valid_from_ns"] < pod["held_to_ns"]), None)


def _bound_by_node(pod: Row) -> None:
    """A pod does not outlive its node; a node that nothing ended lives as long as a pod is seen on it."""
    node, start = pod["node"], pod["held_from_ns"]
    if node is None or start is None:
        return
    if node["to_basis"] == "last_seen":
        seen = pod["held_to_ns"] if pod["to_basis"] != "last_seen" else pod["last_live_ns"] or start
        node["valid_to_ns"] = max(node["valid_to_ns"], seen)
    elif pod["to_basis"] == "last_seen" and node["valid_to_ns"] < pod["held_to_ns"]:
        pod["held_to_ns"], pod["to_basis"], pod["still_alive"] = max(node["valid_to_ns"], start), "node_gone", False


def _zones_of_pods(pods: list[Row]) -> None:
    """A node without a zone takes the one that its pods carry from the scheduler (labels of Kubernetes 1.35, P4)."""
    for pod in sorted(pods, key=lambda p: (p["held_from_ns"] or 0, p["pod_uid"])):
        node, label = pod["node"], _own_zone(pod)
        if node is not None and node["zone"] is None and label is not None:
            node["zone"], node["zone_basis"] = label, "pod_label"
            node["region"] = node["region"] or pod["label_map"].get("topology.kubernetes.io/region")


def _own_zone(pod: Row) -> str | None:
    """The zone label that the scheduler gave the pod; a bare integer is an Azure fault domain."""
    label = pod["label_map"].get("topology.kubernetes.io/zone")
    return str(label) if label and not str(label).isdigit() else None


def _finish_pods(pods: list[Row], memberships: dict[tuple[str, str], Membership], parameters: Parameters) -> None:
    """Keys, role and the flags that later models read."""
    for pod in pods:
        node, labels = pod["node"], pod["label_map"]
        membership = memberships.get((pod["cluster"], pod["pod_uid"]))
        requests = parse_map(pod["resource_requests"])
        pod |= {
            "node_key": -1 if node is None else node["node_key"],
            "zone_key": pod["label_zone_key"] if node is None else node["zone_key"],
            "declared_zone": next((labels[k] for k in parameters.declared_zone_labels if labels.get(k)), None),
            "daemon": _is_daemon(pod, parameters),
            "job_key": -1 if membership is None else _job_key(pod, membership),
            "role": NONE if membership is None else membership.role,
            "replica_type": membership.replica_type if membership else None,
            "replica_index": membership.index if membership else None,
            "resolved_by": membership.resolved_by if membership else "none",
            "gpus": _shared(pod["gpus"] or 0.0, pod["gpu_resource"], node),
            "bypasses_kernel": any(name.startswith(BYPASS_PREFIXES) for name in requests),
            "succeeded": pod["phase"] == "Succeeded",
        }
    _attempts(pods)


def _shared(gpus: float, resource: str | None, node: Row | None) -> float:
    """A time-sliced device is a share of a physical GPU."""
    replicas = (node or {}).get("gpu_replicas") or 1.0
    return gpus / replicas if resource in ("nvidia.com/gpu", "nvidia.com/gpu.shared") else gpus


def _is_daemon(pod: Row, parameters: Parameters) -> bool:
    mirror = "kubernetes.io/config.mirror" in parse_map(pod["annotations"])
    return pod["owner_kind"] in ("DaemonSet", "Node") or mirror or pod["namespace"] in parameters.system_namespaces


def _attempts(pods: list[Row]) -> None:
    """1, 2, ... for each pod that took the same place in a run, in order of creation."""
    places = defaultdict(list)
    for pod in pods:
        if pod["job_key"] != -1:
            index = pod["replica_index"]
            place = pod["name"] if index is None else str(index)
            places[(pod["job_key"], pod["replica_type"], place)].append(pod)
    for same in places.values():
        same.sort(key=lambda p: (p["created_ns"] or p["last_seen_ns"], p["pod_uid"]))
        for number, pod in enumerate(same, 1):
            pod["attempt"] = number


# --- keys ----------------------------------------------------------------------------------------------------------
def stable_key(*parts: str) -> int:
    """The warehouse's `stable_key` macro in Python: 52 bits of md5 of the parts joined by U+001F."""
    return int(hashlib.md5(US.join(parts).encode(), usedforsecurity=False).hexdigest()[:13], 16)


def _job_key(pod: Row, membership: Membership) -> int:
    return stable_key(pod["cluster"], pod["namespace"], membership.kind, membership.name, str(membership.run))


def _zones(warehouse: Warehouse, nodes: list[Row], pods: list[Row]) -> list[Row]:
    """Zones of the nodes, and of pods whose node was never seen; gives each its key on the way."""
    zones: dict[int, Row] = {}

    def key_of(provider: str, region: str | None, zone: str | None, zone_id: str | None) -> int:
        if zone is None:
            return -1
        key = stable_key(provider, region or "", zone)
        row = zones.setdefault(
            key, {"zone_key": key, "provider": provider, "region": region, "zone": zone, "zone_id": None}
        )
        row["zone_id"] = row["zone_id"] or zone_id
        return key

    for node in nodes:
        node["zone_key"] = key_of(node["provider"], node["region"], node["zone"], node["zone_id"])
    configured = {row["cluster"]: row for row in warehouse.table("staging.cluster").iter_rows(named=True)}
    for pod in pods:
        cluster, zone = configured.get(pod["cluster"], {}), _own_zone(pod)
        alone = pod["node"] is None and pod["held_from_ns"] is not None
        region = pod["label_map"].get("topology.kubernetes.io/region") or region_of(zone) or cluster.get("region")
        pod["label_zone_key"] = key_of(cluster.get("provider") or "unknown", region, zone if alone else None, None)
    return [zones[key] for key in sorted(zones)]


# --- addresses -----------------------------------------------------------------------------------------------------
def _node_addresses(nodes: list[Row]) -> list[Row]:
    return [
        {"cluster": node["cluster"], "ip": ip, "node_key": node["node_key"], "valid_from_ns": node["valid_from_ns"],
         "valid_to_ns": node["valid_to_ns"]}
        for node in nodes
        for ip in json.loads(node["internal_ips"] or "[]")
        if node["valid_to_ns"] > node["valid_from_ns"]
    ]  # fmt: skip


def _pod_addresses(pods: list[Row], parameters: Parameters) -> list[Row]:
    """Who owned an address when (P1, P2): no host-network pod, none after its end, rivals marked."""
    owners = defaultdict(list)
    for pod in pods:
        if pod["host_network"] or pod["held_from_ns"] is None:
            continue
        begun, begun_basis = _address_start(pod)
        for ip, seen_ns, ended_ns in pod["addresses"]:
            start, basis = (begun, begun_basis) if seen_ns is None else (seen_ns, "first_seen")
            end, end_basis = (pod["held_to_ns"], pod["to_basis"])
            if ended_ns is not None and ended_ns < end:
                end, end_basis = ended_ns, "address_changed"
            if end <= start:
                continue
            owners[(pod["cluster"], ip)].append(
                {"cluster": pod["cluster"], "ip": ip, "pod_uid": pod["pod_uid"], "valid_from_ns": start,
                 "valid_to_ns": end, "from_basis": basis, "to_basis": end_basis, "rival": False,
                 "last_live_ns": min(pod["last_live_ns"] or start, end)}
            )  # fmt: skip
    rows = []
    for _, lives in sorted(owners.items()):
        rows += _separate(lives, parameters.clock_skew_seconds * SECOND_NS)
    return [{k: v for k, v in row.items() if k != "last_live_ns"} for row in rows]


def _address_start(pod: Row) -> tuple[int, str]:
    """The first stamp of the pod's network: sandbox ready, first container, kubelet's start, binding, first seen."""
    for column, basis in (
        ("ready_to_start_ns", "ready_to_start"),
        ("main_started_ns", "container_started"),
        ("start_ns", "start_time"),
        ("scheduled_ns", "scheduled"),
    ):
        if pod[column] is not None:
            return pod[column], basis
    return pod["first_seen_ns"], "first_seen"


def _separate(lives: list[Row], skew_ns: int) -> list[Row]:
    """Lives of one address without overlap: the earlier ends where the later starts, unless it was seen alive after."""
    lives.sort(key=lambda row: (row["valid_from_ns"], row["pod_uid"]))
    out: list[Row] = []
    for life in lives:
        while out and out[-1]["valid_to_ns"] > life["valid_from_ns"]:
            earlier = out[-1]
            same_start = earlier["valid_from_ns"] == life["valid_from_ns"]
            alive_after = earlier["last_live_ns"] > life["valid_from_ns"] + skew_ns and not earlier["rival"]
            if same_start or alive_after:
                out += _rivals(out.pop(), life)
                break
            if earlier["rival"]:
                life["valid_from_ns"] = earlier["valid_to_ns"]
                continue
            earlier["valid_to_ns"], earlier["to_basis"] = life["valid_from_ns"], "replaced"
        else:
            out.append(life)
    return [row for row in out if row["valid_to_ns"] > row["valid_from_ns"]]


def _rivals(earlier: Row, later: Row) -> list[Row]:
    """Two owners that time can't separate: alone before, rivals while both claim it, alone after."""
    meet, part = later["valid_from_ns"], min(earlier["valid_to_ns"], later["valid_to_ns"])
    before = {**earlier, "valid_to_ns": meet}
    both = {**earlier, "valid_from_ns": meet, "valid_to_ns": part, "rival": True}
    longer = earlier if earlier["valid_to_ns"] > later["valid_to_ns"] else later
    return [before, both, {**longer, "valid_from_ns": part}]


def _service_addresses(warehouse: Warehouse, clock: _SnapshotClock, pods: list[Row]) -> list[Row]:
    """Cluster addresses of Services; while every ready endpoint behind one belongs to one run, so does it (T1)."""
    frame = warehouse.query(
        f"""SELECT cluster, namespace, name, cluster_ips, arg_max(selector, sighting) AS selector,
            min(observed_ns) AS first_ns, max(observed_ns) FILTER (WHERE mode <> 'deleted') AS last_seen_ns,
            max(observed_ns) FILTER (WHERE mode = 'deleted') AS deleted_ns
        FROM ({_SIGHTINGS.format(table="staging.service_observation")}) WHERE cluster_ips IS NOT NULL
        GROUP BY cluster, namespace, name, cluster_ips ORDER BY cluster, namespace, name, cluster_ips"""
    )
    labelled: dict[tuple[str, str, str, str], list[Row]] = defaultdict(list)
    for pod in pods:
        if pod["main_started_ns"] is not None and pod["held_to_ns"] is not None:
            for label, value in pod["label_map"].items():
                labelled[(pod["cluster"], pod["namespace"], label, str(value))].append(pod)
    rows = []
    for row in frame.iter_rows(named=True):
        end, _, _, _ = _end(row, clock, "Service")
        selector = {key: str(value) for key, value in parse_map(row["selector"]).items()}
        candidates = [labelled.get((row["cluster"], row["namespace"], *pair), []) for pair in selector.items()]
        behind = [p for p in min(candidates, key=len, default=[]) if selector.items() <= p["label_map"].items()]
        for start, stop, job_key in _runs_behind(behind, row["first_ns"], max(end, row["first_ns"])):
            for ip in json.loads(row["cluster_ips"]):
                rows.append(
                    {"cluster": row["cluster"], "ip": ip, "namespace": row["namespace"], "name": row["name"],
                     "job_key": job_key, "valid_from_ns": start, "valid_to_ns": stop}
                )  # fmt: skip
    return rows


def _runs_behind(pods: list[Row], from_ns: int, to_ns: int) -> list[tuple[int, int, int]]:
    """(from, to, run) over an interval: the one run of all pods ready then, -1 where there is none or more than one."""
    spans = [(max(p["main_started_ns"], from_ns), min(p["held_to_ns"], to_ns), p["job_key"]) for p in pods]
    spans = [span for span in spans if span[0] < span[1]]
    cuts = sorted({from_ns, to_ns, *(t for start, end, _ in spans for t in (start, end))})
    changes: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for start, end, job in spans:
        changes[start].append((job, 1))
        changes[end].append((job, -1))
    ready: dict[int, int] = defaultdict(int)
    pieces: list[tuple[int, int, int]] = []
    for start, end in pairwise(cuts):
        for job, step in changes.get(start, []):
            ready[job] += step
        jobs = [job for job, count in ready.items() if count]
        job_key = jobs[0] if len(jobs) == 1 else -1
        if pieces and pieces[-1][2] == job_key:
            pieces[-1] = (pieces[-1][0], end, job_key)
        else:
            pieces.append((start, end, job_key))
    return pieces


# --- jobs ----------------------------------------------------------------------------------------------------------
def _workloads(warehouse: Warehouse) -> list[Workload]:
    last = [
        "api_version", "kind", "namespace", "name", "owner_kind", "owner_name", "owner_uid", "finished_ns", "state",
        "replicas", "min_members", "completion_mode", "subdomain", "labels",
    ]  # fmt: skip
    return [
        Workload(
            cluster=row["cluster"],
            kind="VolcanoJob" if row["api_version"].startswith("batch.volcano.sh") else row["kind"],
            namespace=row["namespace"],
            name=row["name"],
            uid=row["uid"],
            owner_kind=row["owner_kind"],
            owner_name=row["owner_name"],
            owner_uid=row["owner_uid"],
            created_ns=row["created_ns"],
            finished_ns=row["finished_ns"],
            state=row["state"],
            replicas=parse_map(row["replicas"]),
            min_members=row["min_members"],
            gang_by_itself=row["completion_mode"] == "Indexed" and row["subdomain"] is not None,
            labels=parse_map(row["labels"]),
        )
        for row in _folded(warehouse, "staging.workload_observation", last, ["created_ns"])
    ]


def _resolve(pods: list[Row], captured: Captured, parameters: Parameters) -> dict[tuple[str, str], Membership]:
    facts = []
    for pod in pods:
        if pod["owner_kind"] in ("DaemonSet", "Node"):
            continue
        start = pod["held_from_ns"] if pod["held_from_ns"] is not None else pod["created_ns"] or pod["last_seen_ns"]
        facts.append(
            PodFacts(
                cluster=pod["cluster"],
                uid=pod["pod_uid"],
                namespace=pod["namespace"],
                name=pod["name"],
                labels=pod["label_map"],
                annotations=parse_map(pod["annotations"]),
                owner_kind=pod["owner_kind"],
                owner_name=pod["owner_name"],
                owner_uid=pod["owner_uid"],
                gpus=pod["gpus"] or 0.0,
                created_ns=pod["created_ns"] if pod["created_ns"] is not None else start,
                from_ns=start,
                to_ns=max(pod["held_to_ns"] or pod["last_seen_ns"], start + 1),
            )
        )
    return resolve(facts, captured, parameters)


def _job_runs(
    pods: list[Row], memberships: dict[tuple[str, str], Membership], captured: Captured, parameters: Parameters
) -> list[Row]:
    members = defaultdict(list)
    for pod in pods:
        if pod["job_key"] != -1:
            members[pod["job_key"]].append(pod)
    rows = []
    for key, group in sorted(members.items()):
        group.sort(key=lambda p: (p["created_ns"] or p["last_seen_ns"], p["pod_uid"]))
        membership = memberships[(group[0]["cluster"], group[0]["pod_uid"])]
        workload = captured.by_uid.get((group[0]["cluster"], str(membership.run)))
        sized = _sizing(workload, captured)
        labels: dict[str, str] = dict(workload.labels) if workload else {}
        for pod in group:
            labels |= pod["label_map"]
        size, basis = declared_size(sized, int(_most(group, None)))
        starts = [p["held_from_ns"] or p["created_ns"] or p["last_seen_ns"] for p in group]
        ends = [p["held_to_ns"] or p["last_seen_ns"] for p in group]
        rows.append(
            {
                "job_key": key,
                "cluster": group[0]["cluster"],
                "namespace": group[0]["namespace"],
                "kind": membership.kind,
                "name": membership.name,
                "run": str(membership.run),
                "queue": queue_of(labels),
                "pipeline": pipeline_of(labels),
                "team_labels": json.dumps(labels, sort_keys=True),
                "resolved_by": membership.resolved_by,
                "declared_size": size,
                "size_basis": basis,
                "gang": is_gang(membership.kind, workload, parameters),
                "state": workload.state if workload else None,
                "first_seen_ns": min(starts),
                "last_seen_ns": max(ends),
                "finished_ns": workload.finished_ns if workload else None,
                "gpus": float(_most(group, "gpus")),
            }
        )
    return rows


def _sizing(workload: Workload | None, captured: Captured) -> Workload | None:
    """The object that declares the size: the run's PodGroup, the job itself, or for a bare TrainJob the JobSet below it."""
    if workload is None or workload.min_members is not None:
        return workload
    below = captured.below.get((workload.cluster, workload.uid), [])
    group = next((w for w in below if w.kind == "PodGroup" and w.min_members is not None), None)
    if group is not None:
        return replace(workload, min_members=group.min_members)
    if workload.replicas:
        return workload
    return next((replace(w, kind=workload.kind) for w in below if w.replicas), workload)


def _most(group: list[Row], column: str | None) -> int | float:
    """The most members (or GPUs) held at once."""
    events = []
    for pod in group:
        if pod["held_from_ns"] is not None and (column or pod["role"] in ("coordinator", WORKER)):
            weight = pod[column] if column else 1
            events += [(pod["held_from_ns"], 1, weight), (pod["held_to_ns"], 0, -weight)]
    most, level = 0, 0
    for _, _, change in sorted(events):
        level += change
        most = max(most, level)
    return most


def build_dimensions(warehouse: Warehouse, window: Window, parameters: Parameters) -> None:
    """Fill the dimensions of the mart, each with its -1 member."""
    for table in ("dim_owner", "dim_zone", "dim_cluster", "dim_job", "dim_node", "dim_date"):
        warehouse.run_sql_model(f"mart.{table}", {})


PLACEMENT = Model(
    "placement",
    (
        "core.zone",
        "core.node_life",
        "core.node_address",
        "core.service_address",
        "core.pod_life",
        "core.pod_address",
        "core.placement_coverage",
        "core.job_run",
    ),
    (
        "staging.snapshot",
        "staging.pod_observation",
        "staging.node_observation",
        "staging.workload_observation",
        "staging.service_observation",
        "staging.cluster",
        "staging.bill_line",
        "staging.vpc_flow",
    ),
    build_placement,
    "Where every pod was, from when to when, and for which job.",
)
DIMENSIONS = Model(
    "dimensions",
    ("mart.dim_owner", "mart.dim_zone", "mart.dim_cluster", "mart.dim_job", "mart.dim_node", "mart.dim_date"),
    (
        "core.zone",
        "core.node_life",
        "core.job_run",
        "staging.cluster",
        "core.processed_day",
        "mart.fact_cost_ledger",
        "mart.fact_gpu_hours",
        "mart.fact_zone_traffic",
        "mart.fact_bill_status",
    ),
    build_dimensions,
    "Jobs, nodes, zones, clusters, owners and days as readers see them.",
)
MODELS = (PLACEMENT, DIMENSIONS)
