"""Connections, drop attempts, coverage and hourly traffic: one test a rule, on frames that fit a screen."""

from __future__ import annotations

import random
from datetime import date, timedelta
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from connectors.hubble import stage
from connectors.objects import Source
from connectors.sink import Lake
from models.contracts import TABLES
from models.engine.warehouse import Warehouse, Window, utc_ns
from models.parameters import Parameters
from models.traffic import build_fact_zone_traffic, build_traffic

DAY = Window(date(2026, 11, 23), date(2026, 11, 24))
SECOND, MINUTE, HOUR = 10**9, 60 * 10**9, 3600 * 10**9
START, END = DAY.from_ns - 10 * HOUR, DAY.to_ns + 10 * HOUR
TEN = utc_ns("2026-11-23T10:00:00Z")
ZONE_A, ZONE_B, JOB, OTHER_JOB, NODE_A, NODE_B, NODE_C = 1, 2, 77, 88, 11, 12, 13
ADDRESS = {"worker": "10.1.0.1", "master": "10.1.0.2", "web": "10.1.0.3", "side": "10.1.0.4"}


def node(key: int, name: str, zone_key: int, **changes: object) -> dict[str, object]:
    return {
        "node_key": key, "cluster": "c", "node_uid": name, "name": name, "instance_id": f"i-{name}", "lifecycle": "on_demand",
        "zone_key": zone_key, "gpus": 8.0, "valid_from_ns": START, "valid_to_ns": END, "from_basis": "created",
        "to_basis": "last_seen", **changes,
    }  # fmt: skip


def pod(
    uid: str, node_key: int, zone_key: int, job_key: int = -1, role: str = "none", **changes: object
) -> dict[str, object]:
    return {
        "cluster": "c", "pod_uid": uid, "namespace": "ml", "name": uid, "node_key": node_key, "node_name": f"n{node_key}",
        "zone_key": zone_key, "host_network": False, "daemon": False, "job_key": job_key, "role": role, "resolved_by": "owner",
        "gpus": 0.0, "bypasses_kernel": False, "succeeded": False, "last_seen_ns": END, "still_alive": True,
        "held_from_ns": START, "held_to_ns": END, **changes,
    }  # fmt: skip


def address(uid: str, ip: str, from_ns: int = START, to_ns: int = END, *, rival: bool = False) -> dict[str, object]:
    return {
        "cluster": "c", "ip": ip, "pod_uid": uid, "valid_from_ns": from_ns, "valid_to_ns": to_ns, "from_basis": "scheduled",
        "to_basis": "last_seen", "rival": rival,
    }  # fmt: skip


def flow(source: str = "worker", destination: str = "master", at_ns: int = TEN, **changes: object) -> dict[str, object]:
    """One event of a connection from the worker (node a) to the master (node b), as the source's node saw it leave."""
    row: dict[str, object] = {
        "object_id": "o", "cluster": "c", "node_name": "node-a", "time_ns": at_ns, "flow_type": "L3_L4", "verdict": "FORWARDED",
        "event_type": 4, "observation_point": "TO_STACK", "is_reply": False, "protocol": "TCP", "source_ip": ADDRESS.get(source, source),
        "source_port": 40000, "destination_ip": ADDRESS.get(destination, destination), "destination_port": 23456, "tcp_syn": False,
        "tcp_ack": True, "events": 1, "source_namespace": "ml" if source in ADDRESS else None,
        "source_pod": source if source in ADDRESS else None, "destination_namespace": "ml" if destination in ADDRESS else None,
        "destination_pod": destination if destination in ADDRESS else None, "source_local": False, "destination_local": False,
        **changes,
    }  # fmt: skip
    row.setdefault("event_key", str(sorted((k, str(v)) for k, v in row.items())))
    return row


def arrived(
    source: str = "worker", destination: str = "master", at_ns: int = TEN, **changes: object
) -> dict[str, object]:
    """The same packet at the receiver's node."""
    return flow(source, destination, at_ns, **{"node_name": "node-b", "observation_point": "TO_ENDPOINT", **changes})


def reply(at_ns: int = TEN, **changes: object) -> dict[str, object]:
    """A reply of the master, as it arrives at the worker's node."""
    return flow(
        "master", "worker", at_ns,
        **{"source_port": 23456, "destination_port": 40000, "is_reply": True, "observation_point": "TO_ENDPOINT", **changes},
    )  # fmt: skip


def dropped(at_ns: int = TEN, **changes: object) -> dict[str, object]:
    return flow(
        at_ns=at_ns,
        **{
            "verdict": "DROPPED", "event_type": 1, "observation_point": None, "is_reply": None, "tcp_syn": True, "tcp_ack": False,
            "drop_reason": "POLICY_DENIED", **changes,
        },
    )  # fmt: skip


