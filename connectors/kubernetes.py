"""Kubernetes objects as they are recorded: lists, watch events and single objects, to observations of staging.

Accepted, in JSON (one document, one a line, or concatenated) or YAML, plain or compressed:

- recorder envelopes `{"observed_at": "...", "complete": true, "scope": null, "list": {"kind": "PodList", ...}}` and
  `{"observed_at": "...", "type": "ADDED", "object": {...}}`;
- API lists (`PodList`, ...), kubectl's `List`, JSON arrays, bare objects, and watch events without a clock.

The time of an observation is the envelope's, else the one in the file's name (`...2026-11-23T10-00-00Z...`), else the
file's modification time, with a warning. What a list leaves out is only gone if the list is complete: recorder
envelopes say so; a plain list is complete when it has no `continue` token and no namespace scope can be told from it.
Shapes: the Kubernetes API (core/v1, batch/v1) and the job operators' custom resources.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from ipaddress import ip_address
from typing import Any

import orjson
import yaml

from connectors.objects import LandedObject, Source, list_objects, open_bytes
from connectors.sink import Batch, Lake
from models.contracts import TABLES

POD, NODE, WORKLOAD, SERVICE, SNAPSHOT = (
    "staging.pod_observation",
    "staging.node_observation",
    "staging.workload_observation",
    "staging.service_observation",
    "staging.snapshot",
)
OBSERVATIONS = (POD, NODE, WORKLOAD, SERVICE)
WATCH_MODES = {"ADDED": "added", "MODIFIED": "modified", "DELETED": "deleted"}
MAX_DOCUMENT_BYTES = 2 << 30
MAX_YAML_BYTES = 64 << 20
_FILE_TIME = re.compile(r"(\d{4}-\d{2}-\d{2})T(\d{2})[-:](\d{2})[-:](\d{2})Z")
Object = dict[str, Any]

# resource name -> accelerators that one unit is (MIG slices and HAMi shares are weighed below)
ACCELERATORS = {
    "nvidia.com/gpu": 1.0,
    "nvidia.com/gpu.shared": 1.0,
    "amd.com/gpu": 1.0,
    "gpu.intel.com/i915": 1.0,
    "gpu.intel.com/xe": 1.0,
    "habana.ai/gaudi": 1.0,
    "aws.amazon.com/neuron": 1.0,
    "google.com/tpu": 1.0,
}
_MIG = re.compile(r"^nvidia\.com/mig-(\d+)g\.\d+gb(?:\.[a-z.]+)?$")
MIG_SLICES = 7  # compute slices of a whole A100/H100-class GPU
_QUANTITY = re.compile(r"^([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$")
_SUFFIX = {"m": 1e-3, "": 1.0}
_SUFFIX |= {letter: 1000.0 ** (n + 1) for n, letter in enumerate("kMGTPE")}
_SUFFIX |= {letter + "i": 1024.0 ** (n + 1) for n, letter in enumerate("KMGTPE")}
WORKLOAD_KINDS = {
    "PyTorchJob", "TFJob", "XGBoostJob", "PaddleJob", "JAXJob", "MPIJob", "TrainJob", "JobSet", "RayJob", "RayCluster",
    "Job", "PodGroup", "Workload", "LeaderWorkerSet", "SparkApplication", "CronJob", "StatefulSet",
}  # fmt: skip
TERMINAL = ("Succeeded", "Failed")


_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def stage(source: Source, lake: Lake, progress: Callable[[str], None]) -> None:
    """Stage every new file of the source; a bad file is kept aside with its reason and does not stop the others."""
    known = set(lake.loads()["object_id"])
    fresh = [landed for landed in list_objects(source) if landed.object_id not in known]
    for number, landed in enumerate(fresh, 1):
        batch = lake.batch(landed)
        stage_object(landed, batch)
        batch.commit()
        if number % 50 == 0 or number == len(fresh):
            progress(f"{source.name}: {number} of {len(fresh)} new files")


@dataclass
class _Collected:
    """Rows of one file, by staging table, and the snapshot that they belong to."""

    landed: LandedObject
    rows: dict[str, list[Object]] = field(default_factory=lambda: {table: [] for table in OBSERVATIONS})
    snapshots: list[Object] = field(default_factory=list)
    watch: dict[str, Object] = field(default_factory=dict)
    control: int = 0  # bookmarks and errors of a watch


def stage_object(landed: LandedObject, batch: Batch) -> None:
    """Parse one file into the batch: observations, snapshots, rejected documents and items."""
    collected = _Collected(landed)
    fallback_ns, basis = _file_time(landed)
    with open_bytes(landed.path) as handle:
        try:
            data = handle.read(MAX_DOCUMENT_BYTES)
        except (OSError, EOFError) as error:
            batch.reject(landed, SNAPSHOT, None, f"unreadable: {error}", "")
            batch.count(landed, SNAPSHOT).read = 1
            return
    for line, document, problem in documents(data, landed.location):
        if problem is not None:
            batch.reject(landed, SNAPSHOT, line, problem, str(document))
            continue
        _take(collected, batch, document, line, fallback_ns, basis)
    if basis == "modified" and any(s["observed_basis"] == "modified" for s in _all_snapshots(collected)):
        batch.warn(
            landed, "time taken from the file's modification time: record with observed_at, or put it in the name"
        )
    snapshots = _all_snapshots(collected)
    batch.write(landed, SNAPSHOT, TABLES[SNAPSHOT].frame(snapshots))
    counts = batch.count(landed, SNAPSHOT)
    counts.control = collected.control
    counts.read = len(snapshots) + counts.rejected + collected.control
    for table, rows in collected.rows.items():
        if rows:
            batch.count(landed, table).read += len(rows)
            batch.write(landed, table, TABLES[table].frame(rows))


def documents(data: bytes, name: str) -> Iterator[tuple[int | None, Any, str | None]]:
    """(line, document, problem) of every document in a file; a document that can't be read has a problem instead."""
    text = data.lstrip()
    if not text:
        return
    if text[:1] in (b"{", b"["):
        yield from _json_documents(data)
        return
    yield from _yaml_documents(data)


