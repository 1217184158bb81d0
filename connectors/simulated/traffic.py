"""Who talks to whom in a simulated cluster, with how many bytes, and what of it crosses zones.

Bytes per connection are drawn over at least four decades, independent of how many events a flow log will show of it.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator

from connectors.simulated.world import SimConnection, SimJob, SimNode, SimPod, World

SECOND = 1_000_000_000
MINUTE, HOUR = 60 * SECOND, 3600 * SECOND
DNS_IP, STORAGE_IP, INTERNET_IP = "172.20.0.10", "172.20.5.5", "52.216.10.20"
# gradient bytes per pair of members and hour, by what was planted: (smallest, largest), log-uniform
GRADIENT_BYTES = {"slow": (4e10, 1.2e11), "billed": (3e10, 6e10)}
HEALTHY_BYTES = (1e6, 5e10)


def add_traffic(world: World) -> None:
    """Fill `world.connections` from its pods, jobs and services."""
    rng = random.Random(f"traffic-{world.scenario.seed}")
    builder = _Builder(world, rng)
    members: dict[str, list[SimPod]] = defaultdict(list)
    for pod in world.pods:
        if pod.job is not None and pod.started_ns is not None:
            members[pod.job.uid].append(pod)
    for job in world.jobs:
        builder.job(job, members[job.uid])
    builder.cluster()
    world.connections.sort(key=lambda c: (c.opened_ns, c.client_ip, c.client_port, c.server_ip, c.server_port))


class _Builder:
    """Adds connections; every port and size comes from one seeded generator."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self.world, self.rng = world, rng
        self.ports: dict[str, int] = defaultdict(lambda: 32768)
        self.dns = [p for p in world.pods if p.labels.get("k8s-app") == "kube-dns"]
        self.storage = [p for p in world.pods if p.labels.get("app") == "minio"]

    def port(self, ip: str) -> int:
        """The next ephemeral port of an address; they wrap, so that a port is used again later."""
        self.ports[ip] = 32768 + (self.ports[ip] - 32768 + 1) % 2000
        return self.ports[ip]

    def draw(self, low: float, high: float) -> int:
        return int(low * (high / low) ** self.rng.random())

    def connect(
        self, client: SimPod, server: SimPod | None, port: int, opened: int, closed: int, sent: int, received: int, *,
        protocol: str = "TCP", server_ip: str | None = None, service_ip: str | None = None, dropped_by: str | None = None, attempts: int = 1,
    ) -> None:  # fmt: skip
        low, high = max(opened, self.world.from_ns), min(closed, self.world.to_ns)
        ip = server_ip or (server.ip if server else None)
        if client.ip is None or ip is None or high - low < SECOND:
            return
        share = (high - low) / (closed - opened)
        self.world.connections.append(
            SimConnection(client, client.ip, self.port(client.ip), server, ip, port, protocol, low, high,
                          int(sent * share), int(received * share), dropped_by, attempts, service_ip)
        )  # fmt: skip

    # --- jobs --------------------------------------------------------------------------------------------------
    def job(self, job: SimJob, pods: list[SimPod]) -> None:
        for pod in pods:
            self.housekeeping(pod)
        coordinators = [p for p in pods if p.role == "coordinator"]
        workers = [p for p in pods if p.role == "worker"]
        if job.planted == "blocked":
            for worker in workers:
                for coordinator in coordinators:
                    self.blocked(worker, coordinator, job)
            return
        for coordinator in coordinators:
            for worker in workers:
                span = _together(coordinator, worker)
                if span:
                    self.connect(worker, coordinator, job.coordinator_port or 23456, span[0], span[1],
                                 self.draw(1e4, 1e8), self.draw(1e4, 1e8))  # fmt: skip
        gpus = [p for p in pods if p.gpus]
        for first, second in _pairs(gpus):
            self.gradients(job, first, second)

    def blocked(self, worker: SimPod, coordinator: SimPod, job: SimJob) -> None:
        """Retries of a connect whose SYNs a policy drops: a try every half minute, four SYNs each."""
        span = _together(worker, coordinator)
        if not span:
            return
        at = span[0] + 2 * SECOND
        while at + 20 * SECOND < span[1]:
            self.connect(worker, coordinator, job.coordinator_port, at, at + 16 * SECOND, 0, 0,
                         dropped_by=f"allow-intra-{worker.labels.get('zone', 'zone-a')}", attempts=4)  # fmt: skip
            at += self.rng.randrange(28, 34) * SECOND

    def gradients(self, job: SimJob, first: SimPod, second: SimPod) -> None:
        """Collectives between two GPU members: new dynamic ports each hour, bytes both ways."""
        span = _together(first, second)
        if not span or job.planted == "waiting":
            return
        end = min(span[1], job.finished_ns or span[1])
        low, high = GRADIENT_BYTES.get(job.planted, HEALTHY_BYTES)
        at = span[0] + 5 * SECOND
        while at + MINUTE < end:
            until = min(at + HOUR, end)
            part = (until - at) / HOUR
            port = self.rng.randrange(40000, 60000)
            self.connect(
                first, second, port, at, until, int(self.draw(low, high) * part), int(self.draw(low, high) * part)
            )
            at = until

    def housekeeping(self, pod: SimPod) -> None:
        """What every pod does: names, data, images, now and then the internet."""
        start, end = pod.started_ns or 0, _end(pod, self.world)
        for moment in _moments(start + SECOND, end, 40 * MINUTE):
            server = self.rng.choice(self.dns)
            self.connect(pod, server, 53, moment, moment + SECOND, 90, 250, protocol="UDP", service_ip=DNS_IP)
        for moment in _moments(start + 20 * SECOND, end, HOUR):
            self.connect(pod, self.storage[0], 9000, moment, min(moment + 4 * MINUTE, max(end, moment + 2 * SECOND)),
                         self.draw(1e3, 1e7), self.draw(1e5, 8e9), service_ip=STORAGE_IP)  # fmt: skip
        if self.rng.random() < 0.5:
            self.connect(
                pod,
                None,
                443,
                start + 10 * SECOND,
                start + 70 * SECOND,
                2000,
                self.draw(1e5, 1e9),
                server_ip=INTERNET_IP,
            )

    # --- the cluster itself ------------------------------------------------------------------------------------
    def cluster(self) -> None:
        scraper = next(p for p in self.world.pods if p.labels.get("app") == "prometheus")
        for pod in self.world.pods:
            name = pod.labels.get("app.kubernetes.io/name")
            if name not in ("node-exporter", "dcgm-exporter") or pod.ports == ():
                continue
            begin = max(pod.started_ns or 0, self.world.from_ns)
            for moment in _moments(begin + MINUTE, _end(pod, self.world), 2 * HOUR):
                self.connect(scraper, pod, pod.ports[0][1], moment, min(moment + 2 * HOUR, _end(pod, self.world)),
                             self.draw(1e5, 1e6), self.draw(1e6, 1e8))  # fmt: skip


