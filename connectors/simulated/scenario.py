"""Builds a world from a scenario: nodes, pods and what their GPUs do, with failures planted on its first day.

The cast of each group of ten nodes (six with eight GPUs, four without) is one table, `CAST`: who runs where and when.
Healthy worlds, later days and further groups play the same cast without its failures.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from typing import Any

from connectors.simulated.world import (
    Scenario,
    SimGpuSpan,
    SimJob,
    SimNode,
    SimOwner,
    SimPod,
    SimService,
    SimZone,
    World,
)

SECOND = 1_000_000_000
MINUTE, HOUR, DAY = 60 * SECOND, 3600 * SECOND, 86400 * SECOND
GPU_TYPE, GPU_PRICE, GPU_MODEL = "p4d.24xlarge", "32.7726", "NVIDIA A100-SXM4-40GB"
CPU_TYPE, CPU_PRICE = "m6i.4xlarge", "0.768"
IDLE_WATTS, LIMIT_WATTS = 55.0, 400.0
DNS_IP, STORAGE_IP, API_IP = "172.20.0.10", "172.20.5.5", "172.20.0.1"
SHORT_NS = "batch"


@dataclass(frozen=True)
class NodePlan:
    name: str
    zone: int
    gpus: int
    lifecycle: str = "on_demand"
    committed: bool = False
    from_hour: float = 0.0  # on the first day
    to_hour: float | None = None


NODE_PLANS = (
    NodePlan("gpu-a1", 0, 8, committed=True),
    NodePlan("gpu-a2", 0, 8),
    NodePlan("gpu-a3", 0, 8),
    NodePlan("gpu-b1", 1, 8),
    NodePlan("gpu-b2", 1, 8, from_hour=1.5),
    NodePlan("gpu-c1", 2, 8, lifecycle="spot", to_hour=20.25),
    NodePlan("cpu-a1", 0, 0),
    NodePlan("cpu-b1", 1, 0, committed=True),
    NodePlan("cpu-b2", 1, 0),
    NodePlan("cpu-c1", 2, 0, lifecycle="spot"),
)


@dataclass(frozen=True)
class Member:
    """One place in a job: where it runs when the failure is planted, and where it runs in a healthy world."""

    replica: str
    index: int
    node: str
    healthy_node: str
    gpus: int = 4
    schedulable: bool = True


@dataclass(frozen=True)
class Play:
    """One job: when, who, and what the GPUs do."""

    name: str
    kind: str
    namespace: str
    planted: str
    from_hour: float
    to_hour: float
    members: tuple[Member, ...]
    work: float = 0.55  # tensor activity while it trains
    port: int = 23456
    hours_of_work: float | None = None  # after that the coordinator has succeeded and the rest holds on


def _gang(*places: str, coordinator: str | None = None, coordinator_healthy: str | None = None) -> tuple[Member, ...]:
    """Master and workers on the given nodes (`planted` or `planted|healthy`), four GPUs each."""
    members = []
    if coordinator is not None:
        members.append(Member("master", 0, coordinator, coordinator_healthy or coordinator, gpus=0))
    for position, place in enumerate(places):
        node, _, healthy = place.partition("|")
        replica = "worker" if coordinator is not None or position else "master"
        index = position if coordinator is not None else max(0, position - 1)
        members.append(Member(replica, index, node, healthy or node))
    return tuple(members)


CAST = (
    Play("bert-large", "PyTorchJob", "nlp", "healthy", 0.6, 9.0, _gang("gpu-a1", "gpu-a1", "gpu-a2", "gpu-a2")),
    Play("gpt-train", "PyTorchJob", "nlp", "healthy", 9.5, 12.5, _gang("gpu-a1", "gpu-a1", "gpu-a2", "gpu-a2")),
    Play("gpt-train", "PyTorchJob", "nlp", "slow", 13.0, 19.0,
         _gang("gpu-a1", "gpu-a1", "gpu-b1|gpu-a2", "gpu-b1|gpu-a2"), work=0.30),
    Play("resnet-50", "PyTorchJob", "ml-demo", "blocked", 1.0, 5.0,
         _gang("gpu-a3", "gpu-a3", coordinator="cpu-b1", coordinator_healthy="cpu-a1"), port=9999),
    Play("recsys", "PyTorchJob", "ads", "billed", 2.0, 10.0, _gang("gpu-c1", "gpu-b2|gpu-c1")),
    Play("speech-gang", "PyTorchJob", "speech", "waiting", 6.0, 9.0,
         (*_gang("gpu-b1", "gpu-b1", "gpu-c1"), Member("worker", 2, "gpu-c1", "gpu-c1", schedulable=False))),
    Play("vision-eval", "PyTorchJob", "vision", "unreleased", 6.0, 12.0, _gang("gpu-a3", "gpu-a3"), hours_of_work=2.0),
    Play("weather-mpi", "MPIJob", "hpc", "healthy", 13.0, 18.0,
         (Member("launcher", 0, "cpu-a1", "cpu-a1", gpus=0), Member("worker", 0, "gpu-a3", "gpu-a3"),
          Member("worker", 1, "gpu-a3", "gpu-a3")), port=2222),
    Play("ray-tune", "RayJob", "tuning", "healthy", 11.0, 17.0,
         (Member("head", 0, "cpu-c1", "cpu-c1", gpus=0), Member("worker", 0, "gpu-c1", "gpu-c1"),
          Member("worker", 1, "gpu-c1", "gpu-c1")), port=6379),
    Play("segmenter", "JobSet", "vision", "healthy", 11.0, 16.0,
         (Member("worker", 0, "gpu-b2", "gpu-b2"), Member("worker", 1, "gpu-b2", "gpu-b2")), port=29500),
)  # fmt: skip
# `speech-gang` lies in one zone: its third and fourth place are taken from zone b in `_placed`


def build_world(scenario: Scenario) -> World:
    """The world of a scenario; the same scenario always builds the same world."""
    start = int(datetime.combine(scenario.start, time()).timestamp() - datetime(1970, 1, 1).timestamp()) * SECOND
    world = World(scenario, start, start + scenario.days * DAY)
    builder = _Builder(world, random.Random(scenario.seed))
    builder.zones()
    for group in range(max(1, scenario.nodes // 10)):
        builder.group(group)
    builder.shared()
    from connectors.simulated.traffic import add_traffic

    world.policies = _policies(scenario)
    add_traffic(world)
    return world


class _Builder:
    """Fills a world step by step; all chance comes from one seeded generator."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self.world, self.rng = world, rng
        self.by_name: dict[str, SimNode] = {}
        self.free_ips: dict[str, list[tuple[int, str]]] = {}
        self.next_ip: dict[str, int] = {}
        self.used_gpus: dict[str, list[tuple[int, int, str]]] = {}

    def uid(self, *parts: object) -> str:
        digest = hashlib.sha256(f"{self.world.scenario.seed}|{'|'.join(map(str, parts))}".encode()).hexdigest()
        return f"{digest[:8]}-{digest[8:12]}-4{digest[13:16]}-a{digest[17:20]}-{digest[20:32]}"

    def zones(self) -> None:
        region = self.world.scenario.region
        self.world.zones = [
            SimZone(f"{region}{letter}", f"use1-az{number}") for letter, number in (("a", 4), ("b", 6), ("c", 1))
        ]

    # --- nodes and what runs on each ---------------------------------------------------------------------------
    def group(self, group: int) -> None:
        scenario = self.world.scenario
        for position, plan in enumerate(NODE_PLANS):
            self.node(group, position, plan)
        for day in range(scenario.days):
            planted = scenario.planted and group == 0 and day == 0
            for number, play in enumerate(CAST[: max(scenario.jobs + 1, 1)] if scenario.jobs < 9 else CAST):
                self.play(group, day, number, play, planted)
            self.short_jobs(group, day)

    def node(self, group: int, position: int, plan: NodePlan) -> None:
        world, zone = self.world, self.world.zones[plan.zone]
        name = plan.name if group == 0 else f"{plan.name}-{group}"
        number = group * len(NODE_PLANS) + position
        created = world.from_ns + int(plan.from_hour * HOUR) if plan.from_hour else world.from_ns - 6 * HOUR
        deleted = world.from_ns + int(plan.to_hour * HOUR) if plan.to_hour and world.scenario.days == 1 else None
        gpus = tuple(f"GPU-{self.uid('gpu', name, n)}" for n in range(plan.gpus))
        node = SimNode(
            uid=self.uid("node", name), name=name, instance_id=f"i-{self.uid('i', name).replace('-', '')[:17]}",
            interface_id=f"eni-{self.uid('eni', name).replace('-', '')[:17]}", instance_type=GPU_TYPE if plan.gpus else CPU_TYPE,
            pool="gpu" if plan.gpus else "cpu", lifecycle=plan.lifecycle, committed=plan.committed, zone=zone,
            ip=f"10.0.{number // 250}.{number % 250 + 4}", gpus=plan.gpus, gpu_model=GPU_MODEL if plan.gpus else None, gpu_uuids=gpus,
            hourly_price=GPU_PRICE if plan.gpus else CPU_PRICE, created_ns=created,
            joined_ns=created + 3 * MINUTE, deleted_ns=deleted,
        )  # fmt: skip
        self.by_name[name] = node
        world.nodes.append(node)
        self.next_ip[name] = number
        self.daemons(node)

    def daemons(self, node: SimNode) -> None:
        agents = [
            ("cilium", "kube-system", True, (("health", 9879, "TCP"),)),
            ("node-exporter", "monitoring", True, (("metrics", 9100, "TCP"),)),
        ]
        if node.gpus:
            agents.append(("dcgm-exporter", "gpu-operator", False, (("metrics", 9400, "TCP"),)))
        for name, namespace, host, ports in agents:
            owner = SimOwner("apps/v1", "DaemonSet", name, self.uid("daemonset", name))
            self.pod(f"{name}-{node.name}", namespace, node, node.joined_ns - 20 * SECOND, self.world.to_ns, node.deleted_ns,
                     host_network=host, owner=owner, labels={"app.kubernetes.io/name": name}, ports=ports)  # fmt: skip

    def shared(self) -> None:
        """Services of the cluster: DNS, storage, the metrics server."""
        world = self.world
        for name, namespace, node, label, ports, cluster_ip in (
            ("coredns-0", "kube-system", "cpu-a1", ("k8s-app", "kube-dns"), (("dns", 53, "UDP"),), DNS_IP),
            ("coredns-1", "kube-system", "cpu-b1", ("k8s-app", "kube-dns"), (("dns", 53, "UDP"),), DNS_IP),
            ("minio-0", "storage", "cpu-a1", ("app", "minio"), (("api", 9000, "TCP"),), STORAGE_IP),
            ("prometheus-0", "monitoring", "cpu-b2", ("app", "prometheus"), (("http", 9090, "TCP"),), None),
        ):
            owner = SimOwner("apps/v1", "StatefulSet", name[:-2], self.uid("set", name[:-2]))
            self.pod(name, namespace, self.by_name[node], world.from_ns - 5 * HOUR, world.to_ns, None,
                     owner=owner, labels={label[0]: label[1]}, ports=ports)  # fmt: skip
            if cluster_ip and not any(s.cluster_ip == cluster_ip for s in world.services):
                world.services.append(
                    SimService(namespace, "kube-dns" if "dns" in name else "minio", self.uid("svc", name), cluster_ip,
                               {label[0]: label[1]}, ports)
                )  # fmt: skip

    def short_jobs(self, group: int, day: int) -> None:
        """Batch Jobs on CPU nodes, most of them shorter than a snapshot interval."""
        node = self.by_name["cpu-b2" if group == 0 else f"cpu-b2-{group}"]
        for number in range(8):
            start = self.world.from_ns + day * DAY + (2 + 2 * number) * HOUR + self.rng.randrange(3, 40) * MINUTE
            length = self.rng.choice((2, 3, 4, 25)) * MINUTE
            name = f"preprocess-{group}-{day}-{number}"
            uid = self.uid("job", name)
            self.world.jobs.append(
                SimJob(uid, "batch/v1", "Job", SHORT_NS, name, "healthy", {"worker": 1}, start, start + length, 0)
            )
            self.pod(f"{name}-x7k2p", SHORT_NS, node, start, start + length, start + length + 2 * MINUTE,
                     owner=SimOwner("batch/v1", "Job", name, uid), job=self.world.jobs[-1], role="worker", replica="worker",
                     labels={"batch.kubernetes.io/job-name": name, "batch.kubernetes.io/controller-uid": uid}, ends=True)  # fmt: skip

    # --- pods --------------------------------------------------------------------------------------------------
    def address(self, node: SimNode, at: int) -> str:
        """A pod address of the node: one that was freed at least two minutes ago, else a new one."""
        free = self.free_ips.setdefault(node.name, [])
        for position, (since, ip) in enumerate(free):
            if at - since >= 2 * MINUTE:
                del free[position]
                return ip
        index = self.next_ip[node.name]
        count = sum(1 for p in self.world.pods if p.node is node and not p.host_network)
        return f"10.{1 + index // 250}.{index % 250}.{10 + count}"

    def pod(
        self, name: str, namespace: str, node: SimNode | None, created: int, finished: int, deleted: int | None, *,
        owner: SimOwner | None, labels: dict[str, str], host_network: bool = False, job: SimJob | None = None, role: str = "none",
        replica: str = "", index: int = 0, gpus: int = 0, ports: tuple[tuple[str, int, str], ...] = (), ends: bool = False,
        succeeded: bool = True, annotations: dict[str, str] | None = None,
    ) -> SimPod:  # fmt: skip
        """Add a pod; stamps are whole seconds, as the kubelet writes them. `ends`: it finishes at `finished`."""
        bound = created + 2 * SECOND if node is not None else None
        ready = bound + self.rng.randrange(12, 25) * SECOND if bound else None
        started = ready + self.rng.randrange(15, 35) * SECOND if ready else None
        ip = None if node is None else node.ip if host_network else self.address(node, bound or created)
        end = finished if ends and node is not None else None
        until = end or deleted or self.world.to_ns
        uuids = self.take_gpus(node, gpus, bound or created, until) if node else ()
        made = SimPod(
            uid=self.uid("pod", namespace, name, created), namespace=namespace, name=name, node=node, ip=ip, host_network=host_network,
            labels=labels, annotations=annotations or {}, owner=owner, job=job, role=role, replica_type=replica, replica_index=index,
            gpus=gpus, gpu_uuids=uuids, ports=ports, created_ns=created, scheduled_ns=bound, ready_to_start_ns=ready,
            initialized_ns=ready + 2 * SECOND if ready else None, started_ns=started, finished_ns=end,
            succeeded=ends and succeeded, deleted_ns=deleted,
        )  # fmt: skip
        self.world.pods.append(made)
        if node is not None and not host_network and deleted is not None and ip is not None:
            self.free_ips.setdefault(node.name, []).append((end or deleted, ip))
            self.free_ips[node.name].sort()
        return made

    def take_gpus(self, node: SimNode, count: int, start: int, end: int) -> tuple[str, ...]:
        taken = {uuid for low, high, uuid in self.used_gpus.get(node.name, []) if low < end and start < high}
        free = [uuid for uuid in node.gpu_uuids if uuid not in taken][:count]
        if len(free) < count:
            raise ValueError(f"{node.name} has no {count} free GPUs at {start}")
        self.used_gpus.setdefault(node.name, []).extend((start, end, uuid) for uuid in free)
        return tuple(free)

    # --- jobs --------------------------------------------------------------------------------------------------
    def play(self, group: int, day: int, number: int, play: Play, planted: bool) -> None:
        world = self.world
        failing = planted and play.planted != "healthy"
        suffix = ("" if group == 0 else f"-g{group}") + ("" if day == 0 else f"-d{day + 1}")
        name = play.name + suffix
        start = world.from_ns + day * DAY + int(play.from_hour * HOUR)
        end = min(world.from_ns + day * DAY + int(play.to_hour * HOUR), world.to_ns)
        uid = self.uid("job", play.namespace, name, number)
        api = {"MPIJob": "kubeflow.org/v2beta1", "RayJob": "ray.io/v1", "JobSet": "jobset.x-k8s.io/v1alpha2"}.get(
            play.kind, "kubeflow.org/v1"
        )
        replicas: dict[str, int] = {}
        for member in play.members:
            replicas[member.replica] = replicas.get(member.replica, 0) + 1
        unreleased = failing and play.planted == "unreleased"
        waiting = failing and play.planted == "waiting"
        done = start + int((play.hours_of_work or 0) * HOUR) if unreleased else end
        job = SimJob(uid, api, play.kind, play.namespace, name, play.planted if failing else "healthy", replicas, start,
                     None if waiting else done, play.port)  # fmt: skip
        world.jobs.append(job)
        if failing:
            world.expected_findings.append((play.planted, uid))
        pods = []
        for member in play.members:
            pods += self.member(group, job, play, member, start, end, failing, done, number)
        for pod in pods:
            world.gpu_spans.extend(self.spans(pod, play, failing, done))
        if play.kind == "RayJob":
            self.submitter(group, job, start, end)

    def member(
        self,
        group: int,
        job: SimJob,
        play: Play,
        member: Member,
        start: int,
        end: int,
        failing: bool,
        done: int,
        number: int,
    ) -> list[SimPod]:
        wanted = member.node if failing else member.healthy_node
        if play.name == "speech-gang":  # one zone for all: the gang waits, it is not split
            wanted = "gpu-b1" if member.index < 1 else "gpu-b2"
        node = self.by_name[wanted if group == 0 else f"{wanted}-{group}"]
        bound = member.schedulable or not (failing and play.planted == "waiting")
        finishes = done if failing and play.planted == "unreleased" and member.replica == "master" else end
        name, owner, labels, annotations = self.identity(job, member)
        role = (
            "coordinator"
            if member.replica in ("master", "launcher", "head") or (play.kind == "JobSet" and member.index == 0)
            else "worker"
        )
        ports = (("rdzv", play.port, "TCP"),) if role == "coordinator" or play.kind == "MPIJob" else ()
        if play.namespace == "ml-demo":
            labels = {**labels, "zone": f"zone-{node.zone.name[-1]}"}
        common: dict[str, Any] = {"owner": owner, "labels": labels, "job": job, "role": role, "replica": member.replica, "index": member.index,
                  "gpus": member.gpus, "ports": ports, "annotations": annotations}  # fmt: skip
        where = node if bound else None
        if play.name == "bert-large" and member.replica == "worker" and member.index == 2 and end - start > 6 * HOUR:
            crash = start + 3 * HOUR + 20 * MINUTE
            first = self.pod(
                name, job.namespace, where, start, crash, crash + 30 * SECOND, ends=True, succeeded=False, **common
            )
            again = self.pod(
                name, job.namespace, where, crash + 60 * SECOND, end, end + 5 * MINUTE, ends=True, **common
            )
            return [first, again]
        made = self.pod(name, job.namespace, where, start + member.index * SECOND, finishes,
                        end + 5 * MINUTE, ends=bound, **common)  # fmt: skip
        return [made]

    def identity(self, job: SimJob, member: Member) -> tuple[str, SimOwner, dict[str, str], dict[str, str]]:
        """(pod name, controller, labels, annotations) exactly as the job's operator writes them."""
        index, replica = member.index, member.replica
        if job.kind == "RayJob":
            cluster = f"{job.name}-raycluster-{self.uid('rc', job.uid)[:5]}"
            labels = {"ray.io/cluster": cluster, "ray.io/is-ray-node": "yes", "ray.io/node-type": replica,
                      "ray.io/group": "headgroup" if replica == "head" else "workers"}  # fmt: skip
            return (
                f"{cluster}-{replica}-{index}",
                SimOwner("ray.io/v1", "RayCluster", cluster, self.uid("raycluster", job.uid)),
                labels,
                {},
            )
        if job.kind == "JobSet":
            child = f"{job.name}-workers-0"
            labels = {
                "jobset.sigs.k8s.io/jobset-name": job.name, "jobset.sigs.k8s.io/replicatedjob-name": "workers",
                "jobset.sigs.k8s.io/job-index": "0", "batch.kubernetes.io/job-name": child,
                "batch.kubernetes.io/job-completion-index": str(index),
                "jobset.sigs.k8s.io/coordinator": f"{child}-0.{job.name}",
            }  # fmt: skip
            return (
                f"{child}-{index}-q{index}x2v",
                SimOwner("batch/v1", "Job", child, self.uid("childjob", job.uid)),
                labels,
                {},
            )
        labels = {"training.kubeflow.org/job-name": job.name, "training.kubeflow.org/replica-index": str(index)}
        if job.kind == "MPIJob":
            labels |= {"training.kubeflow.org/operator-name": "mpi-operator", "training.kubeflow.org/job-role": replica}
            if replica == "launcher":
                del labels["training.kubeflow.org/replica-index"]
                launcher = f"{job.name}-launcher"
                return (
                    f"{launcher}-m8f4t",
                    SimOwner("batch/v1", "Job", launcher, self.uid("launcher", job.uid)),
                    labels,
                    {},
                )
        else:
            labels |= {
                "training.kubeflow.org/operator-name": "pytorchjob-controller",
                "training.kubeflow.org/replica-type": replica,
            }
            if replica == "master":
                labels["training.kubeflow.org/job-role"] = "master"
        owner = SimOwner(job.api_version, job.kind, job.name, job.uid)
        return f"{job.name}-{replica}-{index}", owner, labels, {}

    def submitter(self, group: int, job: SimJob, start: int, end: int) -> None:
        node = self.by_name["cpu-a1" if group == 0 else f"cpu-a1-{group}"]
        owner = SimOwner("batch/v1", "Job", job.name, self.uid("submitter", job.uid))
        self.pod(f"{job.name}-w2b7c", job.namespace, node, start + MINUTE, end, end + 5 * MINUTE, owner=owner, job=job,
                 role="auxiliary", replica="submitter", ends=True,
                 labels={"ray.io/originated-from-cr-name": job.name, "ray.io/originated-from-crd": "RayJob",
                         "batch.kubernetes.io/job-name": job.name})  # fmt: skip

    # --- GPUs --------------------------------------------------------------------------------------------------
    def spans(self, pod: SimPod, play: Play, failing: bool, done: int) -> Iterator[SimGpuSpan]:
        """What each GPU of a pod does from binding to its end."""
        if pod.node is None or not pod.gpus or pod.scheduled_ns is None or pod.started_ns is None:
            return
        end = min(pod.finished_ns or self.world.to_ns, self.world.to_ns, pod.deleted_ns or self.world.to_ns)
        idle: dict[str, Any] = {
            "gpu_util": 0.0,
            "engine_active": 0.004,
            "tensor_active": 0.0,
            "dram_active": 0.002,
            "power_watts": IDLE_WATTS + 2,
        }
        dark = self.dark_hours(pod, play)
        for position, uuid in enumerate(pod.gpu_uuids):
            common: dict[str, Any] = {"node": pod.node, "gpu_uuid": uuid, "pod": pod}
            yield SimGpuSpan(
                **common, from_ns=pod.scheduled_ns, to_ns=pod.started_ns, state="starting", cause="creating", **idle
            )
            for low, high, state, cause in self.stretches(pod, play, failing, done, end):
                if state == "idle":
                    yield SimGpuSpan(**common, from_ns=low, to_ns=high, state="idle", cause=cause, **idle)
                    continue
                for piece_low, piece_high, seen in _cut(low, high, dark if position == 0 else None):
                    yield self.working(common, piece_low, piece_high, state, play, failing, seen)

    def working(
        self, common: dict[str, Any], low: int, high: int, state: str, play: Play, failing: bool, seen: bool
    ) -> SimGpuSpan:
        tensor = play.work if failing or play.planted == "healthy" else 0.55
        shape: dict[str, Any] = {"gpu_util": 97.0, "engine_active": 0.9, "tensor_active": tensor, "dram_active": 0.42,
                 "power_watts": IDLE_WATTS + tensor * 0.95 * (LIMIT_WATTS - IDLE_WATTS) + 60}  # fmt: skip
        if state == "comm_stall":
            shape = {
                "gpu_util": 99.0,
                "engine_active": 0.97,
                "tensor_active": 0.01,
                "dram_active": 0.03,
                "power_watts": IDLE_WATTS + 30,
            }
        elif state == "checkpoint":
            shape = {
                "gpu_util": 2.0,
                "engine_active": 0.02,
                "tensor_active": 0.0,
                "dram_active": 0.05,
                "power_watts": IDLE_WATTS + 12,
            }
        named = "comm_stall" if state == "comm_stall" else "busy"
        return SimGpuSpan(**common, from_ns=low, to_ns=high, state=named, cause=None, observed=seen, **shape)

    def stretches(
        self, pod: SimPod, play: Play, failing: bool, done: int, end: int
    ) -> Iterator[tuple[int, int, str, str | None]]:
        """(from, to, state, cause) from the first container start to the end: training with short checkpoint pauses."""
        start = pod.started_ns or 0
        if failing and play.planted == "blocked":
            yield start, end, "idle", "blocked_by_policy"
            return
        if failing and play.planted == "waiting":
            yield start, end, "idle", "waiting_for_members"
            return
        stop = min(end, done) if failing and play.planted == "unreleased" else end
        stalls = failing and play.planted == "slow"
        at = start
        while at < stop:
            until = min(at + 55 * MINUTE, stop)
            yield at, until, "busy", None
            pause = min(until + (6 * MINUTE if stalls else 200 * SECOND), stop)
            if pause > until:
                yield until, pause, "comm_stall" if stalls else "checkpoint", None
            at = pause
        if stop < end:
            yield stop, end, "idle", "finished_not_released"

    def dark_hours(self, pod: SimPod, play: Play) -> tuple[int, int] | None:
        """An hour in which the exporter wrote nothing for the first GPU of one worker: unmeasured, not idle."""
        if play.name == "bert-large" and pod.replica_type == "worker" and pod.replica_index == 1:
            begin = pod.created_ns + 4 * HOUR
            return begin, begin + HOUR
        return None


