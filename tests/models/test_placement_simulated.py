"""Placement and job runs of a simulated cluster against what is true of it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from connectors.kubernetes import stage
from connectors.objects import Source
from connectors.simulated import kubernetes_files
from connectors.simulated.scenario import build_world
from connectors.simulated.world import Scenario, SimPod, World
from connectors.sink import Lake
from models.contracts import TABLES
from models.engine.warehouse import Warehouse, Window
from models.parameters import MINUTE_NS, SECOND_NS, Parameters
from models.placement import build_placement, stable_key

Placed = tuple[World, dict[str, dict[str, Any]], dict[int, dict[str, Any]], Warehouse]


def placed(folder: Path, **options: Any) -> Placed:
    """(world, pod lives by uid, runs by key, warehouse) of one simulated day, recorded every half hour."""
    scenario = Scenario(days=1, snapshot_minutes=30, **options)
    world = build_world(scenario)
    kubernetes_files.write(world, folder / "kubernetes")
    lake = Lake(folder / "lake")
    stage(Source("k", "kubernetes", folder / "kubernetes", cluster=scenario.cluster), lake, lambda text: None)
    warehouse = Warehouse()
    warehouse.stage_frames()
    for name in TABLES:
        for file in lake.held_files(name) if name.endswith(("_observation", ".snapshot")) else []:
            warehouse.con.execute(f"INSERT INTO {name} BY NAME SELECT * FROM read_parquet('{file}')")
    cluster = {"cluster": scenario.cluster, "provider": "aws", "region": scenario.region}
    warehouse.append("staging.cluster", TABLES["staging.cluster"].frame([cluster]))
    build_placement(warehouse, Window(scenario.start, scenario.start + timedelta(days=1)), Parameters())
    pods = {row["pod_uid"]: row for row in warehouse.table("core.pod_life").iter_rows(named=True)}
    runs = {row["job_key"]: row for row in warehouse.table("core.job_run").iter_rows(named=True)}
    return world, pods, runs, warehouse


def ended_ns(pod: SimPod, world: World) -> int:
    return min(time for time in (pod.finished_ns, pod.deleted_ns, world.to_ns) if time is not None)


@pytest.fixture(scope="module", params=[1, 2])
def with_watch(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Placed]:
    found = placed(tmp_path_factory.mktemp("watched"), seed=request.param)
    yield found
    found[3].close()


def test_p1_p6_with_a_watch_every_pod_is_held_for_its_true_time(with_watch: Placed) -> None:
    world, pods, _, _ = with_watch
    bound = [pod for pod in world.pods if pod.scheduled_ns is not None]
    assert len(bound) > 30
    for pod in bound:
        found = pods[pod.uid]
        assert abs(found["held_from_ns"] - pod.scheduled_ns) < SECOND_NS, pod.name
        assert abs(min(found["held_to_ns"], world.to_ns) - ended_ns(pod, world)) <= 2 * SECOND_NS, pod.name
        assert found["gpus"] == pod.gpus
    for pod in world.pods:
        if pod.scheduled_ns is None and pod.uid in pods:
            assert pods[pod.uid]["held_from_ns"] is None, pod.name


def test_p5_n2_every_pod_is_in_its_run_with_its_role(with_watch: Placed) -> None:
    world, pods, runs, _ = with_watch
    for pod in world.pods:
        found = pods[pod.uid]
        if pod.job is None:
            assert found["job_key"] == -1, pod.name
            continue
        run = runs[found["job_key"]]
        assert (run["kind"], run["namespace"], run["name"], run["run"]) == (
            pod.job.kind,
            pod.job.namespace,
            pod.job.name,
            pod.job.uid,
        )
        assert found["role"] == pod.role, pod.name


def test_p4_every_pod_is_on_its_node_and_in_its_zone(with_watch: Placed) -> None:
    world, pods, _, warehouse = with_watch
    zones = dict(warehouse.table("core.zone").select("zone_key", "zone").rows())
    for pod in world.pods:
        if pod.node is not None:
            assert pods[pod.uid]["node_key"] == stable_key(world.scenario.cluster, pod.node.uid), pod.name
            assert zones[pods[pod.uid]["zone_key"]] == pod.node.zone.name


def test_p2_an_address_has_one_owner_at_a_time_and_it_is_the_true_one(with_watch: Placed) -> None:
    world, _, _, warehouse = with_watch
    overlaps = warehouse.query(
        "SELECT count(*) AS n FROM core.pod_address AS a JOIN core.pod_address AS b ON a.cluster = b.cluster AND a.ip = b.ip"
        " AND a.pod_uid < b.pod_uid AND a.valid_from_ns < b.valid_to_ns AND b.valid_from_ns < a.valid_to_ns"
    )
    assert overlaps["n"][0] == 0
    spans = {(row["ip"], row["pod_uid"]): row for row in warehouse.table("core.pod_address").iter_rows(named=True)}
    live = [
        p
        for p in world.pods
        if p.ip and not p.host_network and p.ready_to_start_ns and p.ready_to_start_ns < world.to_ns
    ]
    reused = {p.ip for p in live for q in live if p.ip == q.ip and p.uid != q.uid}
    assert reused, "the scenario reuses addresses"
    for pod in live:
        middle = (pod.ready_to_start_ns + ended_ns(pod, world)) // 2  # type: ignore[operator]
        row = spans[(pod.ip, pod.uid)]
        assert row["valid_from_ns"] <= middle < row["valid_to_ns"] and not row["rival"], pod.name


def test_p1_lists_alone_end_a_pod_within_what_they_say_they_do_not_know(tmp_path: Path) -> None:
    world, pods, _, warehouse = placed(tmp_path, seed=1, watch=False)
    warehouse.close()
    unseen = 0
    for pod in world.pods:
        found = pods.get(pod.uid)
        if found is None:
            life = ended_ns(pod, world) - pod.created_ns
            assert life < 30 * MINUTE_NS, "only a pod shorter than the interval can be missed (K1)"
            unseen += 1
        elif found["held_to_ns"] is not None and not found["still_alive"]:
            late = found["held_to_ns"] - ended_ns(pod, world)
            assert -2 * SECOND_NS <= late <= found["to_uncertainty_ns"] + 2 * SECOND_NS, pod.name
    assert unseen > 0, "the scenario has pods shorter than the interval"
