"""Placement: lives from sightings and stamps (P1), owners of addresses (P2), zones (P4), GPUs held (P6)."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest

from models.contracts import TABLES
from models.engine.warehouse import Warehouse, Window, utc_ns
from models.parameters import SECOND_NS, Parameters
from models.placement import build_placement, stable_key

DAY = Window(date(2026, 11, 23), date(2026, 11, 24))


def at(clock: str) -> int:
    return utc_ns(f"2026-11-23T{clock}:00Z" if clock.count(":") == 1 else f"2026-11-23T{clock}Z")


def snapshot(clock: str, kind: str = "Pod", **more: Any) -> dict[str, Any]:
    return {
        "snapshot_id": f"{kind}-{clock}", "object_id": "o", "cluster": "c1", "resource_kind": kind, "observed_ns": at(clock),
        "observed_basis": "envelope", "mode": "list", "complete": True, "items": 1, **more,
    }  # fmt: skip


def pod(clock: str, uid: str = "u1", **more: Any) -> dict[str, Any]:
    return {
        "object_id": "o", "snapshot_id": f"Pod-{clock}", "cluster": "c1", "observed_ns": at(clock), "mode": "list",
        "uid": uid, "namespace": "ml", "name": f"pod-{uid}", "node_name": "n1", "host_network": False,
        "pod_ips": '["10.0.0.5"]', "phase": "Running", "created_ns": at("09:58"), "scheduled_ns": at("09:59"),
        "ready_to_start_ns": at("10:00"), "main_started_ns": at("10:00"), "gpus": 8.0, "gpu_resource": "nvidia.com/gpu", **more,
    }  # fmt: skip


def node(clock: str, **more: Any) -> dict[str, Any]:
    return {
        "object_id": "o", "snapshot_id": f"Node-{clock}", "cluster": "c1", "observed_ns": at(clock), "mode": "list",
        "uid": "node-1", "name": "n1", "created_ns": at("08:00"), "lifecycle": "on_demand", "gpus": 8.0,
        "zone": "us-east-1a", "zone_basis": "label", "region": "us-east-1", "internal_ips": '["10.1.0.1"]', **more,
    }  # fmt: skip


def build(warehouse: Warehouse, **tables: list[dict[str, Any]]) -> Warehouse:
    cluster = [{"cluster": "c1", "provider": "aws", "region": "us-east-1"}]
    for name, rows in {"cluster": cluster, **tables}.items():
        warehouse.append(f"staging.{name}", TABLES[f"staging.{name}"].frame(rows))
    build_placement(warehouse, DAY, Parameters())
    return warehouse


def life(warehouse: Warehouse, uid: str = "u1") -> dict[str, Any]:
    return warehouse.query("SELECT * FROM core.pod_life WHERE pod_uid = $uid", {"uid": uid}).row(0, named=True)


def test_p1_absence_from_a_complete_snapshot_ends_a_pod(warehouse: Warehouse) -> None:
    build(warehouse, snapshot=[snapshot("10:00"), snapshot("10:10")], pod_observation=[pod("10:00")])
    found = life(warehouse)
    assert (found["held_to_ns"], found["to_basis"], found["still_alive"]) == (
        at("10:10"),
        "missing_from_snapshot",
        False,
    )
    assert found["to_uncertainty_ns"] == 600 * SECOND_NS


def test_p1_absence_from_a_partial_snapshot_says_nothing(warehouse: Warehouse) -> None:
    lists = [snapshot("10:00"), snapshot("10:10", complete=False, scope="other")]
    build(warehouse, snapshot=lists, pod_observation=[pod("10:00")])
    assert life(warehouse)["still_alive"]


def test_p1_after_the_last_sighting_one_median_interval_at_most_an_hour(warehouse: Warehouse) -> None:
    lists = [snapshot(clock) for clock in ("10:00", "10:10", "10:20")]
    build(warehouse, snapshot=lists, pod_observation=[pod("10:00"), pod("10:10"), pod("10:20")])
    assert (life(warehouse)["held_to_ns"], life(warehouse)["to_basis"]) == (at("10:30"), "last_seen")


def test_p1_lifecycle_stamps_beat_snapshot_times(warehouse: Warehouse) -> None:
    done = pod("10:10", phase="Succeeded", finished_ns=at("10:03"))
    build(warehouse, snapshot=[snapshot("10:00"), snapshot("10:10")], pod_observation=[pod("10:00"), done])
    found = life(warehouse)
    assert (found["held_to_ns"], found["to_basis"], found["succeeded"]) == (at("10:03"), "finished", True)


def test_p1_a_watched_deletion_is_the_end(warehouse: Warehouse) -> None:
    gone = pod("10:04", mode="deleted")
    build(warehouse, snapshot=[snapshot("10:00"), snapshot("10:10")], pod_observation=[pod("10:00"), gone])
    assert (life(warehouse)["held_to_ns"], life(warehouse)["to_basis"]) == (at("10:04"), "deleted")


def test_p1_an_update_with_an_empty_address_closes_nothing(warehouse: Warehouse) -> None:
    later = pod("10:10", pod_ips=None, phase="Running")
    build(warehouse, snapshot=[snapshot("10:00"), snapshot("10:10")], pod_observation=[pod("10:00"), later])
    address = warehouse.table("core.pod_address").row(0, named=True)
    assert (address["ip"], address["valid_to_ns"]) == ("10.0.0.5", at("10:20"))


def test_p1_coverage_has_a_gap_where_no_list_was_taken(warehouse: Warehouse) -> None:
    lists = [snapshot(clock) for clock in ("01:00", "01:10", "01:20", "08:00")]
    build(warehouse, snapshot=lists, pod_observation=[pod("01:00")])
    spans = warehouse.table("core.placement_coverage").sort("from_ns").select("from_ns", "to_ns").rows()
    assert spans == [(at("01:00"), at("01:30")), (at("08:00"), at("08:10"))]


def test_p2_a_terminated_pod_that_is_still_listed_never_wins(warehouse: Warehouse) -> None:
    old = pod("12:10", "old", phase="Succeeded", finished_ns=at("12:00"))
    new = pod("12:10", "new", scheduled_ns=at("12:02"), ready_to_start_ns=at("12:03"), main_started_ns=at("12:03"))
    build(warehouse, snapshot=[snapshot("12:10")], pod_observation=[old, new])
    owners = (
        warehouse.table("core.pod_address")
        .sort("valid_from_ns")
        .select("pod_uid", "valid_from_ns", "valid_to_ns")
        .rows()
    )
    assert [(uid, end) for uid, _, end in owners][0] == ("old", at("12:00"))
    assert owners[1][:2] == ("new", at("12:03"))


def test_p2_rivals_that_time_cannot_separate_are_marked(warehouse: Warehouse) -> None:
    both = [pod("10:00", "a"), pod("10:00", "b")]
    build(warehouse, snapshot=[snapshot("10:00")], pod_observation=both)
    assert warehouse.table("core.pod_address")["rival"].to_list() == [True]


def test_p2_the_later_owner_ends_the_earlier_one(warehouse: Warehouse) -> None:
    first, second = pod("10:00", "a"), pod("11:00", "b", ready_to_start_ns=at("10:30"), main_started_ns=at("10:30"))
    build(warehouse, snapshot=[snapshot("10:00"), snapshot("11:00")], pod_observation=[first, second])
    rows = warehouse.table("core.pod_address").sort("valid_from_ns").select("pod_uid", "valid_to_ns", "rival").rows()
    assert rows[0] == ("a", at("10:30"), False)


def test_p3_a_host_network_pod_owns_no_address_but_its_node_does(warehouse: Warehouse) -> None:
    host = pod("10:00", host_network=True, pod_ips='["10.1.0.1"]')
    build(warehouse, snapshot=[snapshot("10:00")], pod_observation=[host], node_observation=[node("10:00")])
    assert warehouse.table("core.pod_address").height == 0
    assert warehouse.table("core.node_address")["ip"].to_list() == ["10.1.0.1"]


def test_p4_declared_and_actual_zone_are_kept_apart(warehouse: Warehouse) -> None:
    labelled = pod("10:00", labels='{"zone":"zone-b"}')
    build(warehouse, snapshot=[snapshot("10:00")], pod_observation=[labelled], node_observation=[node("10:00")])
    assert life(warehouse)["declared_zone"] == "zone-b"
    assert life(warehouse)["zone_key"] == stable_key("aws", "us-east-1", "us-east-1a")


def test_p4_an_unknown_zone_stays_unknown(warehouse: Warehouse) -> None:
    bare = node("10:00", zone=None, zone_basis=None)
    build(warehouse, snapshot=[snapshot("10:00")], pod_observation=[pod("10:00")], node_observation=[bare])
    assert life(warehouse)["zone_key"] == -1


@pytest.mark.parametrize("label", ["us-east-1b", "0"])
def test_p4_the_pods_own_label_is_a_fallback_but_never_a_fault_domain(warehouse: Warehouse, label: str) -> None:
    bare = node("10:00", zone=None, zone_basis=None)
    labelled = pod("10:00", labels=f'{{"topology.kubernetes.io/zone":"{label}"}}')
    build(warehouse, snapshot=[snapshot("10:00")], pod_observation=[labelled], node_observation=[bare])
    zones = [(row["zone"], row["zone_basis"]) for row in warehouse.table("core.node_life").to_dicts()]
    assert zones == [("us-east-1b", "pod_label") if label != "0" else (None, None)]


def test_p4_a_node_that_comes_back_is_a_new_life(warehouse: Warehouse) -> None:
    again = node("10:10", uid="node-2", created_ns=at("10:05"))
    build(warehouse, snapshot=[snapshot("10:00", "Node"), snapshot("10:10", "Node")],
          node_observation=[node("10:00"), again])  # fmt: skip
    lives = warehouse.table("core.node_life").sort("valid_from_ns").select("node_uid", "valid_to_ns").rows()
    assert lives[0] == ("node-1", at("10:05"))


def test_p6_gpus_are_held_from_binding_to_the_end(warehouse: Warehouse) -> None:
    waiting = pod("10:10", phase="Pending", main_started_ns=None)
    build(warehouse, snapshot=[snapshot("10:00"), snapshot("10:10")], pod_observation=[waiting])
    found = life(warehouse)
    assert (found["held_from_ns"], found["gpus"], found["main_started_ns"]) == (at("09:59"), 8.0, None)


def test_p6_a_pod_that_was_never_bound_holds_nothing(warehouse: Warehouse) -> None:
    gated = pod(
        "10:00", node_name=None, scheduled_ns=None, start_ns=None, pod_ips=None, unscheduled_reason="SchedulingGated"
    )
    build(warehouse, snapshot=[snapshot("10:00")], pod_observation=[gated])
    assert (life(warehouse)["held_from_ns"], life(warehouse)["held_to_ns"]) == (None, None)


def test_n7_the_order_of_sightings_does_not_matter(warehouse: Warehouse) -> None:
    rows = [pod("10:00"), pod("10:10", waiting_reason="CrashLoopBackOff"), pod("10:20", mode="deleted")]
    build(warehouse, snapshot=[snapshot("10:00"), snapshot("10:10")], pod_observation=rows)
    with Warehouse() as other:
        other.stage_frames()
        build(other, snapshot=[snapshot("10:10"), snapshot("10:00")], pod_observation=rows[::-1])
        for table in ("core.pod_life", "core.pod_address", "core.placement_coverage", "core.job_run"):
            assert warehouse.table(table).equals(other.table(table)), table