def record(
    source: str, destination: str, size: int, direction: str | None = "egress", **changes: object
) -> dict[str, object]:
    """One VPC flow log record, 10:00:00 to 10:01:00, of the sender's interface (egress) or the receiver's (ingress)."""
    own = "a" if (source in ("worker", "10.0.0.1")) == (direction != "ingress") else "b"
    row: dict[str, object] = {
        "object_id": "v", "cluster": "c", "line_number": 1, "interface_id": f"eni-{own}", "instance_id": f"i-node-{own}",
        "flow_direction": direction, "source_ip": ADDRESS.get(source, source), "destination_ip": ADDRESS.get(destination, destination),
        "source_port": 40000, "destination_port": 23456, "protocol": 6, "bytes": size, "start_ns": TEN, "end_ns": TEN + MINUTE,
        "action": "ACCEPT", **changes,
    }  # fmt: skip
    row.setdefault("outer_source_ip", row["source_ip"])
    row.setdefault("outer_destination_ip", row["destination_ip"])
    return row


def fill(warehouse: Warehouse, **rows: list[dict[str, object]]) -> None:
    """Rows by table name without its schema."""
    tables = {table.short_name: name for name, table in TABLES.items() if table.schema != "mart"}
    tables.update(pod_life="core.pod_life")
    for short, values in rows.items():
        name = tables[short]
        warehouse.append(name, TABLES[name].frame(values))


def standard(warehouse: Warehouse) -> None:
    """Two zones with a node each; a run with a worker in zone a and its master in zone b, a web pod beside the master."""
    fill(
        warehouse,
        zone=[
            {"zone_key": ZONE_A, "provider": "aws", "region": "r", "zone": "ra"},
            {"zone_key": ZONE_B, "provider": "aws", "region": "r", "zone": "rb"},
        ],
        node_life=[node(NODE_A, "node-a", ZONE_A), node(NODE_B, "node-b", ZONE_B)],
        node_address=[
            {"cluster": "c", "ip": f"10.0.0.{n}", "node_key": key, "valid_from_ns": START, "valid_to_ns": END}
            for n, key in ((1, NODE_A), (2, NODE_B))
        ],
        pod_life=[
            pod("worker", NODE_A, ZONE_A, JOB, "worker"),
            pod("master", NODE_B, ZONE_B, JOB, "coordinator"),
            pod("web", NODE_B, ZONE_B),
        ],
        pod_address=[address(name, ADDRESS[name]) for name in ("worker", "master", "web")],
    )


def build(warehouse: Warehouse, window: Window = DAY, **parameters: object) -> None:
    build_traffic(warehouse, window, Parameters(**parameters))  # type: ignore[arg-type]


def only(warehouse: Warehouse, table: str = "core.connection") -> dict[str, object]:
    frame = warehouse.table(table)
    assert frame.height == 1, frame
    return frame.row(0, named=True)


@pytest.fixture
def world(warehouse: Warehouse) -> Warehouse:
    standard(warehouse)
    return warehouse


# --- connections (T2) ------------------------------------------------------------------------------------------------
def test_t2_all_sightings_of_a_connection_are_one(world: Warehouse) -> None:
    """Egress verdict, TO_STACK, TO_OVERLAY without direction, ingress verdict, TO_ENDPOINT, replies at both nodes: once."""
    fill(
        world,
        hubble_flow=[
            flow(event_type=5, observation_point=None, tcp_syn=True, tcp_ack=False),
            flow(observation_point="TO_STACK"),
            flow(observation_point="TO_OVERLAY", is_reply=None),
            arrived(event_type=5, observation_point=None),
            arrived(events=3),
            reply(observation_point="TO_STACK", node_name="node-b"),
            reply(events=2),
            flow(flow_type="L7", event_type=129),
            flow(flow_type="SOCK", verdict="TRACED", event_type=7),
            flow(verdict="TRANSLATED"),
        ],
    )
    build(world)
    row = only(world)
    assert (row["client_pod_uid"], row["server_pod_uid"], row["server_port"]) == ("worker", "master", 23456)
    assert (row["request_events"], row["reply_events"]) == (3, 2)
    assert (row["sightings_client_node"], row["sightings_server_node"]) == (4, 3)
    assert (row["verdict"], row["locality"]) == ("connected", "cross_zone")
    assert (row["client_role"], row["server_role"], row["client_resolved_by"], row["client_reason"]) == (
        "worker",
        "coordinator",
        "pod",
        None,
    )


