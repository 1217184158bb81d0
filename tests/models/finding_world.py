"""Small worlds for tests of findings: one run, its pods, drops, connections, GPU states and cost, a row a call."""

from __future__ import annotations

import json
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

from models.contracts import TABLES
from models.engine.warehouse import Warehouse, Window, utc_ns
from models.findings import build_finding_money, build_findings
from models.parameters import Parameters

SECOND, MINUTE, HOUR, DAY_LENGTH = 10**9, 60 * 10**9, 3600 * 10**9, 86400 * 10**9
DAY = date(2026, 11, 23)
WINDOW = Window(DAY, DAY + timedelta(days=1))
TEN = utc_ns("2026-11-23T10:00:00Z")
END = WINDOW.to_ns
ZONE_A, ZONE_B, JOB = 1, 2, 77
NODE_OF_ZONE = {ZONE_A: 11, ZONE_B: 12, -1: -1}
ZONES = [
    {"zone_key": ZONE_A, "provider": "aws", "zone": "us-east-1a"},
    {"zone_key": ZONE_B, "provider": "aws", "zone": "us-east-1b"},
]


def at(minutes: float) -> int:
    """Minutes after ten."""
    return TEN + int(minutes * MINUTE)


def hour_of(instant_ns: int) -> datetime:
    return datetime(1970, 1, 1) + timedelta(hours=instant_ns // HOUR)


def job(key: int = JOB, **changes: Any) -> dict[str, Any]:
    return {
        "job_key": key, "cluster": "c", "namespace": "ml", "kind": "PyTorchJob", "name": "train", "run": f"u{key}",
        "resolved_by": "label", "declared_size": 3, "gang": True, "first_seen_ns": TEN - HOUR, "last_seen_ns": END,
        "gpus": 16.0,
    } | changes  # fmt: skip


def pod(uid: str, zone_key: int = ZONE_A, role: str = "worker", **changes: Any) -> dict[str, Any]:
    labels = {"app": "train", "role": role, "zone": "zone-a" if zone_key == ZONE_A else "zone-b"}
    row = {
        "cluster": "c", "pod_uid": uid, "namespace": "ml", "name": uid, "node_key": NODE_OF_ZONE[zone_key],
        "node_name": f"n{NODE_OF_ZONE[zone_key]}", "zone_key": zone_key, "host_network": False, "daemon": False, "job_key": JOB,
        "role": role, "resolved_by": "label", "gpus": 8.0 if role == "worker" else 0.0, "bypasses_kernel": False,
        "created_ns": TEN - HOUR, "held_from_ns": TEN - HOUR, "main_started_ns": TEN - HOUR, "succeeded": False,
        "last_seen_ns": END, "still_alive": True, "ports": "[]", "labels": json.dumps(labels),
    }  # fmt: skip
    return row | changes


def node(zone_key: int, gpus: float = 32.0, **changes: Any) -> dict[str, Any]:
    key = NODE_OF_ZONE[zone_key]
    return {
        "node_key": key, "cluster": "c", "node_uid": f"n{key}", "name": f"n{key}", "lifecycle": "on_demand",
        "zone_key": zone_key, "gpus": gpus, "gpus_allocatable": gpus, "valid_from_ns": 0, "valid_to_ns": 2**61,
        "from_basis": "created", "to_basis": "last_seen",
    } | changes  # fmt: skip


def attempt(
    minutes: float, source: str = "w0", destination: str | None = "m0", port: int = 23456, **changes: Any
) -> dict[str, Any]:
    second = at(minutes) // SECOND * SECOND
    roles = {"w": "worker", "m": "coordinator", "x": "auxiliary"}
    return {
        "date": DAY + timedelta(days=(second - WINDOW.from_ns) // DAY_LENGTH), "cluster": "c", "second_ns": second,
        "source_pod_uid": source, "source_job_key": JOB, "source_role": roles.get(source[0]), "destination_pod_uid": destination,
        "destination_job_key": JOB, "destination_role": roles.get((destination or "-")[0]), "protocol": "TCP",
        "destination_port": port, "drop_reason": "POLICY_DENIED", "records": 1, "audit": False,
    } | changes  # fmt: skip


def retries(start: float, end: float, step: float = 0.5, **changes: Any) -> list[dict[str, Any]]:
    """Attempts from minute `start` to minute `end`."""
    count = int((end - start) / step) + 1
    return [attempt(start + number * step, **changes) for number in range(count)]


def connected(
    start: float, end: float, client: str = "w0", server: str = "m0", port: int = 23456, **changes: Any
) -> dict[str, Any]:
    roles = {"w": "worker", "m": "coordinator", "x": "auxiliary"}
    return {
        "date": DAY, "hour_utc": hour_of(at(start)), "cluster": "c", "connection_id": 1, "protocol": "TCP", "client_ip": client,
        "client_port": 40000, "server_ip": server, "server_port": port, "client_pod_uid": client, "client_node_key": 11,
        "client_zone_key": ZONE_A, "client_job_key": JOB, "client_role": roles.get(client[0]), "client_resolved_by": "pod",
        "server_pod_uid": server, "server_node_key": 12, "server_zone_key": ZONE_B, "server_job_key": JOB,
        "server_role": roles.get(server[0]), "server_resolved_by": "pod", "locality": "cross_zone", "verdict": "connected",
        "first_ns": at(start), "last_ns": at(end), "request_events": 1, "reply_events": 1, "drop_records": 0,
        "sightings_client_node": 1, "sightings_server_node": 1, "coverage": 1.0,
    } | changes  # fmt: skip


def covered(
    hours: range = range(24), nodes: tuple[str, ...] = ("n11", "n12"), forwarded: bool = True
) -> list[dict[str, Any]]:
    return [
        {"date": DAY, "hour_utc": datetime(2026, 11, 23, hour), "cluster": "c", "node_name": name, "forwarded_seen": forwarded,
         "drops_seen": True, "events": 10, "events_lost": 0, "gap_seconds": 0.0, "coverage": 1.0}
        for hour in hours for name in nodes
    ]  # fmt: skip


def segment(
    start: float, end: float, state: str = "busy", uid: str = "w0", work: float | None = None, **changes: Any
) -> dict[str, Any]:
    """One GPU slot of weight 8 (a pod's whole node) in one state, from minute to minute."""
    return {
        "date": DAY + timedelta(days=(at(start) - WINDOW.from_ns) // DAY_LENGTH), "cluster": "c", "node_key": 11,
        "gpu_uuid": f"gpu-{uid}", "gpu_model": "H100", "job_key": JOB, "pod_uid": uid, "from_ns": at(start), "to_ns": at(end),
        "state": state, "activity_basis": "tensor", "work": work, "weight": 8.0, "provisional": False,
    } | changes  # fmt: skip


def cost_line(
    hour: int, state: str, cause: str | None, gpu_hours: float, cost: str | None, **changes: Any
) -> dict[str, Any]:
    """What the bill paid for a state in an hour of the day."""
    money = None if cost is None else Decimal(cost)
    return {
        "date": DAY, "hour_utc": datetime(2026, 11, 23, hour), "cluster": "c", "node_key": 11, "gpu_model": "H100",
        "job_key": JOB, "role": "worker", "state": state, "cause": cause, "activity_basis": "tensor", "gpu_hours": gpu_hours,
        "billed_cost": money, "effective_cost": money, "currency": "USD", "cost_basis": "billed" if cost else "unpriced",
    } | changes  # fmt: skip


def transfer_line(hour: int | None, cost: str, **changes: Any) -> dict[str, Any]:
    return {
        "date": DAY, "hour_utc": None if hour is None else datetime(2026, 11, 23, hour), "delivery_id": "d",
        "billing_account": "p", "cluster_key": 1, "node_key": 11, "job_key": JOB, "role": "worker", "resolved_by": "pod",
        "peer_job_key": JOB, "peer_role": "worker", "peer_resolved_by": "pod", "source_zone_key": ZONE_A,
        "destination_zone_key": ZONE_B, "direction": "out", "billed_cost": Decimal(cost), "effective_cost": Decimal(cost),
        "currency": "USD", "basis": "measured_bytes", "policy": "rate",
    } | changes  # fmt: skip


def volume(hour: int, gigabytes: float | None, **changes: Any) -> dict[str, Any]:
    """Member-to-member traffic between zones in an hour."""
    return {
        "date": DAY, "hour_utc": datetime(2026, 11, 23, hour), "cluster": "c", "job_key": JOB, "role": "worker",
        "peer_job_key": JOB, "peer_role": "worker", "source_zone_key": ZONE_A, "destination_zone_key": ZONE_B,
        "locality": "cross_zone", "verdict": "connected", "connections": 1, "attempts": 0,
        "bytes": None if gigabytes is None else gigabytes * 1e9, "basis": "measured_bytes", "coverage": 1.0,
    } | changes  # fmt: skip


def policy(
    name: str, subject: dict[str, str], allowed: list[dict[str, str]], direction: str = "egress", **changes: Any
) -> dict[str, Any]:
    """A CiliumNetworkPolicy that selects `subject` and allows these peers."""
    side = "toEndpoints" if direction == "egress" else "fromEndpoints"
    spec = {
        "endpointSelector": {"matchLabels": subject},
        direction: [{side: [{"matchLabels": peer} for peer in allowed]}],
    }
    keys = sorted({key for labels in (subject, *allowed) for key in labels})
    return {
        "object_id": "o", "snapshot_id": "s", "cluster": "c", "observed_ns": TEN - HOUR, "api_version": "cilium.io/v2",
        "kind": "CiliumNetworkPolicy", "namespace": "ml", "name": name, "resource_version": "1",
        "created_ns": TEN - 100 * HOUR, "selector_keys": json.dumps(keys),
        "subject_selectors": json.dumps([{"matchLabels": subject}]), "document": json.dumps({"spec": spec}),
    } | changes  # fmt: skip


def zone_policies() -> list[dict[str, Any]]:
    """Pods labelled zone-a talk to pods labelled zone-a only, whatever zone they run in."""
    here = {"zone": "zone-a"}
    return [policy("intra-zone-a", here, [here]), policy("intra-zone-a-in", here, [here], "ingress")]


def load(warehouse: Warehouse, tables: dict[str, list[dict[str, Any]]]) -> None:
    for name, rows in {"core.zone": ZONES, "core.node_life": [node(ZONE_A), node(ZONE_B)], **tables}.items():
        warehouse.append(name, TABLES[name].frame(rows))


def find(
    warehouse: Warehouse, tables: dict[str, list[dict[str, Any]]], parameters: Parameters | None = None
) -> dict[str, dict[str, Any]]:
    """Load a world, run both steps, and give the findings by kind (one of a kind, or the test is wrong)."""
    load(warehouse, tables)
    rows = findings(warehouse, parameters)
    assert len({row["kind"] for row in rows}) == len(rows), [row["summary"] for row in rows]
    return {row["kind"]: row for row in rows}


def findings(warehouse: Warehouse, parameters: Parameters | None = None) -> list[dict[str, Any]]:
    chosen = parameters or Parameters()
    build_findings(warehouse, WINDOW, chosen)
    build_finding_money(warehouse, WINDOW, chosen)
    rows = list(warehouse.table("core.finding").sort("finding_id").iter_rows(named=True))
    for row in rows:
        check_evidence(warehouse, row)
    return rows


def check_evidence(warehouse: Warehouse, row: dict[str, Any]) -> None:
    """F2: each query runs and returns exactly the rows that the evidence claims."""
    for item in json.loads(row["evidence"]) + json.loads(row["counter_evidence"]):
        assert set(item) == {"what", "rows", "query"}
        assert len(warehouse.query(item["query"])) == item["rows"] > 0, item