def _json_documents(data: bytes) -> Iterator[tuple[int | None, Any, str | None]]:
    try:
        yield 1, orjson.loads(data), None
        return
    except orjson.JSONDecodeError:
        pass
    lines = data.split(b"\n")
    first = next((line for line in lines if line.strip()), b"")
    try:
        orjson.loads(first)
    except orjson.JSONDecodeError:
        yield from _concatenated(data)
        return
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                yield number, orjson.loads(line), None
            except orjson.JSONDecodeError as error:
                yield number, line[:2000].decode("utf-8", "replace"), f"bad_json: {error}"


def _concatenated(data: bytes) -> Iterator[tuple[int | None, Any, str | None]]:
    text, decoder, position = data.decode("utf-8", "replace"), json.JSONDecoder(), 0
    while position < len(text):
        while position < len(text) and text[position].isspace():
            position += 1
        if position == len(text):
            return
        line = text.count("\n", 0, position) + 1
        try:
            document, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError) as error:
            yield line, text[position : position + 2000], f"bad_json: {error}"
            return
        yield line, document, None


def _yaml_documents(data: bytes) -> Iterator[tuple[int | None, Any, str | None]]:
    if len(data) > MAX_YAML_BYTES:
        yield 1, "", f"too_large: YAML over {MAX_YAML_BYTES >> 20} MiB; record JSON"
        return
    try:
        starts = []
        for event in yaml.parse(data, Loader=_LOADER):
            if isinstance(event, yaml.events.AliasEvent):  # Kubernetes never writes one; a bomb is made of them
                raise yaml.YAMLError("YAML aliases are not read")
            if isinstance(event, yaml.events.DocumentStartEvent):
                starts.append(event.start_mark.line + 1 if event.start_mark else 1)
        for line, document in zip(starts, yaml.load_all(data, Loader=_LOADER), strict=True):
            if document is not None:
                yield line, document, None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        yield None, data[:2000].decode("utf-8", "replace"), f"bad_yaml: {str(error).splitlines()[0]}"


def _take(
    collected: _Collected, batch: Batch, document: Any, line: int | None, fallback_ns: int, fallback_basis: str
) -> None:
    """Take one document: an envelope, a list, a watch event, or an object."""
    for entry in document if isinstance(document, list) else [document]:
        if not isinstance(entry, dict):
            _refuse(collected, batch, line, "bad_value: not an object", entry)
            continue
        stamped = time_ns(entry.get("observed_at"))
        observed_ns, basis = (stamped, "envelope") if stamped is not None else (fallback_ns, fallback_basis)
        if isinstance(entry.get("list"), dict):
            listed = entry["list"]
            complete = bool(entry.get("complete", not _continues(listed)))
            _take_list(collected, batch, listed, line, observed_ns, basis, complete, entry.get("scope"))
        elif isinstance(entry.get("type"), str) and isinstance(entry.get("object"), dict):
            _take_event(collected, batch, entry["type"], entry["object"], line, observed_ns, basis)
        elif isinstance(entry.get("items"), list):
            _take_list(collected, batch, entry, line, observed_ns, basis, not _continues(entry), None)
        elif isinstance(entry.get("kind"), str) and isinstance(entry.get("metadata"), dict):
            _take_list(collected, batch, {"kind": "List", "items": [entry]}, line, observed_ns, basis, False, "object")
        else:
            _refuse(collected, batch, line, "bad_value: neither a list, a watch event nor a Kubernetes object", entry)