VERDICTS: list[tuple[list[dict[str, object]], str]] = [
    ([flow(tcp_syn=True, tcp_ack=False)], "unanswered"),
    ([flow(), flow(at_ns=TEN + 1)], "unanswered"),
    ([arrived(tcp_syn=True, tcp_ack=False)], "unanswered"),
    ([arrived(tcp_syn=False)], "connected"),
    ([arrived(tcp_syn=None)], "unanswered"),
    ([arrived(protocol="UDP", tcp_syn=None)], "unanswered"),
    ([reply()], "connected"),
    ([flow(tcp_syn=True, tcp_ack=False), dropped(node_name="node-b")], "dropped"),
    ([dropped(), reply(at_ns=TEN + 5 * SECOND)], "connected"),
    ([dropped(drop_reason="STALE_OR_UNROUTABLE_IP")], "unanswered"),
    ([dropped(drop_reason="181")], "dropped"),
    ([dropped(verdict="AUDIT", event_type=5, drop_reason=None)], "audit"),
    ([flow(verdict="REDIRECTED", event_type=5, observation_point=None)], "unanswered"),
]


def test_t2_verdict(world: Warehouse) -> None:
    """Each case on a client port of its own."""
    rows = []
    for number, (records, _) in enumerate(VERDICTS):
        ports = {40000: 40000 + number}
        rows += [
            {**row, **{name: ports.get(row[name], row[name]) for name in ("source_port", "destination_port")}}
            for row in records
        ]
    fill(world, hubble_flow=rows)
    build(world)
    found = dict(world.table("core.connection").select("client_port", "verdict").iter_rows())
    assert found == {40000 + number: verdict for number, (_, verdict) in enumerate(VERDICTS)}


def test_t2_a_kilobyte_both_ways_in_flow_logs_is_a_connection(world: Warehouse) -> None:
    fill(
        world,
        hubble_flow=[flow()],
        vpc_flow=[
            record("worker", "master", 1000),
            record("master", "worker", 999, source_port=23456, destination_port=40000),
        ],
    )
    build(world)
    assert only(world)["verdict"] == "unanswered"
    fill(world, vpc_flow=[record("master", "worker", 1, source_port=23456, destination_port=40000)])
    build(world)
    assert only(world)["verdict"] == "connected"


@pytest.mark.parametrize(
    ("rows", "client"),
    [
        ([reply(is_reply=None), arrived(is_reply=False)], "worker"),
        ([reply(is_reply=None, tcp_syn=True, tcp_ack=True)], "worker"),
        ([reply(is_reply=None)], "worker"),  # 23456 is below the ephemeral ports
        ([reply(is_reply=None, source_port=45000, destination_port=40000)], "master"),  # else the lower port serves
        ([dropped(source_port=40000, destination_port=45000)], "worker"),  # a drop names who spoke
        # one record calls a reply a new connection, three know better
        ([reply(is_reply=False), *(reply(at_ns=TEN + n) for n in (1, 2, 3))], "worker"),
    ],
)
def test_t2_client_and_server(world: Warehouse, rows: list[dict[str, object]], client: str) -> None:
    fill(world, hubble_flow=rows)
    build(world)
    assert only(world)["client_pod_uid"] == client


def test_t2_a_reused_port_is_a_new_connection(world: Warehouse) -> None:
    syn = {"tcp_syn": True, "tcp_ack": False}
    later = TEN + 10 * MINUTE
    fill(
        world,
        hubble_flow=[
            *(flow(at_ns=TEN + n * SECOND, **syn) for n in (0, 1, 3, 7, 15, 31)),  # retries of one SYN
            arrived(at_ns=TEN + 31 * SECOND, **syn),
            reply(at_ns=TEN + 32 * SECOND),
            flow(at_ns=later, **syn),
            arrived(at_ns=later + 2 * SECOND, **syn),  # the other node's clock is ahead
            reply(at_ns=later + SECOND),
        ],
    )
    build(world)
    rows = world.table("core.connection")
    assert rows.height == 2
    assert rows["connection_id"].n_unique() == 2


def test_t2_one_connection_over_hours_keeps_its_id_and_counts_once(world: Warehouse) -> None:
    fill(world, hubble_flow=[arrived(at_ns=TEN + n * HOUR) for n in range(3)])
    build(world)
    rows = world.table("core.connection")
    assert rows.height == 3
    assert rows["connection_id"].n_unique() == 1
    assert world.table("core.zone_traffic_hourly").sort("hour_utc")["connections"].to_list() == [1, 0, 0]


def test_t2_the_sender_counts_where_the_receiver_sees_nothing(world: Warehouse) -> None:
    fill(world, hubble_flow=[flow(events=4), flow(events=7, observation_point="TO_OVERLAY")])
    build(world)
    assert only(world)["request_events"] == 7


