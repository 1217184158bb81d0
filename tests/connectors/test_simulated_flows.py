"""Simulated Hubble files and VPC flow logs, read back by the real connectors: counts close, bytes are exact."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from dataclasses import replace
from datetime import date
from pathlib import Path
from types import ModuleType

import polars as pl
import pytest

from connectors import hubble, vpc_flow_logs
from connectors.objects import Source
from connectors.simulated import hubble_files, vpc_flow_log_files
from connectors.simulated.world import Scenario, SimConnection, SimNode, SimOwner, SimPod, SimService, SimZone, World
from connectors.sink import Lake

SECOND = 1_000_000_000
MINUTE, HOUR = 60 * SECOND, 3600 * SECOND
START = 1_795_392_000 * SECOND  # 2026-11-23T00:00:00Z
ZONES = (SimZone("us-east-1a", "use1-az4"), SimZone("us-east-1b", "use1-az6"))
DNS_IP = "172.20.0.10"
Flows = tuple[dict[str, int], Path, Lake, pl.DataFrame]
Vpc = tuple[dict[str, int], Lake, pl.DataFrame]


def node(number: int) -> SimNode:
    return SimNode(
        uid=f"node-{number}", name=f"n{number}", instance_id=f"i-{number}", interface_id=f"eni-{number}",
        instance_type="m6i.4xlarge", pool="cpu", lifecycle="on_demand", committed=False, zone=ZONES[number],
        ip=f"10.0.0.{number + 4}", gpus=0, gpu_model=None, gpu_uuids=(), hourly_price="0.768",
        created_ns=START - HOUR, joined_ns=START - HOUR, deleted_ns=None,
    )  # fmt: skip


def pod(name: str, at: SimNode, ip: str, *, host_network: bool = False) -> SimPod:
    return SimPod(
        uid=f"pod-{name}", namespace="ml", name=name, node=at, ip=ip, host_network=host_network,
        labels={"app": name, "topology.kubernetes.io/zone": at.zone.name}, annotations={},
        owner=SimOwner("apps/v1", "StatefulSet", name, f"set-{name}"), job=None, role="none", replica_type="", replica_index=0,
        gpus=0, gpu_uuids=(), ports=(), created_ns=START, scheduled_ns=START, ready_to_start_ns=START, initialized_ns=START,
        started_ns=START, finished_ns=None, succeeded=False, deleted_ns=None,
    )  # fmt: skip


N0, N1 = node(0), node(1)
WORKER, NEAR, FAR = pod("worker", N0, "10.1.0.10"), pod("near", N0, "10.1.0.11"), pod("far", N1, "10.1.1.10")
AGENT = pod("agent", N1, N1.ip, host_network=True)
LONG = SimConnection(WORKER, "10.1.0.10", 40000, FAR, "10.1.1.10", 9000, "TCP",
                     START + 7 * MINUTE + 123, START + 7 * HOUR + 456, 10**12 + 7, 999_983)  # fmt: skip
SAME_NODE = SimConnection(WORKER, "10.1.0.10", 40001, NEAR, "10.1.0.11", 9000, "TCP",
                          START + HOUR, START + HOUR + MINUTE, 5000, 6000)  # fmt: skip
OUTSIDE = SimConnection(WORKER, "10.1.0.10", 40002, None, "52.216.10.20", 443, "TCP",
                        START + 2 * HOUR, START + 2 * HOUR + 90 * SECOND, 3001, 7_000_003)  # fmt: skip
TO_HOST = SimConnection(WORKER, "10.1.0.10", 40003, AGENT, N1.ip, 9100, "TCP",
                        START + 3 * HOUR, START + 3 * HOUR + MINUTE, 100, 0)  # fmt: skip
LOOKUP = SimConnection(WORKER, "10.1.0.10", 40004, FAR, "10.1.1.10", 53, "UDP",
                       START + 10 * MINUTE - SECOND // 2, START + 10 * MINUTE + SECOND // 2, 90, 251, service_ip=DNS_IP)  # fmt: skip
DROPPED = SimConnection(WORKER, "10.1.0.10", 40005, FAR, "10.1.1.10", 9999, "TCP",
                        START + 4 * HOUR, START + 4 * HOUR + 10 * MINUTE, 0, 0, dropped_by="deny", attempts=10)  # fmt: skip


@pytest.fixture(scope="module")
def world() -> World:
    return World(
        Scenario(seed=5, start=date(2026, 11, 23), days=1), START, START + 8 * HOUR, list(ZONES), [N0, N1],
        pods=[WORKER, NEAR, FAR, AGENT], connections=[LONG, SAME_NODE, OUTSIDE, TO_HOST, LOOKUP, DROPPED],
        services=[SimService("ml", "names", "svc", DNS_IP, {}, (("dns", 53, "UDP"),))],
    )  # fmt: skip


def staged(connector: ModuleType, folder: Path, lake: Lake) -> None:
    connector.stage(Source("flows", connector.__name__, folder, "train-1"), lake, lambda text: None)


@pytest.fixture(scope="module")
def flows(world: World, tmp_path_factory: pytest.TempPathFactory) -> Flows:
    folder = tmp_path_factory.mktemp("hubble")
    counts = hubble_files.write(world, folder / "in")
    lake = Lake(folder / "lake")
    staged(hubble, folder / "in", lake)
    return counts, folder / "in", lake, pl.read_parquet(lake.held_files(hubble.FLOW))


@pytest.fixture(scope="module")
def vpc(world: World, tmp_path_factory: pytest.TempPathFactory) -> Vpc:
    folder = tmp_path_factory.mktemp("vpc")
    counts = vpc_flow_log_files.write(world, folder / "in")
    lake = Lake(folder / "lake")
    staged(vpc_flow_logs, folder / "in", lake)
    return counts, lake, pl.read_parquet(lake.held_files(vpc_flow_logs.FLOW))


def of(rows: pl.DataFrame, connection: SimConnection) -> pl.DataFrame:
    """Both directions of one connection, told by the client's port."""
    port = connection.client_port
    return rows.filter((pl.col("source_port") == port) | (pl.col("destination_port") == port))