def _refuse(collected: _Collected, batch: Batch, line: int | None, reason: str, raw: object) -> None:
    batch.reject(collected.landed, SNAPSHOT, line, reason, str(raw))


def _continues(listed: Object) -> bool:
    metadata = listed.get("metadata")
    return bool(isinstance(metadata, dict) and (metadata.get("continue") or metadata.get("remainingItemCount")))


def _take_list(
    collected: _Collected, batch: Batch, listed: Object, line: int | None, observed_ns: int, basis: str, complete: bool,
    scope: object,
) -> None:  # fmt: skip
    kind = str(listed.get("kind") or "List")
    items = listed.get("items")
    item_kind = kind.removesuffix("List") if kind.endswith("List") and kind != "List" else None
    by_kind: dict[str, list[Object]] = {item_kind: []} if item_kind else {}
    for item in items if isinstance(items, list) else []:
        if isinstance(item, dict):
            by_kind.setdefault(item_kind or str(item.get("kind") or "?"), []).append(item)
        else:
            _refuse(collected, batch, line, "bad_value: a list item is not an object", item)
    for found, members in by_kind.items():
        snapshot_id = f"{collected.landed.object_id}-{len(collected.snapshots)}"
        collected.snapshots.append(
            _snapshot(collected, snapshot_id, found, observed_ns, basis, "list", complete, scope, len(members))
        )
        for member in members:
            api = member.get("apiVersion") or listed.get("apiVersion")
            _take_object(collected, batch, found, member, api, line, observed_ns, "list", snapshot_id)


def _take_event(
    collected: _Collected, batch: Batch, event: str, item: Object, line: int | None, observed_ns: int, basis: str
) -> None:
    kind = str(item.get("kind") or "?")
    mode = WATCH_MODES.get(event)
    if mode is None:
        collected.control += 1
    if event == "ERROR":
        collected.snapshots.extend(collected.watch.values())  # a gap: what follows is a new stretch
        collected.watch = {}
        return
    if kind not in collected.watch:
        snapshot_id = f"{collected.landed.object_id}-w{len(collected.watch)}-{len(collected.snapshots)}"
        collected.watch[kind] = _snapshot(collected, snapshot_id, kind, observed_ns, basis, "watch", False, None, 0)
    stretch = collected.watch[kind]
    stretch["watch_to_ns"] = max(int(stretch["watch_to_ns"] or observed_ns), observed_ns)
    stretch["observed_ns"] = min(int(stretch["observed_ns"]), observed_ns)
    if mode is None:  # BOOKMARK
        return
    stretch["items"] += 1
    _take_object(
        collected, batch, kind, item, item.get("apiVersion"), line, observed_ns, mode, str(stretch["snapshot_id"])
    )


def _snapshot(
    collected: _Collected, snapshot_id: str, kind: str, observed_ns: int, basis: str, mode: str, complete: bool,
    scope: object, items: int,
) -> Object:  # fmt: skip
    return {
        "snapshot_id": snapshot_id,
        "object_id": collected.landed.object_id,
        "cluster": collected.landed.source.cluster,
        "resource_kind": kind,
        "observed_ns": observed_ns,
        "observed_basis": basis,
        "mode": mode,
        "complete": complete and scope in (None, ""),
        "scope": None if scope in (None, "") else str(scope),
        "items": items,
        "watch_to_ns": observed_ns if mode == "watch" else None,
    }


def _all_snapshots(collected: _Collected) -> list[Object]:
    return [*collected.snapshots, *collected.watch.values()]


def _take_object(
    collected: _Collected, batch: Batch, kind: str, item: Object, api: object, line: int | None, observed_ns: int,
    mode: str, snapshot_id: str,
) -> None:  # fmt: skip
    chosen = BUILDERS.get(kind) or ((WORKLOAD, workload_row) if kind in WORKLOAD_KINDS else None)
    if chosen is None:
        return
    table, build = chosen
    try:
        row = build({**item, "kind": kind, "apiVersion": api or ""})
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        batch.count(collected.landed, table).read += 1
        batch.reject(collected.landed, table, line, f"bad_value: {type(error).__name__}: {error}", _raw(item))
        return
    row |= {
        "object_id": collected.landed.object_id,
        "snapshot_id": snapshot_id,
        "cluster": collected.landed.source.cluster,
        "observed_ns": observed_ns,
        "mode": mode,
    }
    collected.rows[table].append(row)


