"""VPC flow logs v5 of a simulated cluster, text and gzip, in the S3 key layout: both interfaces of every flow.

Records follow the AWS VPC flow logs guide: 10-minute aggregation, one record a direction and interface, NODATA and
SKIPDATA lines. A connection's bytes are spread evenly over its life in whole bytes; slots sum to it exactly.
"""

from __future__ import annotations

import gzip
import hashlib
import random
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from connectors.simulated.world import SimConnection, SimNode, World

SECOND = 1_000_000_000
SLOT, HOUR = 600 * SECOND, 3600 * SECOND
FIELDS = (
    "version account-id interface-id srcaddr dstaddr srcport dstport protocol packets bytes start end action log-status vpc-id"
    " subnet-id instance-id tcp-flags type pkt-srcaddr pkt-dstaddr region az-id sublocation-type sublocation-id"
    " pkt-src-aws-service pkt-dst-aws-service flow-direction traffic-path"
)
PROTOCOL = {"TCP": 6, "UDP": 17}


def write(world: World, folder: Path) -> dict[str, int]:
    """Write one object an hour; returns how many records."""
    lines: dict[int, list[str]] = defaultdict(list)
    busy: set[tuple[int, str]] = set()
    for connection in world.connections:
        for slot, node, record in _records(world, connection):
            busy.add((slot, node.name))
            lines[slot // HOUR * HOUR].append(record)
    _odds_and_ends(world, lines, busy)
    for hour, records in sorted(lines.items()):
        _write_object(world, folder, hour, records)
    return {"records": sum(map(len, lines.values()))}


def _write_object(world: World, folder: Path, hour: int, records: list[str]) -> None:
    scenario, moment = world.scenario, datetime.fromtimestamp(hour // SECOND, UTC)
    parent = folder / f"AWSLogs/{scenario.account}/vpcflowlogs/{scenario.region}/{moment:%Y/%m/%d}"
    parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256(f"{scenario.seed}-{hour}".encode()).hexdigest()[:8]
    name = f"{scenario.account}_vpcflowlogs_{scenario.region}_fl-0a1b2c3d_{moment:%Y%m%dT%H%MZ}_{digest}.log.gz"
    with (parent / name).open("wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", mtime=0, filename="") as handle:
        handle.write(("\n".join([FIELDS, *records]) + "\n").encode())


def _records(world: World, connection: SimConnection) -> Iterator[tuple[int, SimNode, str]]:
    """(slot, capturing node, record) of both directions at every interface of ours that they pass."""
    client = connection.client.node if connection.client else None
    server = connection.server.node if connection.server else None
    if connection.dropped_by is not None or client is server:
        return
    for slot, start, end, sent, received in _slots(connection):
        forward = (
            connection.client_ip,
            connection.client_port,
            connection.server_ip,
            connection.server_port,
            client,
            server,
            sent,
            _flags(connection, slot, 2),
        )
        back = (
            connection.server_ip,
            connection.server_port,
            connection.client_ip,
            connection.client_port,
            server,
            client,
            received,
            _flags(connection, slot, 18),
        )
        for source, source_port, destination, destination_port, sender, receiver, count, flags in (forward, back):
            if not count:
                continue
            for node, direction in ((sender, "egress"), (receiver, "ingress")):
                if node is not None:
                    yield slot, node, _record(world, connection, node, direction, source, source_port, destination, destination_port,
                                              count, start, end, flags, inside=sender is not None and receiver is not None)  # fmt: skip


def _slots(connection: SimConnection) -> Iterator[tuple[int, int, int, int, int]]:
    """(slot, start second, end second, sent, received) of a connection; sums are exact."""
    life = connection.closed_ns - connection.opened_ns
    slot = connection.opened_ns // SLOT * SLOT
    sent_before = received_before = 0
    while slot < connection.closed_ns:
        low, high = max(slot, connection.opened_ns), min(slot + SLOT, connection.closed_ns)
        elapsed = high - connection.opened_ns
        sent, received = connection.sent_bytes * elapsed // life, connection.received_bytes * elapsed // life
        start = low // SECOND
        yield (
            slot,
            start,
            max(start + 1, min(-(-high // SECOND), (slot + SLOT) // SECOND)),
            sent - sent_before,
            received - received_before,
        )
        sent_before, received_before = sent, received
        slot += SLOT


def _flags(connection: SimConnection, slot: int, opening: int) -> int:
    """`tcp-flags` of a slot: SYN (2) or SYN-ACK (18) when it opens in it, FIN (1) when it closes; a mere ACK is 0."""
    if connection.protocol != "TCP":
        return 0
    opens, closes = slot <= connection.opened_ns, connection.closed_ns <= slot + SLOT
    return (opening if opens else 0) | (1 if closes else 0)


def _record(
    world: World, connection: SimConnection, node: SimNode, direction: str, source: str, source_port: int, destination: str,
    destination_port: int, count: int, start: int, end: int, flags: int, *, inside: bool,
) -> str:  # fmt: skip
    path = "-" if direction == "ingress" else "1" if inside else "8"
    packets = max(1, count // 1400)
    return (
        f"5 {world.scenario.account} {node.interface_id} {source} {destination} {source_port} {destination_port}"
        f" {PROTOCOL[connection.protocol]} {packets} {count} {start} {end} ACCEPT OK vpc-0a1b subnet-{node.zone.zone_id}"
        f" {node.instance_id} {flags} IPv4 {source} {destination} {world.scenario.region} {node.zone.zone_id} - - - - {direction} {path}"
    )


def _odds_and_ends(world: World, lines: dict[int, list[str]], busy: set[tuple[int, str]]) -> None:
    """Each hour an interval without data and one that a security group rejected; once, one whose data was lost."""
    rng = random.Random(f"vpc-{world.scenario.seed}")
    account, region = world.scenario.account, world.scenario.region
    hours = range(world.from_ns, world.to_ns, HOUR)
    for number, hour in enumerate(hours):
        there = [n for n in world.nodes if n.created_ns <= hour and hour + HOUR <= (n.deleted_ns or world.to_ns)]
        slots = range(hour, min(hour + HOUR, world.to_ns), SLOT)
        if not there:
            continue
        node = rng.choice(there)
        start, end = hour // SECOND, (hour + SLOT) // SECOND
        busy.add((hour, node.name))
        lines[hour].append(
            f"5 {account} {node.interface_id} 203.0.113.9 {node.ip} 51000 23 6 2 120 {start} {end} REJECT OK {_place(node)}"
            f" 2 IPv4 203.0.113.9 {node.ip} {region} {node.zone.zone_id} - - - - ingress -"
        )
        quiet = [(slot, n) for slot in slots for n in there if (slot, n.name) not in busy]
        if quiet:
            slot, node = rng.choice(quiet)
            lines[hour].append(_gap(world, node, slot, slot + SLOT, "NODATA"))
        if number == min(20, len(hours) - 1):
            lines[hour].append(_gap(world, rng.choice(there), hour, hour + 60 * SECOND, "SKIPDATA"))


def _gap(world: World, node: SimNode, low: int, high: int, status: str) -> str:
    return (
        f"5 {world.scenario.account} {node.interface_id} - - - - - - - {low // SECOND} {high // SECOND} - {status} {_place(node)}"
        f" - - - - {world.scenario.region} {node.zone.zone_id} - - - - - -"
    )


def _place(node: SimNode) -> str:
    """VPC, subnet and instance of the capturing interface."""
    return f"vpc-0a1b subnet-{node.zone.zone_id} {node.instance_id}"
