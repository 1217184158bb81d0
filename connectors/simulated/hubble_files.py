"""Hubble exporter files of a simulated cluster: every sighting of every connection, as each node's exporter writes it.

Records are protojson with proto field names: zero values are left out, 64-bit numbers are text, `is_reply` is there when
it is known, and only endpoints local to the observing node carry an ID and workloads. Medium aggregation: the first of
each TCP flag, then at most one event a connection, direction and five seconds (sparser on long connections).
"""

from __future__ import annotations

import gzip
import hashlib
import random
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import orjson

from connectors.simulated.world import SimConnection, SimNode, SimPod, World

SECOND = 1_000_000_000
MIN_SPACING, MAX_SPACING = 5 * SECOND, 240 * SECOND
EVENTS_PER_LIFE = 24
ROTATE = 6 * 3600 * SECOND
BURST = 5  # SYNs of one connect: 1, 2, 4 and 8 s apart
TOPOLOGY = "topology.kubernetes.io/"
TIME, UUID = "@time@", "@uuid@"
Record = dict[str, Any]


def write(world: World, folder: Path) -> dict[str, int]:
    """Write each node's exporter files; returns records written and lost."""
    rng = random.Random(f"hubble-{world.scenario.seed}")
    by_node: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for connection in world.connections:
        for node, moment, template in _sightings(world, connection, rng):
            by_node[node.name].append((moment, template))
    counts = {"records": 0, "lost": 0}
    for number, node in enumerate(world.nodes):
        written, lost = _write_node(world, folder / node.name, node, by_node[node.name], rng, number)
        counts["records"] += written
        counts["lost"] += lost
    return counts


def time_text(ns: int) -> str:
    """RFC 3339 as protojson writes it: 9, 6, 3 or no digits of fraction, no trailing group of zeros.

    >>> time_text(1_795_428_000_302_406_000)
    '2026-11-23T10:00:00.302406Z'
    """
    fraction = f"{ns % SECOND:09d}"
    while fraction.endswith("000"):
        fraction = fraction[:-3]
    return f"{_second_text(ns // SECOND)}{'.' if fraction else ''}{fraction}Z"


@lru_cache(maxsize=4096)
def _second_text(second: int) -> str:
    return f"{datetime.fromtimestamp(second, UTC):%Y-%m-%dT%H:%M:%S}"


def _uuid(*parts: object) -> str:
    digest = hashlib.md5("|".join(map(str, parts)).encode(), usedforsecurity=False).hexdigest()
    return f"{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:]}"