def _raw(item: Object) -> str:
    return orjson.dumps(item, default=str, option=orjson.OPT_NON_STR_KEYS).decode("utf-8", "replace")[:2000]


def _file_time(landed: LandedObject) -> tuple[int, str]:
    match = _FILE_TIME.search(landed.location.rsplit("/", 1)[-1])
    if match:
        stamped = time_ns(f"{match[1]}T{match[2]}:{match[3]}:{match[4]}Z")
        if stamped is not None:
            return stamped, "file_name"
    return landed.modified_ns, "modified"


# --- values --------------------------------------------------------------------------------------------------------
def time_ns(value: object) -> int | None:
    """RFC 3339 (or a datetime from YAML) as nanoseconds since 1970 UTC; None when absent."""
    if value is None or value == "":
        return None
    if isinstance(value, datetime):
        moment = value if value.tzinfo else value.replace(tzinfo=UTC)
        return int(moment.timestamp()) * 1_000_000_000 + moment.microsecond * 1000
    text = str(value)
    stem, zone = (text[:-1], "+00:00") if text.endswith("Z") else (text, "")
    whole, dot, fraction = stem.partition(".")
    if dot and not zone:
        digits = re.match(r"\d*", fraction)
        cut = digits.end() if digits else 0
        fraction, zone = fraction[:cut], fraction[cut:]
    moment = datetime.fromisoformat(whole + zone)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp()) * 1_000_000_000 + (int(fraction[:9].ljust(9, "0")) if fraction else 0)


def quantity(value: object) -> float:
    """A Kubernetes resource quantity (`8`, `500m`, `2Gi`, `1k`) as a number."""
    if isinstance(value, int | float):
        return float(value)
    match = _QUANTITY.match(str(value).strip())
    if match is None:
        raise ValueError(f"not a quantity: {value!r}")
    return float(match[1]) * _SUFFIX[match[2] or ""]


def _json(value: object) -> str | None:
    if not value:
        return None
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS, default=str).decode()


def canonical_ip(text: str) -> str:
    """Canonical text of an address; IPv4-mapped IPv6 becomes IPv4."""
    address = ip_address(text.strip())
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)


def _ips(values: list[object]) -> list[str]:
    found = []
    for value in values:
        if value:
            try:
                found.append(canonical_ip(str(value)))
            except ValueError:
                continue
    return list(dict.fromkeys(found))


def _controller(metadata: Object) -> Object:
    owners = [owner for owner in metadata.get("ownerReferences") or [] if isinstance(owner, dict)]
    return next((owner for owner in owners if owner.get("controller")), owners[0] if len(owners) == 1 else {})


# --- pods ----------------------------------------------------------------------------------------------------------
def pod_row(pod: Object) -> Object:
    """One pod object as a row of `staging.pod_observation` (without the observation's own columns)."""
    metadata, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    conditions = {c.get("type"): c for c in status.get("conditions") or [] if isinstance(c, dict)}
    owner = _controller(metadata)
    annotations = metadata.get("annotations") or {}
    containers, sidecars = _main_containers(spec)
    gpu_resource, gpus = effective_gpus(spec, annotations)
    phase = status.get("phase")
    uid = metadata.get("uid")
    if not uid:
        raise ValueError("metadata.uid is missing")
    deleted = time_ns(metadata.get("deletionTimestamp"))
    grace = metadata.get("deletionGracePeriodSeconds")
    return {
        "uid": str(uid),
        "namespace": str(metadata.get("namespace") or "default"),
        "name": str(metadata["name"]),
        "node_name": spec.get("nodeName") or None,
        "host_network": bool(spec.get("hostNetwork")),
        "host_ip": next(iter(_ips([status.get("hostIP")])), None),
        "pod_ips": _json(_ips([status.get("podIP"), *[ip.get("ip") for ip in status.get("podIPs") or []]])),
        "phase": phase,
        "reason": status.get("reason"),
        "created_ns": time_ns(metadata.get("creationTimestamp")),
        "delete_requested_ns": None if deleted is None else deleted - int(grace or 0) * 1_000_000_000,
        "scheduled_ns": _true_since(conditions, "PodScheduled"),
        "unscheduled_reason": _false_reason(conditions, "PodScheduled"),
        "ready_to_start_ns": _true_since(conditions, "PodReadyToStartContainers"),
        "initialized_ns": _true_since(conditions, "Initialized"),
        "ready_ns": _true_since(conditions, "Ready"),
        "start_ns": time_ns(status.get("startTime")),
        **_container_times(status, {c["name"] for c in containers}, phase),
        "disruption_reason": (conditions.get("DisruptionTarget") or {}).get("reason"),
        "gpu_resource": gpu_resource,
        "gpus": gpus,
        "cpu_request_cores": _sum_requests(spec, "cpu"),
        "memory_request_bytes": _sum_requests(spec, "memory"),
        "resource_requests": _json(extended_requests(spec)),
        "owner_kind": owner.get("kind"),
        "owner_api_version": owner.get("apiVersion"),
        "owner_name": owner.get("name"),
        "owner_uid": owner.get("uid"),
        "labels": _json(metadata.get("labels")),
        "annotations": _json({k: v for k, v in annotations.items() if len(str(v)) <= 4096}),
        "ports": _json(_ports([*containers, *sidecars])),
        "spread_constraints": _json(spec.get("topologySpreadConstraints")),
        "node_selector": _json(_node_selection(spec)),
    }