# --- drops (T4, F3) --------------------------------------------------------------------------------------------------
def test_t4_verdict_and_drop_record_of_one_syn_are_one_attempt(world: Warehouse) -> None:
    times = [TEN + 900_000_000 + n * SECOND for n in (0, 1, 3, 7)]
    fill(
        world,
        hubble_flow=[
            row
            for at in times
            for row in (
                dropped(at, event_type=5, policies='["CiliumNetworkPolicy/ml/deny"]'),
                dropped(at + 200_000_000),
            )
        ],
    )
    build(world)
    rows = world.table("core.drop_attempt")
    assert rows.height == 4
    assert rows["records"].to_list() == [2, 2, 2, 2]
    first = rows.sort("second_ns").row(0, named=True)
    assert (first["source_pod_uid"], first["destination_pod_uid"], first["destination_port"]) == (
        "worker",
        "master",
        23456,
    )
    assert (first["second_ns"], first["policies"], first["node_names"]) == (
        TEN,
        '["CiliumNetworkPolicy/ml/deny"]',
        '["node-a"]',
    )
    traffic = only(world, "core.zone_traffic_hourly")
    assert (traffic["attempts"], traffic["connections"], traffic["bytes"], traffic["verdict"]) == (
        4,
        1,
        None,
        "dropped",
    )


def test_f3_attempts_of_one_second_are_one_and_audit_is_apart(world: Warehouse) -> None:
    fill(
        world,
        hubble_flow=[
            dropped(source_port=40000),
            dropped(source_port=40001, at_ns=TEN + 1000),
            dropped(verdict="AUDIT", event_type=5, source_port=40002, at_ns=TEN + 2000),
            dropped(destination_port=1, at_ns=TEN + 3000, drop_reason="189", source_reserved="init"),
        ],
    )
    build(world)
    rows = world.table("core.drop_attempt").sort("destination_port", "audit")
    assert rows.select("destination_port", "audit", "records", "drop_reason", "source_reserved").rows() == [
        (1, False, 1, "AUTH_REQUIRED", "init"),
        (23456, False, 2, "POLICY_DENIED", None),
        (23456, True, 1, "POLICY_DENIED", None),
    ]
    assert world.table("core.zone_traffic_hourly")["attempts"].sum() == 2


def test_t4_a_drop_across_midnight_belongs_to_one_day(world: Warehouse) -> None:
    fill(world, hubble_flow=[dropped(DAY.to_ns - 100), dropped(DAY.to_ns + 100, event_type=5)])
    build(world, Window(date(2026, 11, 23), date(2026, 11, 25)))
    assert only(world, "core.drop_attempt")["date"] == date(2026, 11, 23)


def test_t4_a_dropped_flow_carries_no_bytes_and_no_weight(world: Warehouse) -> None:
    fill(
        world,
        hubble_flow=[dropped(), flow(tcp_syn=True, tcp_ack=False)],
        vpc_flow=[record("worker", "master", 500, action="REJECT")],
    )
    build(world)
    assert world.table("core.node_traffic_hourly").is_empty()
    assert (
        world.table("core.zone_traffic_hourly")["bytes"].null_count() == world.table("core.zone_traffic_hourly").height
    )


# --- coverage (T6) ---------------------------------------------------------------------------------------------------
def coverage(warehouse: Warehouse, name: str = "node-a", hour: int = 10) -> dict[str, object]:
    rows = warehouse.table("core.flow_coverage_hourly").filter(
        (pl.col("node_name") == name) & (pl.col("hour_utc").dt.hour() == hour)
    )
    return rows.row(0, named=True)


def test_t6_coverage_counts_losses_and_silence(world: Warehouse) -> None:
    fill(
        world,
        hubble_flow=[flow(at_ns=TEN + n * MINUTE, events=10) for n in range(31)],
        hubble_control=[
            {
                "object_id": "o",
                "cluster": "c",
                "node_name": "node-a",
                "time_ns": TEN + MINUTE,
                "control_kind": "lost_events",
                "events_lost": 310,
            }
        ],
    )
    build(world)
    row = coverage(world)
    assert (row["forwarded_seen"], row["drops_seen"], row["events"], row["events_lost"]) == (True, False, 310, 310)
    assert row["gap_seconds"] == 25 * 60  # thirty silent minutes, five of them allowed
    assert row["coverage"] == pytest.approx(0.5 * (1 - 25 / 60))
    assert coverage(world, hour=11)["coverage"] == 0
    silent = coverage(world, "node-b")
    assert (silent["events"], silent["forwarded_seen"], silent["coverage"], silent["vpc_coverage"]) == (
        0,
        False,
        0,
        None,
    )