# --- files ---------------------------------------------------------------------------------------------------------
def _write_node(
    world: World, folder: Path, node: SimNode, events: list[tuple[int, str]], rng: random.Random, number: int
) -> tuple[int, int]:
    """One node's files: rotated ones compressed, the current one open; its clock is off by up to a second."""
    folder.mkdir(parents=True, exist_ok=True)
    skew = rng.randrange(-SECOND, SECOND)
    loss = world.scenario.event_loss
    events.sort()
    lines: list[tuple[int, str]] = []
    lost: dict[int, int] = defaultdict(int)
    for position, (moment, template) in enumerate(events):
        at = moment + skew
        if loss and rng.random() < loss:
            lost[at // (600 * SECOND)] += 1
            continue
        identity = _uuid(world.scenario.seed, node.name, position)
        lines.append((at, template.replace(TIME, time_text(at)).replace(UUID, identity)))
    lines += [
        (bucket * 600 * SECOND + 599 * SECOND, _lost(world, node, bucket, count)) for bucket, count in lost.items()
    ]
    started = max(world.from_ns, node.joined_ns) + SECOND + skew
    lines.append((started, _agent_event(world, node, started)))
    lines.sort()
    chunks: dict[int, list[str]] = defaultdict(list)
    for at, line in lines:
        chunks[at // ROTATE].append(line)
    for position, (chunk, part) in enumerate(sorted(chunks.items())):
        text = "\n".join(part) + "\n"
        if position == len(chunks) - 1:
            cut = part[-1][: len(part[-1]) // 2] if number == 1 % len(world.nodes) else ""  # a copy taken in mid-write
            (folder / "events.log").write_text(text + cut, encoding="utf-8")
            continue
        stem = f"events-{datetime.fromtimestamp((chunk + 1) * ROTATE // SECOND, UTC):%Y-%m-%dT%H-%M-%S}.000.log"
        with (
            (folder / f"{stem}.gz").open("wb") as raw,
            gzip.GzipFile(fileobj=raw, mode="wb", mtime=0, filename="") as handle,
        ):
            handle.write(text.encode())
        if number == 2 % len(world.nodes) and position == 0:  # compression was under way: the same events twice
            (folder / stem).write_text(text, encoding="utf-8")
    return len(lines), sum(lost.values())


def _wrapped(world: World, node: SimNode, **payload: Any) -> str:
    return orjson.dumps({**payload, "node_name": f"{world.scenario.cluster}/{node.name}", "time": TIME}).decode()


def _lost(world: World, node: SimNode, bucket: int, count: int) -> str:
    event = {"source": "HUBBLE_RING_BUFFER", "num_events_lost": str(count), "cpu": 1}
    return _wrapped(world, node, lost_events=event).replace(TIME, time_text(bucket * 600 * SECOND + 599 * SECOND))


def _agent_event(world: World, node: SimNode, at: int) -> str:
    event = {"type": "ENDPOINT_CREATED", "endpoint_update": {"id": "1234"}}
    return _wrapped(world, node, agent_event=event).replace(TIME, time_text(at))


# --- records -------------------------------------------------------------------------------------------------------
def _sightings(world: World, connection: SimConnection, rng: random.Random) -> Iterator[tuple[SimNode, int, str]]:
    """(observing node, time, record) of everything that any node saw of a connection."""
    client = connection.client.node if connection.client else None
    server = connection.server.node if connection.server else None
    if connection.dropped_by is not None:
        yield from _drops(world, connection, client)
        return
    jitter = rng.randrange(1_000_000)
    if client is not None and connection.client is not None and not connection.client.host_network:
        yield client, connection.opened_ns + jitter, _verdict(world, connection, client, "EGRESS")
    if server is not None and connection.server is not None and not connection.server.host_network:
        yield server, connection.opened_ns + jitter + 200_000, _verdict(world, connection, server, "INGRESS")
    # (observing node, point, reply, ns after the packet left): between two pods of one node there is no network
    points: list[tuple[SimNode, str, bool, int]] = []
    if client is not None:
        if client is not server:
            points.append((client, "TO_NETWORK", False, 20_000))
        points.append((client, "TO_ENDPOINT", True, 200_000))
    if server is not None:
        points.append((server, "TO_ENDPOINT", False, 220_000))
        if client is not server:
            points.append((server, "TO_NETWORK", True, 20_000))
    for node, point, reply, after in points:
        templates = {flag: _trace(world, connection, node, point, reply, flag) for flag in ("SYN", "ACK", "FIN")}
        for moment, flag in _moments(connection, reply):
            yield node, moment + jitter + after, templates[flag]


def _moments(connection: SimConnection, reply: bool) -> Iterator[tuple[int, str]]:
    """(time, flag) of the events of one direction."""
    shift = 400_000 if reply else 0
    opened = connection.opened_ns + shift
    closed = max(opened + 1_000_000, connection.closed_ns - 2_000_000 + shift)
    if connection.protocol == "UDP":
        yield opened, "ACK"
        return
    yield opened, "SYN"
    spacing = min(max(MIN_SPACING, (closed - opened) // EVENTS_PER_LIFE), MAX_SPACING)
    moment = opened + 3_000_000
    while moment < closed:
        yield moment, "ACK"
        moment += spacing
    yield closed, "FIN"


def _drops(world: World, connection: SimConnection, node: SimNode | None) -> Iterator[tuple[SimNode, int, str]]:
    """Each SYN that a policy drops is two records at the sender's node: the verdict and the drop.

    A connect is at most five SYNs; more of them are further connects, spread evenly over the life.
    """
    if node is None:
        return
    bursts = -(-connection.attempts // BURST)
    verdict, drop = _drop(world, connection, node, 5), _drop(world, connection, node, 1)
    for attempt in range(connection.attempts):
        burst, number = divmod(attempt, BURST)
        moment = connection.opened_ns + burst * (connection.closed_ns - connection.opened_ns) // bursts
        moment += (2**number - 1) * SECOND
        yield node, moment, verdict
        yield node, moment + 30_000, drop


def _verdict(world: World, connection: SimConnection, node: SimNode, direction: str) -> str:
    flow = _flow(world, connection, node, reply=False) | {
        "event_type": {"type": 5}, "traffic_direction": direction, "policy_match_type": 2, "is_reply": False,
    }  # fmt: skip
    return _wrapped(world, node, flow=flow | _transport(connection, "SYN", reply=False))


def _trace(world: World, connection: SimConnection, node: SimNode, point: str, reply: bool, flag: str) -> str:
    sub_type = {"TO_STACK": 3, "TO_NETWORK": 11, "TO_ENDPOINT": 0}[point]
    local = connection.client if connection.client and connection.client.node is node else connection.server
    at_client = local is connection.client
    flow = _flow(world, connection, node, reply=reply) | {
        "event_type": {"type": 4, "sub_type": sub_type} if sub_type else {"type": 4},
        "traffic_direction": "EGRESS" if at_client else "INGRESS",
        "trace_observation_point": point,
        "trace_reason": "REPLY" if reply else "NEW" if flag == "SYN" or connection.protocol == "UDP" else "ESTABLISHED",
        "is_reply": reply,
    }
    if reply:
        flow["reply"] = True
    return _wrapped(world, node, flow=flow | _transport(connection, flag, reply=reply))


def _drop(world: World, connection: SimConnection, node: SimNode, event_type: int) -> str:
    flow = _flow(world, connection, node, reply=False) | {
        "verdict": "DROPPED", "drop_reason": 133, "drop_reason_desc": "POLICY_DENIED", "traffic_direction": "EGRESS",
        "event_type": {"type": 1, "sub_type": 133} if event_type == 1 else {"type": 5},
    }  # fmt: skip
    return _wrapped(world, node, flow=flow | _transport(connection, "SYN", reply=False))


def _flow(world: World, connection: SimConnection, node: SimNode, *, reply: bool) -> Record:
    """What every record of a connection has, seen from one node."""
    client = _endpoint(world, connection.client, connection.client_ip, node)
    server = _endpoint(world, connection.server, connection.server_ip, node)
    source_ip, destination_ip = connection.client_ip, connection.server_ip
    flow: Record = {
        "time": TIME, "uuid": UUID, "emitter": {"name": "Hubble", "version": "1.19.2"}, "verdict": "FORWARDED",
        "ethernet": {"source": "0a:58:0a:00:00:01", "destination": "0a:58:0a:00:00:02"},
        "IP": {"source": destination_ip if reply else source_ip, "destination": source_ip if reply else destination_ip,
               "ipVersion": "IPv4"},
        "source": server if reply else client, "destination": client if reply else server, "Type": "L3_L4",
        "node_name": f"{world.scenario.cluster}/{node.name}",
        "node_labels": [f"kubernetes.io/hostname={node.name}", f"topology.kubernetes.io/zone={node.zone.name}"],
    }  # fmt: skip
    if (
        connection.service_ip is not None
        and connection.client is not None
        and connection.client.node is node
        and not reply
    ):
        service = next((s for s in world.services if s.cluster_ip == connection.service_ip), None)
        if service is not None:
            flow["destination_service"] = {"name": service.name, "namespace": service.namespace}
    return flow


def _transport(connection: SimConnection, flag: str, *, reply: bool) -> Record:
    ports = {"source_port": connection.client_port, "destination_port": connection.server_port}
    if reply:
        ports = {"source_port": connection.server_port, "destination_port": connection.client_port}
    if connection.protocol == "UDP":
        return {"l4": {"UDP": ports}, "Summary": "UDP"}
    flags = {
        "SYN": {"SYN": True, "ACK": True} if reply else {"SYN": True},
        "ACK": {"ACK": True, "PSH": True},
        "FIN": {"FIN": True, "ACK": True},
    }
    return {"l4": {"TCP": {**ports, "flags": flags[flag]}}, "Summary": f"TCP Flags: {', '.join(flags[flag])}"}


def _endpoint(world: World, pod: SimPod | None, ip: str, node: SimNode) -> Record:
    """An endpoint as one node knows it: its own with ID and workloads, others by identity and labels."""
    if pod is None:
        return {"identity": 2, "labels": ["reserved:world"]}
    if pod.host_network:
        local = pod.node is node
        return (
            {"identity": 1, "labels": ["reserved:host"]}
            if local
            else {"identity": 6, "labels": ["reserved:remote-node"]}
        )
    labels = sorted(
        f"k8s:{key}={value}"
        for key, value in {**pod.labels, "io.kubernetes.pod.namespace": pod.namespace}.items()
        if not key.startswith(("batch.kubernetes.io/controller", TOPOLOGY))
    )
    end: Record = {
        "identity": 256 + _number(*labels) % 65_280, "cluster_name": world.scenario.cluster, "namespace": pod.namespace,
        "labels": labels, "pod_name": pod.name,
    }  # fmt: skip
    if pod.node is node:
        end["ID"] = 1 + _number(pod.uid) % 65_535
        if pod.owner is not None:
            end["workloads"] = [{"name": pod.owner.name, "kind": pod.owner.kind}]
    return end


def _number(*parts: str) -> int:
    return int(hashlib.md5("|".join(parts).encode(), usedforsecurity=False).hexdigest()[:8], 16)