def _main_containers(spec: Object) -> tuple[list[Object], list[Object]]:
    """(main containers, sidecars): a sidecar is an init container that restarts always."""
    inits = [c for c in spec.get("initContainers") or [] if isinstance(c, dict)]
    mains = [c for c in spec.get("containers") or [] if isinstance(c, dict) and c.get("name")]
    return mains, [c for c in inits if c.get("restartPolicy") == "Always"]


def _true_since(conditions: dict[Any, Object], kind: str) -> int | None:
    condition = conditions.get(kind) or {}
    return time_ns(condition.get("lastTransitionTime")) if condition.get("status") == "True" else None


def _false_reason(conditions: dict[Any, Object], kind: str) -> str | None:
    condition = conditions.get(kind) or {}
    return condition.get("reason") if condition.get("status") == "False" else None


def _container_times(status: Object, mains: set[str], phase: object) -> Object:
    """First start, latest end, waiting reason and restarts of the main containers."""
    started, finished, last_finished, waiting, restarts, running = [], [], [], None, 0, False
    for container in status.get("containerStatuses") or []:
        if mains and container.get("name") not in mains:
            continue
        state, last = container.get("state") or {}, container.get("lastState") or {}
        restarts = max(restarts, int(container.get("restartCount") or 0))
        for holder in (state, last):
            for entry in ("running", "terminated"):
                begun = time_ns((holder.get(entry) or {}).get("startedAt"))
                if begun:
                    started.append(begun)
        running = running or "running" in state
        ended = time_ns((state.get("terminated") or {}).get("finishedAt"))
        if ended:
            finished.append(ended)
        before = time_ns((last.get("terminated") or {}).get("finishedAt"))
        if before:
            last_finished.append(before)
        waiting = waiting or (state.get("waiting") or {}).get("reason")
    terminal = phase in TERMINAL
    return {
        "main_started_ns": min(started, default=None),
        "main_running": running,
        "finished_ns": max(finished, default=None) if terminal else None,
        "waiting_reason": waiting,
        "restart_count": restarts,
        "last_finished_ns": max(last_finished, default=None),
    }


def container_requests(container: Object) -> dict[str, object]:
    """Requests of a container; a limit without a request counts as the request."""
    resources = container.get("resources") or {}
    return {**(resources.get("limits") or {}), **(resources.get("requests") or {})}


def _container_gpus(container: Object) -> tuple[str | None, float]:
    """(resource name, GPUs) of one container: MIG slices weigh g/7, HAMi cores weigh their percentage (P6)."""
    requests = container_requests(container)
    name, total = None, 0.0
    for resource, value in requests.items():
        mig = _MIG.match(resource)
        weight = int(mig[1]) / MIG_SLICES if mig else ACCELERATORS.get(resource)
        if weight is None:
            continue
        count = quantity(value)
        if resource == "nvidia.com/gpu" and "nvidia.com/gpucores" in requests:
            weight = quantity(requests["nvidia.com/gpucores"]) / 100
        if count:
            name, total = name or resource, total + count * weight
    return name, total


def effective_gpus(spec: Object, annotations: Object) -> tuple[str | None, float]:
    """(resource, GPUs) of a pod: max(containers + sidecars, each init container + the sidecars before it) (P6).

    Source: the scheduler's pod request, kubernetes/component-helpers resource/helpers.go. A KAI `gpu-fraction`
    annotation counts as that fraction when no device is requested.
    """
    mains, _ = _main_containers(spec)
    name, total = None, 0.0
    for container in mains:
        resource, count = _container_gpus(container)
        name, total = name or resource, total + count
    sidecars, peak = 0.0, 0.0
    for container in spec.get("initContainers") or []:
        resource, count = _container_gpus(container)
        name = name or resource
        if container.get("restartPolicy") == "Always":
            sidecars += count
            peak = max(peak, sidecars)
        else:
            peak = max(peak, count + sidecars)
    gpus = max(total + sidecars, peak)
    fraction = annotations.get("gpu-fraction")
    if not gpus and fraction:
        return "kai.scheduler/gpu-fraction", quantity(fraction)
    return (name if gpus else None), gpus


