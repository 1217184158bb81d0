"""The simulated cluster: the same seed writes the same bytes, readers accept what it writes, and its truth adds up."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from decimal import Decimal
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq
import pytest

from connectors import aws_billing, hubble, kubernetes, network_policy, prometheus, vpc_flow_logs
from connectors.objects import Source
from connectors.simulated.bulk import write_connections, write_flow_records
from connectors.simulated.scenario import build_world
from connectors.simulated.simulate import simulate
from connectors.simulated.traffic import crosses_zones, hourly_bytes
from connectors.simulated.truth import gpu_hours
from connectors.simulated.world import Scenario, World
from connectors.sink import Lake

START_NS = 1_795_392_000 * 10**9
SMALL = Scenario(seed=3, days=1, snapshot_minutes=60, sample_seconds=300)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("simulated")
    simulate(folder, SMALL, lambda text: None)
    return folder


@pytest.fixture(scope="module")
def world() -> World:
    return build_world(SMALL)


def digests(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_the_same_seed_writes_the_same_bytes(written: Path, tmp_path: Path) -> None:
    simulate(tmp_path / "again", SMALL, lambda text: None)
    assert digests(written) == digests(tmp_path / "again")


@pytest.mark.parametrize(
    ("connector", "kind", "rejected"),
    [
        (kubernetes, "kubernetes", 0),
        (network_policy, "policies", 0),
        (prometheus, "prometheus", 0),
        (vpc_flow_logs, "vpc-flow-logs", 0),
        (hubble, "hubble", 1),  # the line that was cut in mid-write
    ],
)
def test_every_reader_accepts_what_the_simulator_writes(
    written: Path, tmp_path: Path, connector: object, kind: str, rejected: int
) -> None:
    lake = Lake(tmp_path / "lake")
    connector.stage(Source(kind, kind, written / kind, "train-1"), lake, lambda text: None)  # type: ignore[attr-defined]
    loads = lake.loads()
    assert loads["rows_rejected"].sum() == rejected
    assert loads["rows_kept"].sum() > 0


def test_b1_the_bill_is_read_whole(written: Path, tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    aws_billing.stage(Source("bill", "aws-cur2", written / "billing"), lake, lambda text: None)
    total = pl.read_parquet(lake.held_files("staging.bill_line"))["billed_cost"].sum()
    assert total == Decimal(json.loads((written / "truth" / "bill.json").read_text())["billed_usd"])


def test_the_world_has_what_makes_clusters_hard(world: World) -> None:
    assert len({node.zone.name for node in world.nodes}) == 3
    assert {node.lifecycle for node in world.nodes} == {"on_demand", "spot"}
    assert any(node.deleted_ns for node in world.nodes) and any(node.created_ns > world.from_ns for node in world.nodes)
    addresses = Counter(pod.ip for pod in world.pods if pod.ip and not pod.host_network)
    assert max(addresses.values()) > 1, "no address is used again"
    names = Counter((pod.namespace, pod.name) for pod in world.pods)
    assert max(names.values()) > 1, "no worker is re-created under its name"
    lengths = [pod.finished_ns - pod.created_ns for pod in world.pods if pod.finished_ns]
    assert min(lengths) < SMALL.snapshot_minutes * 60 * 10**9, "no pod is shorter than a snapshot interval"
    assert {kind for kind, _ in world.expected_findings} == {"blocked", "slow", "billed", "waiting", "unreleased"}
    assert {job.kind for job in world.jobs} == {"PyTorchJob", "MPIJob", "RayJob", "JobSet", "Job"}


def test_a_healthy_world_plants_nothing() -> None:
    healthy = build_world(Scenario(seed=3, days=1, planted=False))
    assert healthy.expected_findings == []
    members = [
        c
        for c in healthy.connections
        if c.client and c.server and c.client.job and c.client.job is c.server.job and c.client.gpus
    ]
    assert members and not any(crosses_zones(c) for c in members if c.server and c.server.gpus)


def test_bytes_are_drawn_over_at_least_four_decades(world: World) -> None:
    sizes = [c.sent_bytes + c.received_bytes for c in world.connections if c.protocol == "TCP" and not c.dropped_by]
    assert max(sizes) / max(1, min(size for size in sizes if size)) > 1e4


def test_hourly_bytes_sum_to_the_connection(world: World) -> None:
    for connection in world.connections:
        parts = list(hourly_bytes(connection))
        assert (sum(p[1] for p in parts), sum(p[2] for p in parts)) == (
            connection.sent_bytes,
            connection.received_bytes,
        )


def test_g1_the_truth_of_gpu_hours_sums_to_capacity(world: World) -> None:
    total = sum(float(str(row["gpu_hours"])) for row in gpu_hours(world))
    capacity = sum(
        node.gpus * (min(node.deleted_ns or world.to_ns, world.to_ns) - max(node.created_ns, world.from_ns)) / 3.6e12
        for node in world.nodes
    )
    assert total == pytest.approx(capacity, abs=1e-6)


def test_benchmark_records_are_exporter_records(tmp_path: Path) -> None:
    size = write_flow_records(tmp_path / "bulk", 2_000, nodes=5, seed=1, start_ns=START_NS, compress=True)
    lake = Lake(tmp_path / "lake")
    hubble.stage(Source("h", "hubble", tmp_path / "bulk", "train-1"), lake, lambda text: None)
    load = lake.loads().filter(pl.col("table_name") == "staging.hubble_flow")
    assert (load["rows_read"].sum(), load["rows_kept"].sum()) == (2_000, 2_000)
    assert size / 2_000 > 1_500


def test_benchmark_connections_are_written_a_batch_at_a_time(tmp_path: Path) -> None:
    write_connections(tmp_path / "c.parquet", 1_000_001, pods=100, seed=1, start_ns=START_NS)
    meta = pq.read_metadata(tmp_path / "c.parquet")
    assert (meta.num_rows, meta.num_row_groups) == (1_000_001, 2)
