"""Kubernetes recorder files of a simulated cluster: complete lists at intervals, and watch events beside them.

One file a list time, gzipped JSON lines, each line an envelope {"observed_at", "complete", "list"}; one watch file a
day, each line {"observed_at", "type", "object"}. Objects carry what the API server and the kubelet write.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from connectors.simulated.world import SimJob, SimNode, SimPod, World

SECOND = 1_000_000_000
DAY = 86400 * SECOND
Object = dict[str, Any]


def stamp(ns: int) -> str:
    """Whole seconds in RFC 3339, as the API server writes them."""
    return datetime.fromtimestamp(ns // SECOND, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def write(world: World, folder: Path) -> dict[str, int]:
    """Write lists and watch events; returns how many of each."""
    folder.mkdir(parents=True, exist_ok=True)
    step = world.scenario.snapshot_minutes * 60 * SECOND
    lists = 0
    for moment in range(world.from_ns, world.to_ns + 1, step):
        lines = [
            json.dumps({"observed_at": stamp(moment), "complete": True, "list": listed}, separators=(",", ":"))
            for listed in _lists(world, moment)
        ]
        name = f"snapshot-{stamp(moment).replace(':', '-')}.jsonl.gz"
        _write_gz(folder / name, lines)
        lists += len(lines)
    events = 0
    if world.scenario.watch:
        for day in range(world.from_ns, world.to_ns, DAY):
            lines = [json.dumps(event, separators=(",", ":")) for event in _watch(world, day, day + DAY)]
            _write_gz(folder / f"watch-{stamp(day)[:10]}.jsonl.gz", lines)
            events += len(lines)
    return {"lists": lists, "events": events}


def _write_gz(path: Path, lines: list[str]) -> None:
    with path.open("wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", mtime=0, filename="") as handle:
        handle.write(("\n".join(lines) + "\n").encode())


def _lists(world: World, now: int) -> Iterator[Object]:
    yield {"kind": "NodeList", "apiVersion": "v1", "items": [node_object(n) for n in world.nodes if node_alive(n, now)]}
    yield {"kind": "PodList", "apiVersion": "v1", "items": [pod_object(p, now) for p in world.pods if alive(p, now)]}
    yield {"kind": "ServiceList", "apiVersion": "v1", "items": list(_services(world))}
    workloads = [
        w
        for job in world.jobs
        if job.created_ns <= now <= (job.finished_ns or now) + DAY
        for w in workload_objects(job, world, now)
    ]
    if workloads:
        yield {"kind": "List", "apiVersion": "v1", "items": workloads}


def node_alive(node: SimNode, now: int) -> bool:
    return node.joined_ns <= now and (node.deleted_ns is None or now < node.deleted_ns)


def alive(pod: SimPod, now: int) -> bool:
    return pod.created_ns <= now and (pod.deleted_ns is None or now < pod.deleted_ns)


def node_object(node: SimNode) -> Object:
    labels = {
        "kubernetes.io/hostname": node.name,
        "node.kubernetes.io/instance-type": node.instance_type,
        "topology.kubernetes.io/region": node.zone.name[:-1],
        "topology.kubernetes.io/zone": node.zone.name,
        "topology.k8s.aws/zone-id": node.zone.zone_id,
        "eks.amazonaws.com/nodegroup": node.pool,
        "eks.amazonaws.com/capacityType": "SPOT" if node.lifecycle == "spot" else "ON_DEMAND",
    }
    capacity = {"cpu": "96" if node.gpus else "16", "memory": "1152Gi" if node.gpus else "64Gi", "pods": "110"}
    if node.gpus:
        labels |= {
            "nvidia.com/gpu.product": str(node.gpu_model).replace(" ", "-"),
            "nvidia.com/gpu.count": str(node.gpus),
        }
        capacity["nvidia.com/gpu"] = str(node.gpus)
    return {
        "metadata": {"name": node.name, "uid": node.uid, "creationTimestamp": stamp(node.joined_ns), "labels": labels},
        "spec": {"providerID": f"aws:///{node.zone.name}/{node.instance_id}"},
        "status": {
            "capacity": capacity,
            "allocatable": capacity,
            "addresses": [{"type": "InternalIP", "address": node.ip}, {"type": "Hostname", "address": node.name}],
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": stamp(node.joined_ns)}],
        },
    }


def pod_object(pod: SimPod, now: int) -> Object:
    """The pod as the API server would show it at `now`."""
    metadata: Object = {
        "name": pod.name,
        "namespace": pod.namespace,
        "uid": pod.uid,
        "creationTimestamp": stamp(pod.created_ns),
        "labels": pod.labels,
    }
    if pod.annotations:
        metadata["annotations"] = pod.annotations
    if pod.owner is not None:
        owner = pod.owner
        metadata["ownerReferences"] = [
            {
                "apiVersion": owner.api_version,
                "kind": owner.kind,
                "name": owner.name,
                "uid": owner.uid,
                "controller": True,
            }
        ]
    container: Object = {"name": "main", "image": "registry.example/train:1", "resources": _resources(pod)}
    if pod.ports:
        container["ports"] = [{"name": n, "containerPort": p, "protocol": proto} for n, p, proto in pod.ports]
    spec: Object = {"containers": [container]}
    if pod.node is not None and pod.scheduled_ns is not None and pod.scheduled_ns <= now:
        spec["nodeName"] = pod.node.name
    if pod.host_network:
        spec["hostNetwork"] = True
    return {"metadata": metadata, "spec": spec, "status": _status(pod, now)}


def _resources(pod: SimPod) -> Object:
    requests = {"cpu": "8" if pod.gpus else "500m", "memory": "64Gi" if pod.gpus else "512Mi"}
    if pod.gpus:
        requests["nvidia.com/gpu"] = str(pod.gpus)
        return {"requests": requests, "limits": {"nvidia.com/gpu": str(pod.gpus)}}
    return {"requests": requests}


def _status(pod: SimPod, now: int) -> Object:
    def reached(moment: int | None) -> bool:
        return moment is not None and moment <= now

    if not reached(pod.scheduled_ns):
        unschedulable = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                         "lastTransitionTime": stamp(pod.created_ns)}  # fmt: skip
        return {"phase": "Pending", "conditions": [unschedulable]}
    finished, started = reached(pod.finished_ns), reached(pod.started_ns)
    conditions = [_condition("PodScheduled", pod.scheduled_ns)]
    if reached(pod.ready_to_start_ns) and not finished:
        conditions.append(_condition("PodReadyToStartContainers", pod.ready_to_start_ns))
    if reached(pod.initialized_ns):
        conditions.append(_condition("Initialized", pod.initialized_ns))
    if started and not finished:
        conditions.append(_condition("Ready", pod.started_ns))
    state: Object = {"waiting": {"reason": "ContainerCreating"}}
    if finished:
        reason = "Completed" if pod.succeeded else "Error"
        state = {"terminated": {"exitCode": 0 if pod.succeeded else 1, "reason": reason,
                                "startedAt": stamp(pod.started_ns or 0), "finishedAt": stamp(pod.finished_ns or 0)}}  # fmt: skip
    elif started:
        state = {"running": {"startedAt": stamp(pod.started_ns or 0)}}
    phase = ("Succeeded" if pod.succeeded else "Failed") if finished else "Running" if started else "Pending"
    status: Object = {
        "phase": phase,
        "conditions": conditions,
        "startTime": stamp(pod.scheduled_ns or 0),
        "containerStatuses": [{"name": "main", "ready": started and not finished, "restartCount": 0, "state": state}],
    }
    if pod.node is not None:
        status["hostIP"] = pod.node.ip
    if pod.ip and (reached(pod.ready_to_start_ns) or pod.host_network):
        status |= {"podIP": pod.ip, "podIPs": [{"ip": pod.ip}]}
    return status


def _condition(kind: str, since: int | None) -> Object:
    return {"type": kind, "status": "True", "lastTransitionTime": stamp(since or 0)}


def _services(world: World) -> Iterator[Object]:
    for service in world.services:
        yield {
            "metadata": {"name": service.name, "namespace": service.namespace, "uid": service.uid},
            "spec": {
                "clusterIP": service.cluster_ip or "None",
                "selector": service.selector,
                "ports": [{"name": n, "port": p, "targetPort": p, "protocol": proto} for n, p, proto in service.ports],
            },
        }


# --- workloads -----------------------------------------------------------------------------------------------------
def workload_objects(job: SimJob, world: World, now: int) -> list[Object]:
    """The job object of a run, and the objects that its operator creates below it."""
    done = job.finished_ns is not None and job.finished_ns <= now
    metadata = {
        "name": job.name,
        "namespace": job.namespace,
        "uid": job.uid,
        "creationTimestamp": stamp(job.created_ns),
    }
    status: Object = {"conditions": [{"type": "Succeeded" if done else "Running", "status": "True"}]}
    if done:
        status["completionTime"] = stamp(job.finished_ns or 0)
    top: Object = {
        "apiVersion": job.api_version,
        "kind": job.kind,
        "metadata": metadata,
        "spec": _job_spec(job),
        "status": status,
    }
    below = {
        (pod.owner.kind, pod.owner.name, pod.owner.uid)
        for pod in world.pods
        if pod.job is job and pod.owner is not None and pod.owner.uid != job.uid
    }
    owner = {"apiVersion": job.api_version, "kind": job.kind, "name": job.name, "uid": job.uid, "controller": True}
    children = [
        {
            "apiVersion": "ray.io/v1" if kind == "RayCluster" else "batch/v1",
            "kind": kind,
            "metadata": {"name": name, "namespace": job.namespace, "uid": uid, "creationTimestamp": stamp(job.created_ns),
                         "ownerReferences": [owner]},
            "spec": _job_spec(job) if kind == "RayCluster" else {"parallelism": 1},
            "status": status if kind == "RayCluster" else {},
        }
        for kind, name, uid in sorted(below)
    ]  # fmt: skip
    return [top, *children]


def _job_spec(job: SimJob) -> Object:
    template = {"spec": {"containers": [{"name": "main", "ports": [{"containerPort": job.coordinator_port or 1}]}]}}
    if job.kind in ("PyTorchJob", "MPIJob"):
        key = "pytorchReplicaSpecs" if job.kind == "PyTorchJob" else "mpiReplicaSpecs"
        return {
            key: {name.capitalize(): {"replicas": count, "template": template} for name, count in job.replicas.items()}
        }
    if job.kind == "RayJob":
        workers = job.replicas.get("worker", 0)
        return {"workerGroupSpecs": [{"groupName": "workers", "replicas": workers, "minReplicas": workers}]}
    if job.kind == "JobSet":
        inner = {"spec": {"parallelism": job.replicas["worker"], "completionMode": "Indexed"}}
        return {"replicatedJobs": [{"name": "workers", "replicas": 1, "template": inner}]}
    return {"parallelism": sum(job.replicas.values())}


# --- watch ---------------------------------------------------------------------------------------------------------
def _watch(world: World, start: int, end: int) -> list[Object]:
    """Pod events of a day in order: seen at the start, created, each change of state, gone; bookmarks in between."""
    events: list[tuple[int, str, Object]] = []
    for pod in world.pods:
        if alive(pod, start):
            events.append((start, "ADDED", pod_object(pod, start)))
        for moment in sorted(
            {pod.scheduled_ns, pod.ready_to_start_ns, pod.initialized_ns, pod.started_ns, pod.finished_ns} - {None}
        ):  # type: ignore[type-var]
            if moment is not None and start < moment < end and (pod.deleted_ns is None or moment < pod.deleted_ns):
                events.append((moment, "MODIFIED", pod_object(pod, moment)))
        if start < pod.created_ns < end:
            events.append((pod.created_ns, "ADDED", pod_object(pod, pod.created_ns)))
        if pod.deleted_ns is not None and start <= pod.deleted_ns < end:
            events.append((pod.deleted_ns, "DELETED", pod_object(pod, pod.deleted_ns)))
    for hour in range(start, end, 3600 * SECOND):
        bookmark = {"kind": "Pod", "apiVersion": "v1", "metadata": {"resourceVersion": str(hour // SECOND)}}
        events.append((hour + 1800 * SECOND, "BOOKMARK", bookmark))
    ordered = sorted(events, key=lambda e: (e[0], e[1], e[2]["metadata"].get("uid", "")))
    return [
        {"observed_at": stamp(moment), "type": kind, "object": {"kind": "Pod", "apiVersion": "v1", **item}}
        for moment, kind, item in ordered
    ]