def test_t6_drops_are_known_by_day_and_forwards_by_hour(world: Warehouse) -> None:
    fill(world, hubble_flow=[flow(event_type=5, observation_point=None)])
    build(world)
    assert (
        coverage(world)["forwarded_seen"],
        coverage(world)["drops_seen"],
        coverage(world, hour=3)["drops_seen"],
    ) == (False, True, True)


def test_t6_skipped_data_lowers_the_coverage_of_flow_logs(world: Warehouse) -> None:
    fill(
        world,
        vpc_flow=[record("worker", "master", 10)],
        vpc_gap=[
            {
                "object_id": "v",
                "cluster": "c",
                "interface_id": "eni-a",
                "start_ns": TEN + 30 * MINUTE,
                "end_ns": TEN + 45 * MINUTE,
                "log_status": "SKIPDATA",
            },
            {
                "object_id": "v",
                "cluster": "c",
                "interface_id": "eni-a",
                "start_ns": TEN + HOUR,
                "end_ns": TEN + HOUR + MINUTE,
                "log_status": "NODATA",
            },
        ],
    )
    build(world)
    assert coverage(world)["vpc_coverage"] == 0.75
    assert coverage(world, hour=11)["vpc_coverage"] == 1
    assert coverage(world, hour=15)["vpc_coverage"] == 0


# --- bytes (T4, T5, T7) ----------------------------------------------------------------------------------------------
def meters(warehouse: Warehouse) -> dict[tuple[int, str], float]:
    frame = warehouse.table("core.node_traffic_hourly").group_by("node_key", "direction").agg(pl.col("bytes").sum())
    return {(key, direction): size for key, direction, size in frame.iter_rows()}


def test_t2_each_direction_is_at_its_own_meter_and_each_byte_once(world: Warehouse) -> None:
    back = {"source_port": 23456, "destination_port": 40000}
    fill(
        world,
        vpc_flow=[
            record("worker", "master", 1000),
            record("worker", "master", 1000, "ingress"),
            record("master", "worker", 300, **back),
            record("master", "worker", 300, "ingress", **back),
        ],
    )
    build(world)
    assert meters(world) == {(NODE_A, "out"): 1000, (NODE_B, "in"): 1000, (NODE_B, "out"): 300, (NODE_A, "in"): 300}
    out = (
        world.table("core.node_traffic_hourly")
        .filter((pl.col("node_key") == NODE_A) & (pl.col("direction") == "out"))
        .row(0, named=True)
    )
    assert (out["pod_uid"], out["job_key"], out["peer_pod_uid"], out["source_zone_key"], out["destination_zone_key"]) == (
        "worker", JOB, "master", ZONE_A, ZONE_B,
    )  # fmt: skip
    assert (out["basis"], out["weight"], out["other_side"], out["locality"], out["coverage"]) == (
        "measured_bytes",
        1000,
        False,
        "cross_zone",
        1,
    )
    row = only(world, "core.zone_traffic_hourly")
    assert (row["bytes"], row["job_key"], row["role"], row["peer_role"], row["basis"]) == (
        1300,
        JOB,
        "worker",
        "coordinator",
        "measured_bytes",
    )
    assert (row["source_zone_key"], row["destination_zone_key"], row["verdict"]) == (ZONE_A, ZONE_B, "unanswered")


def test_t5_the_only_interface_that_recorded_serves_both_meters(world: Warehouse) -> None:
    fill(world, vpc_flow=[record("worker", "master", 1000, "ingress")])
    build(world)
    rows = world.table("core.node_traffic_hourly").sort("direction")
    assert rows.select("node_key", "direction", "bytes", "other_side").rows() == [
        (NODE_B, "in", 1000, False),
        (NODE_A, "out", 1000, True),
    ]
    assert only(world, "core.zone_traffic_hourly")["bytes"] == 1000


def test_t6_lost_data_is_taken_from_the_other_interface(world: Warehouse) -> None:
    fill(
        world,
        vpc_flow=[
            record("worker", "web", 5),
            record("worker", "master", 1000, "ingress"),
            record("worker", "web", 7, "ingress"),
        ],
        vpc_gap=[
            {
                "object_id": "v",
                "cluster": "c",
                "interface_id": "eni-a",
                "start_ns": TEN,
                "end_ns": TEN + MINUTE,
                "log_status": "SKIPDATA",
            }
        ],
    )
    build(world)
    assert meters(world) == {(NODE_A, "out"): 1005, (NODE_B, "in"): 1007}
    assert world.table("core.zone_traffic_hourly")["bytes"].sum() == 1005


