"""Where every pod was, from when to when, and for which job (P1-P6): sightings and lifecycle stamps to intervals.

Pods are few beside flows, so lives are folded with Polars and the rest is plain Python over one row a pod. All tables
are rebuilt whole from what is staged, which makes the result independent of the order of arrival (N7).
"""

from __future__ import annotations

import bisect
import json
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from typing import Any

import polars as pl

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
    clock = _SnapshotClock.of(warehouse, parameters)
    nodes = _node_lives(warehouse, clock)
    pods = _pod_lives(warehouse, clock, nodes)
    _pod_zones(pods, nodes)
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
    """When complete lists were taken, by cluster and kind, and how far one may look past the last (P1)."""

    def __init__(self, times: dict[tuple[str, str], list[int]], watches: list[Row], parameters: Parameters) -> None:
        self.times, self.watches = times, watches
        self.default_ns = min(parameters.default_snapshot_interval_seconds * SECOND_NS, HOUR_NS)

    @classmethod
    def of(cls, warehouse: Warehouse, parameters: Parameters) -> _SnapshotClock:
        times: dict[tuple[str, str], set[int]] = defaultdict(set)
        watches = []
        for row in warehouse.table("staging.snapshot").iter_rows(named=True):
            if row["mode"] == "watch":
                watches.append(row)
            elif row["complete"]:
                times[(row["cluster"], row["resource_kind"])].add(row["observed_ns"])
        return cls({key: sorted(values) for key, values in times.items()}, watches, parameters)

    def next_complete(self, cluster: str, kind: str, after_ns: int) -> int | None:
        """The first complete list after a moment; what was not in it is gone."""
        times = self.times.get((cluster, kind), [])
        position = bisect.bisect_right(times, after_ns)
        return times[position] if position < len(times) else None

    def interval_ns(self, cluster: str, kind: str) -> int:
        """The median distance of complete lists, one hour at most."""
        times = self.times.get((cluster, kind), [])
        gaps = sorted(b - a for a, b in pairwise(times))
        return min(gaps[len(gaps) // 2], HOUR_NS) if gaps else self.default_ns

    def coverage(self) -> list[Row]:
        """Intervals in which the placement of pods is known: between complete lists, and along a watch."""
        spans: dict[str, list[tuple[int, int, str]]] = defaultdict(list)
        for (cluster, kind), times in self.times.items():
            if kind != "Pod":
                continue
            reach = max(2 * self.interval_ns(cluster, kind), HOUR_NS)
            for position, start in enumerate(times):
                following = times[position + 1] if position + 1 < len(times) else None
                if following is not None and following - start <= reach:
                    spans[cluster].append((start, following, "list"))
                else:
                    spans[cluster].append((start, start + self.interval_ns(cluster, kind), "list"))
        for watch in self.watches:
            if watch["resource_kind"] in ("Pod", "*") and (watch["cluster"], "Pod") in self.times:
                spans[watch["cluster"]].append((watch["observed_ns"], watch["watch_to_ns"], "watch"))
        return [
            {"cluster": cluster, "from_ns": start, "to_ns": end, "basis": basis}
            for cluster, listed in sorted(spans.items())
            for start, end, basis in _merged(listed)
        ]


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
def _folded(warehouse: Warehouse, table: str, last: list[str], first: list[str]) -> list[Row]:
    """One row a (cluster, uid): the last non-null value of `last`, the earliest of `first`, and the sightings."""
    columns = ", ".join(["cluster", "uid", "mode", "observed_ns", *last, *first])
    frame = warehouse.query(f"SELECT {columns} FROM {table}").sort("observed_ns", "mode", "uid")
    seen = pl.col("mode") != "deleted"
    folded = frame.group_by("cluster", "uid", maintain_order=True).agg(
        *(pl.col(name).drop_nulls().last().alias(name) for name in last),
        *(pl.col(name).min().alias(name) for name in first),
        pl.col("observed_ns").filter(seen).min().alias("first_seen_ns"),
        pl.col("observed_ns").filter(seen).max().alias("last_seen_ns"),
        pl.col("observed_ns").filter(~seen).min().alias("deleted_ns"),
    )
    return folded.sort("cluster", "uid").to_dicts()


def _end(row: Row, clock: _SnapshotClock, kind: str) -> tuple[int, str, int, bool]:
    """(end, basis, uncertainty, still alive) of what was last seen at `last_seen_ns` (P1)."""
    last = row["last_seen_ns"] if row["last_seen_ns"] is not None else row["deleted_ns"]
    if row["deleted_ns"] is not None and row["deleted_ns"] >= (row["last_seen_ns"] or 0):
        return row["deleted_ns"], "deleted", 0, False
    missing = clock.next_complete(row["cluster"], kind, last)
    if missing is not None:
        return missing, "missing_from_snapshot", missing - last, False
    reach = clock.interval_ns(row["cluster"], kind)
    return last + reach, "last_seen", reach, True


def _node_lives(warehouse: Warehouse, clock: _SnapshotClock) -> list[Row]:
    last = [
        "name", "provider_id", "instance_id", "instance_type", "lifecycle", "node_pool", "region", "zone", "zone_basis",
        "zone_id", "gpu_model", "gpus", "gpus_allocatable", "gpu_replicas", "internal_ips",
    ]  # fmt: skip
    nodes = _folded(warehouse, "staging.node_observation", last, ["created_ns"])
    providers = {row["cluster"]: row["provider"] for row in warehouse.table("staging.cluster").iter_rows(named=True)}
    regions = {row["cluster"]: row["region"] for row in warehouse.table("staging.cluster").iter_rows(named=True)}
    billed = _billed_zones(warehouse, {node["instance_id"] for node in nodes if node["zone"] is None})
    for node in nodes:
        node["node_uid"] = node.pop("uid")
        end, basis, _, _ = _end(node, clock, "Node")
        seen = [t for t in (node["first_seen_ns"], node["deleted_ns"]) if t is not None]
        created = node["created_ns"]
        node["valid_from_ns"], node["from_basis"] = (
            (created, "created") if created is not None else (min(seen), "first_seen")
        )
        node["valid_to_ns"], node["to_basis"] = max(end, node["valid_from_ns"]), basis
        node["provider"] = providers.get(node["cluster"], "unknown")
        node["region"] = node["region"] or regions.get(node["cluster"])
        node["lifecycle"] = node["lifecycle"] or "unknown"
        node["gpus"] = node["gpus"] or 0.0
        if node["zone"] is None and node["instance_id"] in billed:
            node["zone"], node["zone_basis"] = billed[node["instance_id"]], "bill"
    _clip_namesakes(nodes)
    return nodes


def _billed_zones(warehouse: Warehouse, instances: set[str | None]) -> dict[str, str]:
    """Zone of the bill line with the node's instance id: the fallback of P4."""
    wanted = sorted(instance for instance in instances if instance)
    if not wanted:
        return {}
    rows = warehouse.query(
        "SELECT resource_id, min(availability_zone) AS zone FROM staging.bill_line"
        " WHERE availability_zone IS NOT NULL AND list_contains($wanted, resource_id)"
        " GROUP BY resource_id HAVING count(DISTINCT availability_zone) = 1",
        {"wanted": wanted},
    )
    return dict(zip(rows["resource_id"].to_list(), rows["zone"].to_list(), strict=True))


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
        "namespace", "name", "node_name", "host_network", "host_ip", "phase", "reason", "finished_ns", "waiting_reason",
        "restart_count", "last_finished_ns", "gpu_resource", "gpus", "resource_requests", "owner_kind",
        "owner_api_version", "owner_name", "owner_uid", "labels", "annotations", "ports", "spread_constraints",
    ]  # fmt: skip
    first = ["created_ns", "scheduled_ns", "ready_to_start_ns", "initialized_ns", "start_ns", "main_started_ns"]
    pods = _folded(warehouse, "staging.pod_observation", last, first)
    extra = _pod_extras(warehouse)
    by_name = defaultdict(list)
    for node in nodes:
        by_name[(node["cluster"], node["name"])].append(node)
    for pod in pods:
        pod["pod_uid"] = pod.pop("uid")
        pod |= extra.get((pod["cluster"], pod["pod_uid"]), {})
        _life_of(pod, clock)
        pod["node"] = _node_at(by_name[(pod["cluster"], pod["node_name"])], pod)
        if pod["node"] is not None and pod["held_from_ns"] is not None:
            node = pod["node"]
            if node["to_basis"] in ("deleted", "missing_from_snapshot", "replaced") and pod["to_basis"] == "last_seen":
                pod["held_to_ns"] = min(pod["held_to_ns"], max(node["valid_to_ns"], pod["held_from_ns"]))
    return pods


def _pod_extras(warehouse: Warehouse) -> dict[tuple[str, str], Row]:
    """What the last value does not tell: addresses ever held, image pulls, the first sighting of a terminal phase."""
    frame = warehouse.query(
        "SELECT cluster, uid,"
        " list(DISTINCT pod_ips) FILTER (WHERE pod_ips IS NOT NULL) AS address_lists,"
        " min(observed_ns) FILTER (WHERE list_contains($image, waiting_reason)) AS image_pulling_from_ns,"
        " max(observed_ns) FILTER (WHERE list_contains($image, waiting_reason)) AS image_pulling_to_ns,"
        " min(observed_ns) FILTER (WHERE list_contains($terminal, phase)) AS terminal_seen_ns,"
        " max(observed_ns) FILTER (WHERE phase IS NULL OR NOT list_contains($terminal, phase)) AS last_live_ns"
        " FROM staging.pod_observation GROUP BY ALL",
        {"image": list(IMAGE_REASONS), "terminal": list(TERMINAL)},
    )
    return {
        (row["cluster"], row["uid"]): {
            "image_pulling_from_ns": row["image_pulling_from_ns"],
            "image_pulling_to_ns": row["image_pulling_to_ns"],
            "terminal_seen_ns": row["terminal_seen_ns"],
            "last_live_ns": row["last_live_ns"],
            "addresses": sorted({ip for text in row["address_lists"] or [] for ip in json.loads(text)}),
        }
        for row in frame.iter_rows(named=True)
    }


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
    """The node life of that name that was there while the pod held it."""
    if not lives or pod["held_from_ns"] is None:
        return None
    start, end = pod["held_from_ns"], pod["held_to_ns"]
    touching = [n for n in lives if n["valid_from_ns"] < max(end, start + 1) and start < n["valid_to_ns"]]
    return touching[-1] if touching else lives[-1]


def _pod_zones(pods: list[Row], nodes: list[Row]) -> None:
    """A node without a zone takes the one that its pods carry from the scheduler (K8s 1.35 labels, P4)."""
    for pod in pods:
        node = pod["node"]
        label = parse_map(pod["labels"]).get("topology.kubernetes.io/zone")
        if node is not None and node["zone"] is None and label and not str(label).isdigit():
            node["zone"], node["zone_basis"] = str(label), "pod_label"


def _finish_pods(pods: list[Row], memberships: dict[tuple[str, str], Membership], parameters: Parameters) -> None:
    """Keys, role and the flags that later models read."""
    for pod in pods:
        node, labels = pod["node"], parse_map(pod["labels"])
        membership = memberships.get((pod["cluster"], pod["pod_uid"]))
        requests = parse_map(pod["resource_requests"])
        pod |= {
            "node_key": -1 if node is None else node["node_key"],
            "zone_key": -1 if node is None else node["zone_key"],
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
    import hashlib

    return int(hashlib.md5(US.join(parts).encode(), usedforsecurity=False).hexdigest()[:13], 16)


def _job_key(pod: Row, membership: Membership) -> int:
    return stable_key(pod["cluster"], pod["namespace"], membership.kind, membership.name, str(membership.run))


def _zones(warehouse: Warehouse, nodes: list[Row], pods: list[Row]) -> list[Row]:
    """Zones of the nodes; gives each node its keys on the way."""
    zones: dict[int, Row] = {}
    for node in nodes:
        node["node_key"] = stable_key(node["cluster"], node["node_uid"])
        node["zone_key"] = -1
        if node["zone"] is None:
            continue
        key = stable_key(node["provider"], node["region"] or "", node["zone"])
        node["zone_key"] = key
        zone = zones.setdefault(key, {"zone_key": key, "provider": node["provider"], "region": node["region"],
                                      "zone": node["zone"], "zone_id": None})  # fmt: skip
        zone["zone_id"] = zone["zone_id"] or node["zone_id"]
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
        start, basis = _address_start(pod)
        if pod["held_to_ns"] <= start:
            continue
        for ip in pod.get("addresses") or []:
            owners[(pod["cluster"], ip)].append(
                {"cluster": pod["cluster"], "ip": ip, "pod_uid": pod["pod_uid"], "valid_from_ns": start,
                 "valid_to_ns": pod["held_to_ns"], "from_basis": basis, "to_basis": pod["to_basis"], "rival": False,
                 "last_live_ns": pod["last_live_ns"] or start}
            )  # fmt: skip
    rows = []
    for lives in owners.values():
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
    """Cluster addresses of Services; one belongs to a run only if every pod behind it does (T1)."""
    frame = warehouse.query(
        "SELECT cluster, namespace, name, cluster_ips, max(selector) AS selector, min(observed_ns) AS first_ns,"
        " max(observed_ns) AS last_ns FROM staging.service_observation"
        " WHERE cluster_ips IS NOT NULL AND mode <> 'deleted' GROUP BY ALL"
    )
    rows = []
    by_namespace = defaultdict(list)
    for pod in pods:
        by_namespace[(pod["cluster"], pod["namespace"])].append(pod)
    for row in frame.iter_rows(named=True):
        missing = clock.next_complete(row["cluster"], "Service", row["last_ns"])
        end = missing if missing is not None else row["last_ns"] + clock.interval_ns(row["cluster"], "Service")
        selector = parse_map(row["selector"])
        behind = {
            pod["job_key"]
            for pod in by_namespace[(row["cluster"], row["namespace"])]
            if selector and selector.items() <= parse_map(pod["labels"]).items() and pod["main_started_ns"] is not None
        }
        for ip in json.loads(row["cluster_ips"]):
            rows.append(
                {"cluster": row["cluster"], "ip": ip, "namespace": row["namespace"], "name": row["name"],
                 "job_key": behind.pop() if len(behind) == 1 else -1, "valid_from_ns": row["first_ns"],
                 "valid_to_ns": end}
            )  # fmt: skip
    return rows


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
                labels=parse_map(pod["labels"]),
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
            labels |= parse_map(pod["labels"])
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
    """The object that declares the size: the job itself, or for a bare TrainJob the JobSet below it."""
    if workload is None or workload.replicas or workload.min_members is not None:
        return workload
    below = [w for w in captured.by_uid.values() if w.owner_uid == workload.uid and w.cluster == workload.cluster]
    return next((replace(w, kind=workload.kind) for w in below if w.replicas or w.min_members is not None), workload)


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
        "staging.bill_line",
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
        "mart.fact_cost_ledger",
        "mart.fact_bill_status",
    ),
    build_dimensions,
    "Jobs, nodes, zones, clusters, owners and days as readers see them.",
)
MODELS = (PLACEMENT, DIMENSIONS)
