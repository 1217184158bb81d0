"""Kubernetes objects as they are recorded: lists, watch events and single objects, to observations of staging.

Accepted, in JSON (one document, one a line, or concatenated) or YAML, plain or compressed:

- recorder envelopes `{"observed_at": "...", "complete": true, "scope": null, "list": {"kind": "PodList", ...}}` and
  `{"observed_at": "...", "type": "ADDED", "object": {...}}`;
- API lists (`PodList`, ...), kubectl's `List`, JSON arrays, bare objects, and watch events without a clock.

The time of an observation is the envelope's, else the one in the file's name (`...2026-11-23T10-00-00Z...`), else the
file's modification time, with a warning. What a list leaves out is only gone if the list is complete (P1): recorder
envelopes say so. A plain list says nothing of its scope: it counts as complete when no page follows and it shows more
than one namespace (or an object that has none), or when the source says `complete = true`.
Shapes: the Kubernetes API (core/v1, batch/v1) and the job operators' custom resources.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson
import pyarrow.parquet as pq

from connectors.documents import file_time, read_documents, time_ns
from connectors.lines import canonical_address
from connectors.objects import LandedObject, Source, list_objects
from connectors.sink import Batch, Lake
from models.contracts import TABLES

POD, NODE, WORKLOAD, SERVICE, SNAPSHOT = (
    "staging.pod_observation",
    "staging.node_observation",
    "staging.workload_observation",
    "staging.service_observation",
    "staging.snapshot",
)
WATCH_MODES = {"ADDED": "added", "MODIFIED": "modified", "DELETED": "deleted"}
FLUSH_ROWS = 20_000
MAX_ANNOTATION = 4096  # last-applied-configuration and the like say nothing that is read here
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
# HAMi: a device request goes with the percentage of the device that it may use
HAMI_SHARES = ("nvidia.com/gpucores", "nvidia.com/gpumem-percentage")
GPU_DRIVERS = (
    "gpu.nvidia.com",
    "gpu.amd.com",
    "gpu.intel.com",
    "tpu.google.com",
)  # drivers of DRA whose devices are GPUs
# KAI and Run:ai: pods that hold whole devices on behalf of the fractional pods, which state their own share
RESERVATION_NAMESPACES = ("kai-resource-reservation", "runai-reservation")
_MIG = re.compile(r"^nvidia\.com/mig-(?:\d+c\.)?(\d+)g\.\d+gb(?:\.[a-z.]+)?$")
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


def stage_object(landed: LandedObject, batch: Batch) -> None:
    """Parse one file into the batch: observations, snapshots, rejected documents and items."""
    taken = _File(landed, batch, *file_time(landed))
    for line, document, problem in read_documents(landed.path):
        if problem is not None:
            batch.reject(landed, SNAPSHOT, line, problem, str(document))
            continue
        for entry in document if isinstance(document, list) else [document]:
            try:
                taken.entry(entry, line)
            except (TypeError, ValueError, AttributeError) as error:
                taken.refuse(line, f"bad_value: {error}", entry)
    taken.close()


@dataclass
class _File:
    """One file on its way to staging: what was taken so far, and where rows go when the buffer is full."""

    landed: LandedObject
    batch: Batch
    fallback_ns: int
    fallback_basis: str
    snapshots: list[Object] = field(default_factory=list)
    watch: dict[str, Object] = field(default_factory=dict)  # kind -> its stretch of events without a gap
    narrow: bool = False  # a plain list showed one namespace only
    _last_ns: dict[str, int] = field(default_factory=dict)
    _rows: dict[str, list[Object]] = field(default_factory=dict)
    _writers: dict[str, pq.ParquetWriter] = field(default_factory=dict)

    def entry(self, entry: Any, line: int | None) -> None:
        """Take one document: an envelope, a list, a watch event, or an object."""
        if not isinstance(entry, dict):
            self.refuse(line, "bad_value: not an object", entry)
            return
        stamped = time_ns(entry.get("observed_at"))
        at = (stamped, "envelope") if stamped is not None else (self.fallback_ns, self.fallback_basis)
        if isinstance(entry.get("list"), dict):
            listed = entry["list"]
            complete = bool(entry.get("complete", True)) and not _continues(listed)
            self.list(listed, line, at, complete, entry.get("scope"))
        elif isinstance(entry.get("type"), str) and isinstance(entry.get("object"), dict):
            self.event(entry["type"], entry["object"], line, at, entry.get("scope"))
        elif isinstance(entry.get("items"), list):
            self.list(entry, line, at, not _continues(entry), None, plain=True)
        elif _kind_of(entry) is not None and isinstance(entry.get("metadata"), dict):
            self.list({"kind": "List", "items": [entry]}, line, at, False, "object")
        else:
            self.refuse(line, "bad_value: neither a list, a watch event nor a Kubernetes object", entry)

    def refuse(self, line: int | None, reason: str, raw: object) -> None:
        self.batch.reject(self.landed, SNAPSHOT, line, reason, _raw(raw))

    def _plain_scope(self, members: list[Object]) -> str | None:
        """What a list without an envelope may be limited to; None when it looks like the whole cluster."""
        if self.landed.source.options.get("complete"):
            return None
        metadata = [m for member in members if isinstance(m := member.get("metadata"), dict)]
        namespaces = {str(m["namespace"]) if m.get("namespace") else "" for m in metadata}
        if len(namespaces) > 1 or "" in namespaces:
            return None
        self.narrow = True
        return f"namespace {namespaces.pop()}" if namespaces else "unknown"

    def list(
        self,
        listed: Object,
        line: int | None,
        at: tuple[int, str],
        complete: bool,
        scope: object,
        *,
        plain: bool = False,
    ) -> None:
        """Take one list: a snapshot for each kind in it. The scope of a plain one is told from its objects."""
        kind = str(listed.get("kind") or "List")
        item_kind = kind.removesuffix("List") if kind.endswith("List") and kind != "List" else None
        by_kind: dict[str, list[Object]] = {item_kind: []} if item_kind else {}
        items = listed.get("items")
        for item in items if isinstance(items, list) else []:
            found = item_kind or _kind_of(item)
            if isinstance(item, dict) and found is not None:
                by_kind.setdefault(found, []).append(item)
            else:
                self.refuse(line, "bad_value: a list item is no object of a known kind", item)
        for found, members in by_kind.items():
            limited_to = self._plain_scope(members) if plain else scope
            snapshot = self._snapshot(f"{len(self.snapshots)}", found, at, "list", complete, limited_to)
            snapshot["items"] = len(members)
            self.snapshots.append(snapshot)
            for member in members:
                api = member.get("apiVersion") or listed.get("apiVersion")
                self._object(found, member, api, line, at[0], "list", snapshot["snapshot_id"])

    def event(self, event: str, item: Object, line: int | None, at: tuple[int, str], scope: object) -> None:
        """Take one watch event. Bookmarks move the end of their stretch; an error (410 Gone) ends every stretch."""
        mode, kind = WATCH_MODES.get(event), _kind_of(item) or "?"
        if mode is None:
            self.batch.count(self.landed, SNAPSHOT).control += 1
        if event == "ERROR":
            self.snapshots += self.watch.values()
            self.watch, self._last_ns = {}, {}
            return
        if kind not in self.watch:
            self.watch[kind] = self._snapshot(
                f"w{len(self.snapshots)}-{len(self.watch)}", kind, at, "watch", False, scope
            )
            self.watch[kind]["watch_to_ns"] = at[0]
        stretch, observed_ns = self.watch[kind], at[0]
        last_ns = self._last_ns.get(kind, observed_ns - 1)
        if last_ns - 1_000_000_000 < observed_ns <= last_ns:
            observed_ns = last_ns + 1  # events keep their order even where their stamps are equal
        self._last_ns[kind] = observed_ns
        stretch["watch_to_ns"] = max(stretch["watch_to_ns"], observed_ns)
        stretch["observed_ns"] = min(stretch["observed_ns"], observed_ns)
        if mode is not None:
            stretch["items"] += 1
            self._object(kind, item, item.get("apiVersion"), line, observed_ns, mode, stretch["snapshot_id"])

    def _snapshot(
        self, name: str, kind: str, at: tuple[int, str], mode: str, complete: bool, scope: object
    ) -> dict[str, Any]:
        return {
            "snapshot_id": f"{self.landed.object_id}-{name}",
            "object_id": self.landed.object_id,
            "cluster": self.landed.source.cluster or "default",
            "resource_kind": kind,
            "observed_ns": at[0],
            "observed_basis": at[1],
            "mode": mode,
            "complete": complete and scope in (None, ""),
            "scope": None if scope in (None, "") else str(scope),
            "items": 0,
            "watch_to_ns": None,
        }

    def _object(
        self, kind: str, item: Object, api: object, line: int | None, observed_ns: int, mode: str, snapshot_id: str
    ) -> None:
        chosen = BUILDERS.get(kind) or ((WORKLOAD, workload_row) if kind in WORKLOAD_KINDS else None)
        if chosen is None:
            return
        table, build = chosen
        counts = self.batch.count(self.landed, table)
        counts.read += 1
        try:
            row = build({**item, "kind": kind, "apiVersion": str(api or "")})
            row |= {
                "object_id": self.landed.object_id,
                "snapshot_id": snapshot_id,
                "cluster": self.landed.source.cluster or "default",
                "observed_ns": observed_ns,
                "mode": mode,
            }
            _check(table, row)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            reason = f"bad_value: {type(error).__name__}: {error}"
            self.batch.reject(self.landed, table, line, reason[:500], _raw(item))
            return
        rows = self._rows.setdefault(table, [])
        rows.append(row)
        if len(rows) >= FLUSH_ROWS:
            self._flush(table)

    def _flush(self, table: str) -> None:
        contract, rows = TABLES[table], self._rows.pop(table, [])
        if not rows:
            return
        if table not in self._writers:
            target = self.batch.scratch(self.landed, table)
            self._writers[table] = pq.ParquetWriter(target, contract.arrow_schema(), compression="zstd")
        self._writers[table].write_table(contract.frame(rows).to_arrow().cast(contract.arrow_schema()))
        self.batch.count(self.landed, table).kept += len(rows)

    def close(self) -> None:
        """Write what is left, and the snapshots."""
        for table, rows in list(self._rows.items()):
            if table in self._writers:
                self._flush(table)
            else:
                TABLES[table].frame(rows).write_parquet(self.batch.scratch(self.landed, table), compression="zstd")
                self.batch.count(self.landed, table).kept += len(rows)
        for writer in self._writers.values():
            writer.close()
        snapshots = [*self.snapshots, *self.watch.values()]
        if any(snapshot["observed_basis"] == "modified" for snapshot in snapshots):
            self.batch.warn(
                self.landed,
                "time taken from the file's modification time: record with observed_at, or put it in the name",
            )
        if self.narrow:
            self.batch.warn(
                self.landed,
                "a plain list of one namespace (or none) ends nothing: record all namespaces, or set complete = true",
            )
        counts = self.batch.count(self.landed, SNAPSHOT)
        counts.read = len(snapshots) + counts.rejected + counts.control
        self.batch.write(self.landed, SNAPSHOT, TABLES[SNAPSHOT].frame(snapshots))


def _kind_of(item: Any) -> str | None:
    """The kind of an object; items of API lists do not state it, but a pod and a node can be told by their spec."""
    if not isinstance(item, dict):
        return None
    if isinstance(item.get("kind"), str):
        return str(item["kind"])
    spec, status = item.get("spec"), item.get("status")
    if isinstance(spec, dict) and isinstance(spec.get("containers"), list):
        return "Pod"
    return "Node" if isinstance(status, dict) and "nodeInfo" in status else None


def _continues(listed: Object) -> bool:
    """Is this a page of a longer list? What is not on it is not gone."""
    metadata = listed.get("metadata")
    return bool(isinstance(metadata, dict) and (metadata.get("continue") or metadata.get("remainingItemCount")))


_PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "text": (str,),
    "int": (int,),
    "ns": (int,),
    "double": (int, float),
    "bool": (bool,),
}
_COLUMN_TYPES = {
    table: [(column.name, _PYTHON_TYPES[column.type], column.required) for column in TABLES[table].columns]
    for table in (POD, NODE, WORKLOAD, SERVICE)
}


def _check(table: str, row: Object) -> None:
    """A row whose values are not what its table holds is refused here, alone, before it can spoil the file."""
    for name, types, required in _COLUMN_TYPES[table]:
        value = row.get(name)
        if value is None:
            if required:
                raise ValueError(f"{name} is missing")
        elif not isinstance(value, types):
            raise ValueError(f"{name} is no {types[0].__name__}: {str(value)[:60]!r}")
        elif isinstance(value, str):
            value.encode()  # a lone surrogate is no text
        elif isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{name} is not finite")
        elif isinstance(value, int | float) and abs(value) > 1 << 62:
            raise ValueError(f"{name} is out of range")


def _raw(item: object) -> str:
    try:
        return orjson.dumps(item, default=str, option=orjson.OPT_NON_STR_KEYS).decode()[:2000]
    except (TypeError, ValueError, RecursionError):
        return repr(item)[:2000].encode("utf-8", "replace").decode()


# --- values --------------------------------------------------------------------------------------------------------
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


def _texts(value: object) -> dict[str, str]:
    """Labels or annotations as text to text; YAML makes numbers and booleans of some, an empty one is no label."""
    if not isinstance(value, dict):
        return {}
    return {str(k): str(v).lower() if isinstance(v, bool) else str(v) for k, v in value.items() if v is not None}


def _ips(values: list[object]) -> list[str]:
    found = [canonical_address(str(value)) for value in values if value]
    return list(dict.fromkeys(address for address in found if address))


def _controller(metadata: Object) -> Object:
    owners = [owner for owner in metadata.get("ownerReferences") or [] if isinstance(owner, dict)]
    return next((owner for owner in owners if owner.get("controller")), owners[0] if len(owners) == 1 else {})


# --- pods ----------------------------------------------------------------------------------------------------------
def pod_row(pod: Object) -> Object:
    """One pod object as a row of `staging.pod_observation` (without the observation's own columns)."""
    metadata, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    conditions = {c.get("type"): c for c in status.get("conditions") or [] if isinstance(c, dict)}
    owner = _controller(metadata)
    annotations = _texts(metadata.get("annotations"))
    containers, sidecars = _main_containers(spec)
    reserves = metadata.get("namespace") in RESERVATION_NAMESPACES
    gpu_resource, gpus = (None, 0.0) if reserves else effective_gpus(spec, annotations)
    phase = status.get("phase")
    deleted = time_ns(metadata.get("deletionTimestamp"))
    grace = metadata.get("deletionGracePeriodSeconds")
    return {
        "uid": _identity(metadata),
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
        "labels": _json(_texts(metadata.get("labels"))),
        "annotations": _json({k: v for k, v in annotations.items() if len(v) <= MAX_ANNOTATION}),
        "ports": _json(_ports([*containers, *sidecars])),
        "spread_constraints": _json(spec.get("topologySpreadConstraints")),
        "node_selector": _json(_node_selection(spec)),
    }


def _identity(metadata: Object) -> str:
    """metadata.uid; an excerpt without one is told by namespace, name and time of creation."""
    if metadata.get("uid"):
        return str(metadata["uid"])
    if not metadata.get("creationTimestamp"):
        raise ValueError("metadata.uid is missing")
    text = "\x1f".join(str(metadata.get(key) or "") for key in ("namespace", "name", "creationTimestamp"))
    return f"no-uid-{hashlib.sha256(text.encode()).hexdigest()[:24]}"


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
        share = next((key for key in HAMI_SHARES if key in requests), None)
        if resource == "nvidia.com/gpu" and share is not None:
            resource, weight = share, quantity(requests[share]) / 100
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
        return "kai.scheduler/gpu-fraction", quantity(fraction) * quantity(
            annotations.get("gpu-fraction-num-devices") or 1
        )
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
    labels = _texts(metadata.get("labels"))
    provider_id = spec.get("providerID")
    zone, basis = node_zone(labels, provider_id)
    conditions = {c.get("type"): c.get("status") for c in status.get("conditions") or [] if isinstance(c, dict)}
    capacity, allocatable = _node_gpus(status.get("capacity")), _node_gpus(status.get("allocatable"))
    replicas = _replicas(labels, capacity)
    physical = capacity / replicas
    if labels.get("nvidia.com/mig.strategy") == "mixed":  # slices of a GPU need not fill it
        physical = max(physical, _count(labels.get("nvidia.com/gpu.count")))
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
        "gpus": physical,
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


def _replicas(labels: Object, capacity: float) -> float:
    """How many allocatable devices one physical GPU shows as: time-slicing replicas, or slices of the MIG strategy `single`.

    The devices over the count of physical GPUs, else the replicas label (gpu-feature-discovery); 1 when not shared.
    """
    single = re.search(r"-MIG-(\d+)g\.", str(labels.get("nvidia.com/gpu.product") or ""))
    if single:
        return MIG_SLICES / int(single[1])
    physical, replicas = _count(labels.get("nvidia.com/gpu.count")), _count(labels.get("nvidia.com/gpu.replicas"))
    if physical and capacity > physical:
        return capacity / physical
    return replicas if replicas > 1 and not physical and capacity % replicas == 0 else 1.0


def _count(text: object) -> float:
    return float(str(text)) if str(text).isdigit() else 0.0


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
    name = str(metadata.get("name") or metadata["generateName"])
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
        "replicas": orjson.dumps(replicas).decode() if replicas else None,  # in the order of declaration
        "min_members": minimum,
        "completion_mode": spec.get("completionMode") if item["kind"] == "Job" else None,
        "subdomain": _subdomain(spec),
        "labels": _json(_texts(metadata.get("labels"))),
        "annotations": _json(
            {k: v for k, v in _texts(metadata.get("annotations")).items() if len(v) <= MAX_ANNOTATION}
        ),
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


def claim_row(item: Object) -> Object:
    """An allocated ResourceClaim (DRA) as a workload row: `replicas` is GPUs by driver, `annotations` who it is reserved for.

    Devices with admin access are seen, not held; a MIG slice weighs as in a request. Shape: resource.k8s.io/v1.
    """
    metadata, status = item["metadata"], item.get("status") or {}
    devices: dict[str, float] = {}
    for result in ((status.get("allocation") or {}).get("devices") or {}).get("results") or []:
        driver = str(result.get("driver"))
        if driver in GPU_DRIVERS and not result.get("adminAccess"):
            slices = re.search(r"mig-(\d+)g", str(result.get("device")))
            devices[driver] = devices.get(driver, 0.0) + (int(slices[1]) / MIG_SLICES if slices else 1.0)
    reserved = [str(user["uid"]) for user in status.get("reservedFor") or [] if user.get("resource") == "pods"]
    return {
        "api_version": str(item.get("apiVersion") or ""),
        "kind": "ResourceClaim",
        "namespace": str(metadata.get("namespace") or "default"),
        "name": str(metadata["name"]),
        "uid": _identity(metadata),
        "created_ns": time_ns(metadata.get("creationTimestamp")),
        "replicas": _json(devices),
        "annotations": _json({"reserved_for": reserved}),
    }


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
    "ResourceClaim": (WORKLOAD, claim_row),
}