@pytest.mark.parametrize("size", [1, 7, 1001, 10**15 + 1])
def test_a3_bytes_are_pro_rated_over_the_hours_of_a_record_exactly(world: Warehouse, size: int) -> None:
    start = TEN - 7 * MINUTE
    fill(world, vpc_flow=[record("worker", "master", size, start_ns=start, end_ns=start + 130 * MINUTE)])
    build(world)
    rows = world.table("core.node_traffic_hourly").filter(pl.col("direction") == "out").sort("hour_utc")
    assert rows["bytes"].sum() == size
    if size > 1000:
        parts = [7 / 130, 60 / 130, 60 / 130, 3 / 130]
        assert rows["bytes"].to_list() == pytest.approx([size * part for part in parts], abs=1)


def test_n7_a_record_across_midnight_is_split_whatever_the_window(world: Warehouse) -> None:
    fill(world, vpc_flow=[record("worker", "master", 1001, start_ns=DAY.to_ns - MINUTE, end_ns=DAY.to_ns + MINUTE)])
    days = [DAY, Window(date(2026, 11, 24), date(2026, 11, 25))]
    for day in reversed(days):
        build(world, day)
    apart = world.table("core.node_traffic_hourly").sort(pl.all())
    build(world, Window(date(2026, 11, 23), date(2026, 11, 25)))
    assert world.table("core.node_traffic_hourly").sort(pl.all()).equals(apart)
    assert apart.filter(pl.col("direction") == "out")["bytes"].sum() == 1001


def test_the_interface_tells_the_direction_where_the_format_does_not(world: Warehouse) -> None:
    """Version 2 records: no direction, no instance id; the interface is the node whose address all its records share."""
    plain = {"flow_direction": None, "instance_id": None}
    fill(
        world,
        vpc_flow=[
            record("10.0.0.1", "10.0.0.2", 100, interface_id="eni-a", **plain),
            record("10.0.0.1", "52.1.2.3", 10, interface_id="eni-a", **plain),
            record("10.0.0.1", "10.0.0.2", 100, interface_id="eni-b", **plain),
            record("52.1.2.3", "10.0.0.2", 20, interface_id="eni-b", **plain),
            record("10.0.0.1", "8.8.8.8", 10, interface_id="eni-nat", **plain),
            record("10.0.0.2", "8.8.8.8", 10, interface_id="eni-nat", **plain),
        ],
    )
    build(world)
    assert meters(world) == {(NODE_A, "out"): 110, (NODE_B, "in"): 120}


def test_t5_without_flow_logs_events_are_weights_and_bytes_are_unknown(world: Warehouse) -> None:
    fill(world, hubble_flow=[arrived(events=30), flow(events=99), reply(events=10)])
    build(world)
    rows = world.table("core.node_traffic_hourly").sort("node_key", "direction")
    assert rows.select("node_key", "direction", "weight", "bytes", "basis").rows() == [
        (NODE_A, "in", 10, None, "flow_share"),
        (NODE_A, "out", 30, None, "flow_share"),
        (NODE_B, "in", 30, None, "flow_share"),
        (NODE_B, "out", 10, None, "flow_share"),
    ]
    assert only(world, "core.zone_traffic_hourly")["bytes"] is None


def test_t7_tunnel_bytes_are_split_over_pods_by_flow_share_to_the_last_byte(world: Warehouse) -> None:
    tunnel = {"source_port": 55555, "destination_port": 8472, "protocol": 17}
    fill(
        world,
        hubble_flow=[arrived(events=2), arrived("worker", "web", source_port=41000, destination_port=80, events=1)],
        vpc_flow=[
            record("10.0.0.1", "10.0.0.2", 1000, **tunnel),
            record("10.0.0.1", "10.0.0.2", 1000, "ingress", **tunnel),
            record("10.0.0.2", "10.0.0.1", 50, **tunnel),  # nothing was seen to go back: it stays with the node
            record("10.0.0.1", "10.0.0.2", 9, destination_port=22),
        ],
    )
    build(world)
    rows = world.table("core.node_traffic_hourly").filter(
        (pl.col("node_key") == NODE_A) & (pl.col("direction") == "out")
    )
    # one meter has one basis and one unit, so what was no tunnel is a weight in bytes as well
    assert rows["basis"].unique().to_list() == ["flow_share"]
    shares = rows.filter(pl.col("reason").is_null()).sort("weight")
    assert shares["weight"].sum() == 1000
    assert [abs(a - b) < 1 for a, b in zip(shares["weight"], [333.3, 666.6], strict=True)] == [True, True]
    assert shares.select("job_key", "peer_job_key", "bytes").rows() == [(JOB, -1, None), (JOB, JOB, None)]
    rest = (
        world.table("core.node_traffic_hourly")
        .filter((pl.col("resolved_by") == "node") & (pl.col("direction") == "out"))
        .sort("weight")
    )
    assert rest.select("node_key", "weight", "bytes", "reason", "job_key", "basis").rows() == [
        (NODE_A, 9, None, "host_network", -1, "flow_share"),
        (NODE_B, 50, 50, "host_network", -1, "measured_bytes"),
    ]
    zones = world.table("core.zone_traffic_hourly")
    assert zones["bytes"].sum() == 1059
    assert zones.filter(pl.col("basis") == "flow_share")["bytes"].sum() == 1000


