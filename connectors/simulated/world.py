"""What exists and happens in a simulated cluster. Plain data: built by `scenario` and `traffic`, read by the writers.

Times are integer nanoseconds since 1970 UTC; `None` as an end means "still so at the end of the simulation".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date


@dataclass(frozen=True)
class Scenario:
    """Size, seed and choices. The same scenario always gives the same bytes."""

    seed: int = 1
    start: date = date(2026, 11, 23)
    days: int = 2
    nodes: int = 10
    jobs: int = 9
    cluster: str = "train-1"
    region: str = "us-east-1"
    account: str = "012345678901"
    payer_account: str = "999999999999"
    vpc_flow_logs: bool = True
    event_loss: float = 0.0  # share of Hubble events lost, reported as lost_events
    snapshot_minutes: int = 10
    watch: bool = True  # a watch stream beside the snapshots
    sample_seconds: int = 60  # GPU metric spacing
    planted: bool = True  # False: a healthy cluster, on which no finding may open


@dataclass(frozen=True)
class SimZone:
    name: str  # us-east-1a
    zone_id: str  # use1-az4


@dataclass(frozen=True)
class SimNode:
    uid: str
    name: str
    instance_id: str
    interface_id: str
    instance_type: str
    pool: str
    lifecycle: str  # on_demand, spot
    committed: bool  # covered by a savings plan
    zone: SimZone
    ip: str
    gpus: int
    gpu_model: str | None
    gpu_uuids: tuple[str, ...]
    hourly_price: str  # decimal text, on-demand list price
    created_ns: int  # instance launch; the Node object appears `joined_ns`
    joined_ns: int
    deleted_ns: int | None


@dataclass(frozen=True)
class SimJob:
    uid: str
    api_version: str
    kind: str  # PyTorchJob, MPIJob, RayJob, JobSet, Job, ...
    namespace: str
    name: str
    planted: str  # healthy, blocked, slow, billed, waiting, unreleased, ...: the truth
    replicas: dict[str, int]
    created_ns: int
    finished_ns: int | None
    coordinator_port: int


@dataclass(frozen=True)
class SimOwner:
    api_version: str
    kind: str
    name: str
    uid: str


@dataclass(frozen=True)
class SimPod:
    uid: str
    namespace: str
    name: str
    node: SimNode | None  # None: never bound
    ip: str | None
    host_network: bool
    labels: dict[str, str]
    annotations: dict[str, str]
    owner: SimOwner | None
    job: SimJob | None
    role: str  # coordinator, worker, auxiliary, none
    replica_type: str
    replica_index: int
    gpus: int
    gpu_uuids: tuple[str, ...]
    ports: tuple[tuple[str, int, str], ...]  # name, number, protocol
    created_ns: int
    scheduled_ns: int | None
    ready_to_start_ns: int | None
    initialized_ns: int | None
    started_ns: int | None
    finished_ns: int | None
    succeeded: bool
    deleted_ns: int | None  # object gone


@dataclass(frozen=True)
class SimService:
    namespace: str
    name: str
    uid: str
    cluster_ip: str | None  # None: headless
    selector: dict[str, str]
    ports: tuple[tuple[str, int, str], ...]


@dataclass(frozen=True)
class SimGpuSpan:
    """What one GPU does for a stretch of time while a pod holds it (or nobody: `pod` None)."""

    node: SimNode
    gpu_uuid: str
    pod: SimPod | None
    from_ns: int
    to_ns: int
    state: str  # truth: busy, idle, comm_stall, starting, unallocated
    cause: str | None  # truth
    gpu_util: float  # 0..100
    engine_active: float  # 0..1
    tensor_active: float
    dram_active: float
    power_watts: float
    observed: bool = True  # False: the exporter wrote nothing (truth: unmeasured)


@dataclass(frozen=True)
class SimConnection:
    """One transport connection. `client`/`server` are pods, or None with the address given (outside, service, node)."""

    client: SimPod | None
    client_ip: str
    client_port: int
    server: SimPod | None
    server_ip: str
    server_port: int
    protocol: str  # TCP, UDP
    opened_ns: int
    closed_ns: int
    sent_bytes: int  # client to server, spread evenly over its life
    received_bytes: int
    dropped_by: str | None = None  # policy name: every attempt is dropped
    attempts: int = 1  # SYNs, when dropped
    service_ip: str | None = None  # the ClusterIP that the client dialled


@dataclass
class World:
    scenario: Scenario
    from_ns: int
    to_ns: int
    zones: list[SimZone] = field(default_factory=list)
    nodes: list[SimNode] = field(default_factory=list)
    jobs: list[SimJob] = field(default_factory=list)
    pods: list[SimPod] = field(default_factory=list)
    services: list[SimService] = field(default_factory=list)
    gpu_spans: list[SimGpuSpan] = field(default_factory=list)
    connections: list[SimConnection] = field(default_factory=list)
    policies: list[dict[str, object]] = field(default_factory=list)  # Kubernetes objects, as dicts
    policy_changed_ns: dict[str, int] = field(default_factory=dict)
    expected_findings: list[tuple[str, str]] = field(default_factory=list)  # (kind, job uid)