def extended_requests(spec: Object) -> dict[str, float]:
    """Extended resources (with a `/`) summed over containers: EFA, RDMA, devices."""
    totals: dict[str, float] = {}
    mains, sidecars = _main_containers(spec)
    for container in [*mains, *sidecars]:
        for resource, value in container_requests(container).items():
            if "/" in resource:
                totals[resource] = totals.get(resource, 0.0) + quantity(value)
    return totals


def _sum_requests(spec: Object, resource: str) -> float | None:
    mains, sidecars = _main_containers(spec)
    values = [((c.get("resources") or {}).get("requests") or {}).get(resource) for c in [*mains, *sidecars]]
    known = [quantity(value) for value in values if value is not None]
    return sum(known) if known else None


def _ports(containers: list[Object]) -> list[Object]:
    return [
        {"name": port.get("name"), "port": int(port["containerPort"]), "protocol": port.get("protocol") or "TCP"}
        for container in containers
        for port in container.get("ports") or []
        if str(port.get("containerPort", "")).isdigit()
    ]


def _node_selection(spec: Object) -> Object:
    affinity = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    chosen = {"nodeSelector": spec.get("nodeSelector"), "requiredNodeAffinity": affinity}
    return {key: value for key, value in chosen.items() if value}


# --- nodes ---------------------------------------------------------------------------------------------------------
ZONE_LABELS = (
    ("topology.kubernetes.io/zone", "label"),
    ("failure-domain.beta.kubernetes.io/zone", "legacy_label"),
    ("topology.ebs.csi.aws.com/zone", "csi_label"),
    ("topology.gke.io/zone", "gke_label"),
)
POOL_LABELS = (
    "eks.amazonaws.com/nodegroup", "karpenter.sh/nodepool", "kubernetes.azure.com/agentpool", "agentpool",
    "cloud.google.com/gke-nodepool", "doks.digitalocean.com/node-pool", "alpha.eksctl.io/nodegroup-name",
)  # fmt: skip
_AWS_PROVIDER = re.compile(r"^aws:///([a-z]{2}(?:-[a-z]+)+-\d[a-z])/(.+)$")
_GCE_PROVIDER = re.compile(r"^gce://[^/]+/([^/]+)/(.+)$")


def node_row(node: Object) -> Object:
    """One node object as a row of `staging.node_observation` (without the observation's own columns)."""
    metadata, spec, status = node["metadata"], node.get("spec") or {}, node.get("status") or {}
    labels = metadata.get("labels") or {}
    provider_id = spec.get("providerID")
    zone, basis = node_zone(labels, provider_id)
    conditions = {c.get("type"): c.get("status") for c in status.get("conditions") or [] if isinstance(c, dict)}
    replicas = _replicas(labels)
    capacity, allocatable = _node_gpus(status.get("capacity")), _node_gpus(status.get("allocatable"))
    ready = conditions.get("Ready")
    name = str(metadata["name"])
    identity = f"{name}\x1f{provider_id}"
    return {
        "uid": str(metadata.get("uid") or hashlib.sha256(identity.encode()).hexdigest()[:32]),
        "name": name,
        "created_ns": time_ns(metadata.get("creationTimestamp")),
        "provider_id": provider_id,
        "instance_id": instance_id(provider_id),
        "instance_type": labels.get("node.kubernetes.io/instance-type")
        or labels.get("beta.kubernetes.io/instance-type"),
        "lifecycle": lifecycle(labels),
        "node_pool": next((labels[key] for key in POOL_LABELS if labels.get(key)), None),
        "region": labels.get("topology.kubernetes.io/region") or labels.get("failure-domain.beta.kubernetes.io/region"),
        "zone": zone,
        "zone_basis": basis,
        "zone_id": labels.get("topology.k8s.aws/zone-id"),
        "gpu_model": gpu_model(labels),
        "gpus": capacity / replicas,
        "gpus_allocatable": allocatable / replicas,
        "gpu_replicas": replicas,
        "internal_ips": _json(
            _ips([a.get("address") for a in status.get("addresses") or [] if a.get("type") == "InternalIP"])
        ),
        "pod_cidrs": _json(spec.get("podCIDRs") or ([spec["podCIDR"]] if spec.get("podCIDR") else [])),
        "ready": None if ready is None else ready == "True",
        "unschedulable": bool(spec.get("unschedulable")),
        "labels": _json(labels),
    }