def test_t3_the_path_of_a_flow_log_tells_what_addresses_cannot(world: Warehouse) -> None:
    paths = {1: "unknown", 2: "external", 5: "cross_region", None: "external"}
    fill(
        world,
        vpc_flow=[record("worker", f"52.0.0.{path or 9}", 10, traffic_path=path) for path in paths]
        + [
            record("worker", "10.200.0.9", 10),
            record("worker", "2600:1f18::1", 10),
            record("worker", "2600:1f18::2", 10, traffic_path=8),
        ],
    )
    build(world)
    rows = world.table("core.node_traffic_hourly")
    assert sorted(rows.select("locality", "bytes").rows()) == [
        ("cross_region", 10), ("external", 10), ("external", 20), ("unknown", 10), ("unknown", 10), ("unknown", 10),
    ]  # fmt: skip
    lost = rows.filter(pl.col("peer_name") == "10.200.0.9").row(0, named=True)
    assert (lost["peer_resolved_by"], lost["destination_zone_key"], lost["job_key"]) == ("none", -1, JOB)


# --- whole -----------------------------------------------------------------------------------------------------------
TRAFFIC = (
    "core.connection",
    "core.drop_attempt",
    "core.flow_coverage_hourly",
    "core.node_traffic_hourly",
    "core.zone_traffic_hourly",
)


def a_day_of_flows() -> list[dict[str, object]]:
    syn = {"tcp_syn": True, "tcp_ack": False}
    rows = []
    for n in range(40):
        at, port = TEN + n * 50 * SECOND + 10 * SECOND, 40000 + n % 7
        both = {"source_port": port}
        if n % 5 == 0:
            rows += [
                dropped(at, destination_port=9999, **both),
                dropped(at + 5, event_type=5, destination_port=9999, **both),
            ]
            continue
        rows += [
            flow(at_ns=at, **syn, **both),
            arrived(at_ns=at + 100, **syn, **both),
            arrived(at_ns=at + SECOND, events=n, **both),
        ]
        rows += [
            reply(at_ns=at + 2 * SECOND, destination_port=port),
            reply(at_ns=at + 2 * SECOND, destination_port=port, node_name="node-b", observation_point="TO_STACK"),
        ]
        rows += [flow(at_ns=at + 3 * SECOND, is_reply=None, observation_point="TO_OVERLAY", **both)]
    return rows


def results(rows: list[dict[str, object]], drop: tuple[str, ...] = ()) -> dict[str, pl.DataFrame]:
    with Warehouse() as warehouse:
        warehouse.stage_frames()
        standard(warehouse)
        fill(
            warehouse,
            hubble_flow=rows,
            vpc_flow=[record("worker", "master", 5000), record("master", "worker", 70, "ingress")],
        )
        build(warehouse)
        return {name: warehouse.table(name).drop(drop, strict=False).sort(pl.all()) for name in TRAFFIC}


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_n7_the_order_of_rows_does_not_matter(seed: int) -> None:
    rows = a_day_of_flows()
    expected = results(rows)
    shuffled = rows[:]
    random.Random(seed).shuffle(shuffled)
    for name, frame in results(shuffled).items():
        assert frame.equals(expected[name]), name


@pytest.mark.parametrize("skew_seconds", [-2, 2])
def test_t2_a_node_clock_that_is_off_changes_no_count(skew_seconds: int) -> None:
    times = ("first_ns", "last_ns", "answered_ns", "second_ns", "gap_seconds", "coverage")
    rows = a_day_of_flows()
    skewed = [
        {**row, "time_ns": row["time_ns"] + skew_seconds * SECOND * (row["node_name"] == "node-b")} for row in rows
    ]  # type: ignore[operator]
    expected = results(rows, times)
    for name, frame in results(skewed, times).items():
        assert frame.equals(expected[name]), name