# --- Hubble --------------------------------------------------------------------------------------------------------
def test_counts_close_and_only_the_cut_line_is_rejected(flows: Flows) -> None:
    counts, folder, lake, rows = flows
    twice = [path for path in folder.rglob("*.log") if path.with_name(path.name + ".gz").exists()]
    assert len(twice) == 1
    control = pl.read_parquet(lake.held_files(hubble.CONTROL))
    agents = control.filter(pl.col("control_kind") == "agent_event")
    assert agents["node_name"].sort().to_list() == ["n0", "n1"]
    assert rows.height == counts["records"] - 2  # one agent event a node
    assert counts["lost"] == 0
    rejected = pl.read_parquet(lake.rejected_files())
    assert rejected["reason"].str.starts_with("bad_json").to_list() == [True]
    # the copy's agent event is a duplicate too
    assert lake.loads()["rows_duplicate"].sum() == len(twice[0].read_text().splitlines())
    assert rows["event_key"].n_unique() == rows.height


def test_every_sighting_is_at_a_node_of_an_end(flows: Flows) -> None:
    rows = flows[3]

    def seen(connection: SimConnection) -> set[tuple[str, str, bool]]:
        trace = of(rows, connection).filter(pl.col("event_type") == 4)
        return set(trace.select("node_name", "observation_point", "is_reply").iter_rows())

    both = {("n0", "TO_NETWORK", False), ("n1", "TO_ENDPOINT", False), ("n1", "TO_NETWORK", True), ("n0", "TO_ENDPOINT", True)}  # fmt: skip
    assert seen(LONG) == seen(LOOKUP) == seen(TO_HOST) == both
    assert seen(SAME_NODE) == {("n0", "TO_ENDPOINT", False), ("n0", "TO_ENDPOINT", True)}
    assert seen(OUTSIDE) == {("n0", "TO_NETWORK", False), ("n0", "TO_ENDPOINT", True)}
    verdicts = rows.filter((pl.col("event_type") == 5) & (pl.col("verdict") == "FORWARDED"))
    assert Counter(of(verdicts, LONG)["traffic_direction"]) == {"EGRESS": 1, "INGRESS": 1}
    assert of(verdicts, TO_HOST)["traffic_direction"].to_list() == ["EGRESS"]