def _cut(low: int, high: int, dark: tuple[int, int] | None) -> Iterator[tuple[int, int, bool]]:
    """Pieces of [low, high), told whether they were observed."""
    if dark is None or dark[1] <= low or high <= dark[0]:
        yield low, high, True
        return
    if low < dark[0]:
        yield low, dark[0], True
    yield max(low, dark[0]), min(high, dark[1]), False
    if dark[1] < high:
        yield dark[1], high, True


def _policies(scenario: Scenario) -> list[dict[str, object]]:
    """The zone policies of namespace ml-demo: ingress and egress only within one value of the static `zone` label."""
    policies: list[dict[str, object]] = []
    for letter in "abc":
        zone = f"zone-{letter}"
        same = [{"matchLabels": {"zone": zone}}]
        dns = {"toEndpoints": [{"matchLabels": {"k8s:io.kubernetes.pod.namespace": "kube-system"}}]}
        storage = {
            "toEntities": ["cluster", "world"],
            "toPorts": [{"ports": [{"port": "9000", "protocol": "TCP"}, {"port": "443", "protocol": "TCP"}]}],
        }
        policies.append(
            {
                "apiVersion": "cilium.io/v2",
                "kind": "CiliumNetworkPolicy",
                "metadata": {
                    "name": f"allow-intra-{zone}",
                    "namespace": "ml-demo",
                    "creationTimestamp": f"{scenario.start - timedelta(days=9)}T08:00:00Z",
                },
                "spec": {
                    "endpointSelector": {"matchLabels": {"zone": zone}},
                    "ingress": [{"fromEndpoints": same}],
                    "egress": [{"toEndpoints": same}, dns, storage],
                },
            }
        )
    return policies