def node_zone(labels: Object, provider_id: object) -> tuple[str | None, str | None]:
    """(zone, basis) by the precedence of P4. A bare integer is an Azure fault domain, not a zone."""
    for key, basis in ZONE_LABELS:
        value = str(labels.get(key) or "")
        if value and not value.isdigit():
            return value, basis
    match = _AWS_PROVIDER.match(str(provider_id or "")) or _GCE_PROVIDER.match(str(provider_id or ""))
    return (match[1], "provider_id") if match else (None, None)


def instance_id(provider_id: object) -> str | None:
    """The join key to the bill: `i-...`, the Azure resource path (lower case), the GCE instance, else the last part."""
    text = str(provider_id or "")
    if not text:
        return None
    if text.startswith("azure://"):
        return text.removeprefix("azure://").lower()
    return text.rstrip("/").rsplit("/", 1)[-1] or None


def lifecycle(labels: Object) -> str:
    """on_demand, spot, capacity_block or unknown, from the pool's capacity labels."""
    value = str(
        labels.get("karpenter.sh/capacity-type")
        or labels.get("eks.amazonaws.com/capacityType")
        or labels.get("kubernetes.azure.com/scalesetpriority")
        or labels.get("node.kubernetes.io/lifecycle")
        or ""
    ).lower()
    if "true" in (labels.get("cloud.google.com/gke-spot"), labels.get("cloud.google.com/gke-preemptible")):
        return "spot"
    names = {"spot": "spot", "on-demand": "on_demand", "on_demand": "on_demand", "normal": "on_demand",
             "regular": "on_demand", "reserved": "on_demand", "capacity_block": "capacity_block"}  # fmt: skip
    return names.get(value, "unknown")


def gpu_model(labels: Object) -> str | None:
    """The product label without the suffixes of time-slicing and MIG."""
    product = (
        labels.get("nvidia.com/gpu.product")
        or labels.get("amd.com/gpu.product-name")
        or labels.get("cloud.google.com/gke-accelerator")
        or labels.get("karpenter.k8s.aws/instance-gpu-name")
    )
    return re.sub(r"(-SHARED|-MIG-.*)$", "", str(product)) if product else None


def _replicas(labels: Object) -> float:
    """Time-slicing factor: how many allocatable devices one physical GPU shows as."""
    try:
        return max(1.0, float(labels.get("nvidia.com/gpu.replicas") or 1))
    except ValueError:
        return 1.0


def _node_gpus(resources: object) -> float:
    total = 0.0
    for resource, value in (resources if isinstance(resources, dict) else {}).items():
        mig = _MIG.match(resource)
        weight = int(mig[1]) / MIG_SLICES if mig else ACCELERATORS.get(resource, 0.0)
        total += quantity(value) * weight if weight else 0.0
    return total


# --- workloads and services ----------------------------------------------------------------------------------------
_REPLICA_SPECS = ("pytorchReplicaSpecs", "tfReplicaSpecs", "xgbReplicaSpecs", "paddleReplicaSpecs", "jaxReplicaSpecs",
                  "mpiReplicaSpecs")  # fmt: skip


def workload_row(item: Object) -> Object:
    """One workload object as a row of `staging.workload_observation` (without the observation's own columns)."""
    metadata, spec, status = item["metadata"], item.get("spec") or {}, item.get("status") or {}
    owner = _controller(metadata)
    replicas, minimum = declared_replicas(item["kind"], spec)
    name = str(metadata["name"])
    namespace = str(metadata.get("namespace") or "default")
    return {
        "api_version": str(item.get("apiVersion") or ""),
        "kind": item["kind"],
        "namespace": namespace,
        "name": name,
        "uid": str(metadata.get("uid") or f"unknown-{namespace}-{name}"),
        "owner_kind": owner.get("kind"),
        "owner_name": owner.get("name"),
        "owner_uid": owner.get("uid"),
        "created_ns": time_ns(metadata.get("creationTimestamp")),
        "finished_ns": time_ns(status.get("completionTime") or status.get("endTime")),
        "state": _state(status, spec),
        "replicas": _json(replicas),
        "min_members": minimum,
        "completion_mode": spec.get("completionMode") if item["kind"] == "Job" else None,
        "subdomain": _subdomain(spec),
        "labels": _json(metadata.get("labels")),
        "annotations": _json({k: v for k, v in (metadata.get("annotations") or {}).items() if len(str(v)) <= 4096}),
        "ports": _json(_ports(list(_templated_containers(spec)))),
    }