def test_ends_are_named_as_the_observing_node_knows_them(flows: Flows) -> None:
    rows = flows[3].filter(~pl.col("is_reply"))
    long = of(rows, LONG).select("node_name", "source_pod", "source_local", "destination_local", "node_zone").unique()
    assert sorted(long.rows()) == [
        ("n0", "worker", True, False, "us-east-1a"),
        ("n1", "worker", False, True, "us-east-1b"),
    ]
    assert set(of(rows, TO_HOST).select("node_name", "destination_reserved", "destination_pod").rows()) == {
        ("n0", "remote-node", None),
        ("n1", "host", None),
    }
    assert set(of(rows, OUTSIDE)["destination_reserved"]) == {"world"}
    service = of(rows, LOOKUP).select("node_name", "destination_service", "destination_ip").unique()
    assert sorted(service.rows(), key=str) == [("n0", "ml/names", "10.1.1.10"), ("n1", None, "10.1.1.10")]


def test_a_long_connection_is_known_to_be_live(flows: Flows) -> None:
    trace = of(flows[3], LONG).filter(pl.col("event_type") == 4)
    for _, part in trace.group_by("node_name", "is_reply"):
        ordered = part.sort("time_ns")
        assert all(gap <= 5 * MINUTE for gap in ordered["time_ns"].diff().drop_nulls())
        assert part.height <= 40 * 7
        assert ordered["tcp_syn"][0] and ordered["tcp_fin"][-1]