def test_n7_running_again_changes_nothing(world: Warehouse) -> None:
    fill(world, hubble_flow=a_day_of_flows(), vpc_flow=[record("worker", "master", 5000)])
    build(world)
    before = {name: world.table(name).sort(pl.all()) for name in TRAFFIC}
    build(world)
    for name, frame in before.items():
        assert world.table(name).sort(pl.all()).equals(frame), name


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                [
                    ("worker", "master"),
                    ("master", "worker"),
                    ("worker", "web"),
                    ("web", "worker"),
                    ("worker", "52.1.1.1"),
                    ("52.1.1.1", "master"),
                ]
            ),
            st.integers(1, 10**12),
            st.integers(0, 90 * 60),
            st.integers(0, 7200),
            st.sampled_from(["egress", "ingress", "both"]),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_t2_bytes_are_conserved(flows: list[tuple[tuple[str, str], int, int, int, str]]) -> None:
    """Each node's meter shows what its interface recorded, to the byte, however records fall on hours."""
    records, expected = [], {}
    for number, ((source, destination), size, offset, span, side) in enumerate(flows):
        span_ns = {
            "start_ns": TEN + offset * SECOND,
            "end_ns": TEN + (offset + span) * SECOND,
            "source_port": 1000 + number,
        }
        for direction in ("egress", "ingress") if side == "both" else (side,):
            local = source if direction == "egress" else destination
            if local in ADDRESS:
                own = NODE_A if local == "worker" else NODE_B
                letter = "a" if own == NODE_A else "b"
                records.append(
                    record(
                        source,
                        destination,
                        size,
                        direction,
                        **{**span_ns, "interface_id": f"eni-{letter}", "instance_id": f"i-node-{letter}"},
                    )
                )
                key = (own, "out" if direction == "egress" else "in")
                expected[key] = expected.get(key, 0) + size
    if not records:
        return
    with Warehouse() as warehouse:
        warehouse.stage_frames()
        standard(warehouse)
        fill(warehouse, vpc_flow=records)
        build(warehouse)
        own = warehouse.query(
            "SELECT node_key, direction, CAST(sum(bytes) AS BIGINT) AS size FROM core.node_traffic_hourly WHERE NOT other_side GROUP BY ALL"
        )
        assert {(k, d): s for k, d, s in own.iter_rows()} == expected


def test_published_zone_traffic_is_core(world: Warehouse) -> None:
    fill(world, hubble_flow=a_day_of_flows())
    build(world)
    build_fact_zone_traffic(world, DAY, Parameters())
    published, core = world.table("mart.fact_zone_traffic"), world.table("core.zone_traffic_hourly")
    for column in ("connections", "attempts"):
        assert published[column].sum() == core[column].sum() > 0
    assert published["cluster_key"].n_unique() == 1


# --- real records ----------------------------------------------------------------------------------------------------
def test_real_records_become_connections(shared_data: Path, tmp_path: Path) -> None:
    """AKS: three records of one connection on one node; EKS: host to coredns, whose direction says EGRESS; a denied SYN."""
    lake = Lake(tmp_path / "lake")
    stage(Source("h", "hubble", shared_data / "hubble", cluster="c"), lake, lambda text: None)
    with Warehouse() as warehouse:
        warehouse.stage_lake({"staging.hubble_flow": lake.held_files("staging.hubble_flow")})
        days = [date(2021, 6, 16), date(2025, 4, 16), date(2026, 3, 26), date(2026, 7, 31)]
        for day in days:
            build(warehouse, Window(day, day + timedelta(days=1)))
        rows = warehouse.table("core.connection")
        packets = warehouse.query(
            "SELECT count(*) AS n FROM staging.hubble_flow WHERE flow_type = 'L3_L4' AND ns_date(time_ns) = DATE '2021-06-16'"
        )
        found = {
            row["date"]: (
                row["client_name"].split("/")[-1][:12],
                row["server_name"].split("/")[-1][:12],
                row["verdict"],
                row["locality"],
            )
            for row in rows.filter(pl.col("date") > date(2021, 12, 31)).iter_rows(named=True)
        }
        first = rows.filter(pl.col("date") == date(2021, 6, 16))
        assert first["sightings_client_node"].null_count() == 0
        assert 0 < first.height < packets["n"].item()
        assert (
            first["connection_id"].n_unique()
            == first.unique(["protocol", "client_ip", "client_port", "server_ip", "server_port"]).height
        )
        drop = warehouse.table("core.drop_attempt").filter(pl.col("date") == date(2026, 7, 31)).row(0, named=True)
    assert found == {
        date(2025, 4, 16): ("kapinger-bad", "kapinger-goo", "connected", "same_zone"),
        date(2026, 3, 26): ("host", "coredns-69b5", "connected", "same_zone"),
        date(2026, 7, 31): ("traffic-gene", "echo-server-", "dropped", "unknown"),
    }
    assert (drop["drop_reason"], drop["policies"]) == ("POLICY_DENY", '["CiliumNetworkPolicy/net-lab/deny-tg-to-echo"]')