def declared_replicas(kind: str, spec: Object) -> tuple[dict[str, int], int | None]:
    """({replica type: declared count}, minimum members that the job needs or None), by kind of workload."""
    for key in _REPLICA_SPECS:
        if isinstance(spec.get(key), dict):
            replicas = {t.lower(): int((s or {}).get("replicas", 1)) for t, s in spec[key].items()}
            elastic = (spec.get("elasticPolicy") or {}).get("minReplicas")
            minimum = ((spec.get("runPolicy") or {}).get("schedulingPolicy") or {}).get("minAvailable")
            return replicas, minimum if minimum is not None else elastic
    if kind in ("RayJob", "RayCluster"):
        cluster = spec.get("rayClusterSpec") or spec
        groups = cluster.get("workerGroupSpecs") or []
        replicas = {"head": 1} | {
            str(g.get("groupName") or n): int(g.get("replicas") or 0) for n, g in enumerate(groups)
        }
        return replicas, 1 + sum(int(g.get("minReplicas") or g.get("replicas") or 0) for g in groups)
    if kind == "JobSet":
        jobs = spec.get("replicatedJobs") or []
        return {
            str(job["name"]): int(job.get("replicas") or 1)
            * int(((job.get("template") or {}).get("spec") or {}).get("parallelism") or 1)
            for job in jobs
        }, None
    if kind == "TrainJob":
        nodes = (spec.get("trainer") or {}).get("numNodes")
        return ({"node": int(nodes)} if nodes else {}), None
    if kind == "LeaderWorkerSet":
        size = int((spec.get("leaderWorkerTemplate") or {}).get("size") or 1)
        return {"leader": 1, "worker": size - 1}, None
    if kind == "Job" and spec.get("tasks"):
        tasks = spec["tasks"]
        return {str(t.get("name")): int(t.get("replicas") or 1) for t in tasks}, spec.get("minAvailable")
    if kind == "Job":
        return {"worker": int(spec.get("parallelism") or 1)}, None
    if kind == "PodGroup":
        return {}, spec.get("minMember")
    return {}, None


def _state(status: Object, spec: Object) -> str | None:
    if spec.get("suspend"):
        return "Suspended"
    phase = status.get("jobStatus") or status.get("jobDeploymentStatus")
    volcano = status.get("state")
    if isinstance(volcano, dict):
        phase = phase or volcano.get("phase")
    true = [c.get("type") for c in status.get("conditions") or [] if isinstance(c, dict) and c.get("status") == "True"]
    for names, state in (
        (("Succeeded", "Complete", "Completed"), "Succeeded"),
        (("Failed",), "Failed"),
        (("Suspended",), "Suspended"),
        (("Running",), "Running"),
        (("Created",), "Created"),
    ):
        if any(name in true for name in names) or (phase and str(phase).capitalize() in names):
            return state
    if isinstance(phase, str):
        named = {"SUCCEEDED": "Succeeded", "FAILED": "Failed", "RUNNING": "Running"}
        return named.get(phase.upper(), phase.capitalize())
    return "Running" if status.get("active") else None


def _subdomain(spec: Object) -> str | None:
    template = ((spec.get("template") or {}).get("spec")) or {}
    return template.get("subdomain") or (spec.get("network") or {}).get("subdomain")


def _templated_containers(value: Any, depth: int = 0) -> Iterator[Object]:
    """Containers of every pod template below a workload's spec."""
    if depth > 12:
        return
    if isinstance(value, dict):
        if isinstance(value.get("containers"), list):
            yield from (c for c in value["containers"] if isinstance(c, dict))
        for key, inner in value.items():
            if key not in ("containers", "env"):
                yield from _templated_containers(inner, depth + 1)
    elif isinstance(value, list):
        for inner in value:
            yield from _templated_containers(inner, depth + 1)


def service_row(item: Object) -> Object:
    """One Service as a row of `staging.service_observation` (without the observation's own columns)."""
    metadata, spec = item["metadata"], item.get("spec") or {}
    addresses = [spec.get("clusterIP"), *(spec.get("clusterIPs") or [])]
    return {
        "namespace": str(metadata.get("namespace") or "default"),
        "name": str(metadata["name"]),
        "uid": metadata.get("uid"),
        "cluster_ips": _json(_ips([a for a in addresses if a and a != "None"])),
        "selector": _json(spec.get("selector")),
        "ports": _json(
            [
                {
                    "name": port.get("name"),
                    "port": port.get("port"),
                    "protocol": port.get("protocol") or "TCP",
                    "target_port": port.get("targetPort"),
                }
                for port in spec.get("ports") or []
            ]
        ),
    }


BUILDERS: dict[str, tuple[str, Callable[[Object], Object]]] = {
    "Pod": (POD, pod_row),
    "Node": (NODE, node_row),
    "Service": (SERVICE, service_row),
}