def _end(pod: SimPod, world: World) -> int:
    return min(t for t in (pod.finished_ns, pod.deleted_ns, world.to_ns) if t is not None)


def _together(first: SimPod, second: SimPod) -> tuple[int, int] | None:
    """When both run."""
    if first.started_ns is None or second.started_ns is None:
        return None
    start = max(first.started_ns, second.started_ns)
    ends = [t for p in (first, second) for t in (p.finished_ns, p.deleted_ns) if t is not None]
    end = min(ends) if ends else start
    return (start, end) if end > start else None


def _pairs(pods: list[SimPod]) -> Iterator[tuple[SimPod, SimPod]]:
    """A ring: each member with the next, as all-reduce does it."""
    if len(pods) == 2:
        yield pods[0], pods[1]
    elif len(pods) > 2:
        for position, pod in enumerate(pods):
            yield pod, pods[(position + 1) % len(pods)]


def _moments(start: int, end: int, step: int) -> Iterator[int]:
    moment = start
    while moment + SECOND < end:
        yield moment
        moment += step


# --- what is true of it --------------------------------------------------------------------------------------------
def node_of(connection: SimConnection, end: str) -> SimNode | None:
    pod = connection.client if end == "client" else connection.server
    return pod.node if pod is not None else None


def crosses_zones(connection: SimConnection) -> bool:
    """Both ends lie on known nodes in different zones, and something got through."""
    client, server = node_of(connection, "client"), node_of(connection, "server")
    return connection.dropped_by is None and client is not None and server is not None and client.zone != server.zone


def hourly_bytes(connection: SimConnection) -> Iterator[tuple[int, int, int]]:
    """(hour start, bytes sent by the client, bytes received by it), spread evenly over its life; sums are exact."""
    life = connection.closed_ns - connection.opened_ns
    hour = connection.opened_ns // HOUR * HOUR
    sent_before = received_before = 0
    while hour < connection.closed_ns:
        elapsed = min(hour + HOUR, connection.closed_ns) - connection.opened_ns
        sent, received = connection.sent_bytes * elapsed // life, connection.received_bytes * elapsed // life
        yield hour, sent - sent_before, received - received_before
        sent_before, received_before = sent, received
        hour += HOUR