def test_a_dropped_syn_is_a_verdict_and_a_drop_at_the_sender(flows: Flows) -> None:
    rows = of(flows[3], DROPPED)
    assert set(rows.select("node_name", "verdict", "drop_reason", "is_reply", "traffic_direction").rows()) == {
        ("n0", "DROPPED", "POLICY_DENIED", None, "EGRESS")
    }
    assert Counter(rows["event_type"]) == {1: 10, 5: 10}
    at = rows.filter(pl.col("event_type") == 1)["time_ns"].sort()
    gaps = (at.diff().drop_nulls() // SECOND).to_list()
    assert gaps == [1, 2, 4, 8, 300 - 15, 1, 2, 4, 8]  # two connects, evenly in ten minutes


def test_a_skewed_clock_is_off_by_a_second_at_most(flows: Flows) -> None:
    opening = of(flows[3], LONG).filter(pl.col("event_type") == 5)
    assert opening.height == 2
    assert all(abs(at - LONG.opened_ns) <= SECOND + 2_000_000 for at in opening["time_ns"])


def test_records_are_in_order_and_follow_protojson(flows: Flows) -> None:
    for path in flows[1].rglob("*.log.gz"):
        records = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
        times = [record["time"][:19] for record in records]
        assert times == sorted(times)
        for record in records:
            flow = record.get("flow")
            if flow is None:
                continue
            assert record["node_name"] == flow["node_name"] == f"train-1/{path.parent.name}"
            assert flow["event_type"].get("sub_type") != 0 and flow.get("reply") is not False
            assert flow["Summary"] == "UDP" or flow["Summary"].startswith("TCP Flags: ")
            for end in (flow["source"], flow["destination"]):
                assert not any("topology" in label for label in end["labels"])


def test_lost_events_are_counted_as_they_were_lost(world: World, tmp_path: Path) -> None:
    lossy = replace(world, scenario=replace(world.scenario, event_loss=0.2))
    whole = hubble_files.write(world, tmp_path / "whole")
    counts = hubble_files.write(lossy, tmp_path / "in")
    lake = Lake(tmp_path / "lake")
    staged(hubble, tmp_path / "in", lake)
    control = pl.read_parquet(lake.held_files(hubble.CONTROL)).filter(pl.col("control_kind") == "lost_events")
    assert control["events_lost"].sum() == counts["lost"] > 0
    assert counts["records"] - control.height + counts["lost"] == whole["records"]
    assert not control.select("node_name", pl.col("time_ns") // (10 * MINUTE)).is_duplicated().any()


# --- VPC flow logs -------------------------------------------------------------------------------------------------
def test_vpc_counts_close(vpc: Vpc) -> None:
    counts, lake, rows = vpc
    loads = lake.loads()
    assert loads["rows_rejected"].sum() == loads["rows_duplicate"].sum() == 0
    gaps = pl.read_parquet(lake.held_files(vpc_flow_logs.GAP))
    assert rows.height + gaps.height == counts["records"]
    statuses = Counter(gaps["log_status"])
    assert statuses["SKIPDATA"] == 1 and statuses["NODATA"] > 0
    assert set(rows["action"]) == {"ACCEPT", "REJECT"}


def test_bytes_sum_exactly_on_both_interfaces(vpc: Vpc) -> None:
    rows = vpc[2]

    def sums(connection: SimConnection) -> dict[tuple[str, str, bool], int]:
        part = of(rows, connection).with_columns(sent=pl.col("source_port") == connection.client_port)
        grouped = part.group_by("instance_id", "flow_direction", "sent").agg(pl.col("bytes").sum())
        return {(instance, direction, sent): total for instance, direction, sent, total in grouped.iter_rows()}

    for connection in (LONG, LOOKUP):
        sent, received = connection.sent_bytes, connection.received_bytes
        assert sums(connection) == {
            ("i-0", "egress", True): sent, ("i-1", "ingress", True): sent,
            ("i-1", "egress", False): received, ("i-0", "ingress", False): received,
        }  # fmt: skip
    assert sums(OUTSIDE) == {("i-0", "egress", True): 3001, ("i-0", "ingress", False): 7_000_003}
    assert sums(TO_HOST) == {("i-0", "egress", True): 100, ("i-1", "ingress", True): 100}  # no bytes, no record
    assert sums(SAME_NODE) == sums(DROPPED) == {}


def test_records_lie_in_their_slot_and_carry_the_capturing_zone(vpc: Vpc) -> None:
    rows, slot = vpc[2], 10 * MINUTE
    assert (rows["start_ns"] // slot == (rows["end_ns"] - 1) // slot).all()
    assert (rows["end_ns"] > rows["start_ns"]).all()
    assert set(rows.select("instance_id", "interface_id", "az_id").rows()) == {
        ("i-0", "eni-0", "use1-az4"),
        ("i-1", "eni-1", "use1-az6"),
    }
    assert of(rows, LOOKUP).height == 8  # it touches two slots
    paths = of(rows, OUTSIDE).select("flow_direction", "traffic_path").unique().rows()
    assert sorted(paths) == [("egress", 8), ("ingress", None)]
    assert set(of(rows, TO_HOST)["destination_ip"]) == {N1.ip}


def test_an_interval_without_data_has_no_record(vpc: Vpc) -> None:
    _, lake, rows = vpc
    slot = 10 * MINUTE
    busy = set(rows.select("interface_id", pl.col("start_ns") // slot).rows())
    gaps = pl.read_parquet(lake.held_files(vpc_flow_logs.GAP)).filter(pl.col("log_status") == "NODATA")
    assert not busy & set(gaps.select("interface_id", pl.col("start_ns") // slot).rows())


def test_the_same_world_writes_the_same_bytes(world: World, tmp_path: Path) -> None:
    for folder in (tmp_path / "one", tmp_path / "two"):
        hubble_files.write(world, folder)
        vpc_flow_log_files.write(world, folder)
    files = sorted(path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*") if path.is_file())
    assert files
    for name in files:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
