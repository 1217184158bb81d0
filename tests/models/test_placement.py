"""Placement: lives from sightings and stamps (P1), owners of addresses (P2), zones (P4), GPUs held (P6)."""

from __future__ import annotations

import json
import shutil
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pytest

from connectors.kubernetes import stage
from connectors.objects import Source
from connectors.sink import Lake
from models.contracts import TABLES
from models.engine.warehouse import Warehouse, Window, utc_ns
from models.parameters import SECOND_NS, Parameters
from models.placement import build_dimensions, build_placement, region_of, stable_key

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
    assert (owners[0][0], owners[0][2]) == ("old", at("12:00"))
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


# --- P1 along a watch, and what lasts shorter than its pod ----------------------------------------------------------
def watched(clock_from: str, clock_to: str, kind: str = "Pod", **more: Any) -> dict[str, Any]:
    return snapshot(
        clock_from, kind, snapshot_id=f"w-{clock_from}", mode="watch", complete=False, watch_to_ns=at(clock_to), **more
    )


def test_p1_a_watch_without_a_gap_keeps_a_pod_alive(warehouse: Warehouse) -> None:
    lists = [snapshot("10:00"), watched("09:59", "16:00")]
    build(warehouse, snapshot=lists, pod_observation=[pod("10:00")])
    found = life(warehouse)
    assert (found["held_to_ns"], found["to_basis"], found["still_alive"]) == (at("17:00"), "last_seen", True)
    spans = warehouse.table("core.placement_coverage").select("from_ns", "to_ns").rows()
    assert spans == [(at("10:00"), at("16:00") + 1)]


@pytest.mark.parametrize(
    "stretch", [watched("10:30", "16:00"), watched("09:00", "16:00", scope="ml"), watched("09:00", "16:00", "Node")]
)
def test_p1_a_watch_that_did_not_see_the_pod_says_nothing_of_it(warehouse: Warehouse, stretch: dict[str, Any]) -> None:
    """A stretch that begins after the last sighting, is limited to a namespace, or is of another kind."""
    build(warehouse, snapshot=[snapshot("10:00"), stretch], pod_observation=[pod("10:00")])
    assert life(warehouse)["held_to_ns"] == at("11:00")


def test_p1_a_list_narrows_the_end_down_to_the_watch_before_it(warehouse: Warehouse) -> None:
    lists = [snapshot("10:00"), watched("09:59", "10:08"), snapshot("10:10")]
    build(warehouse, snapshot=lists, pod_observation=[pod("10:00")])
    assert (life(warehouse)["held_to_ns"], life(warehouse)["to_uncertainty_ns"]) == (at("10:10"), 120 * SECOND_NS)


def test_p1_a_deletion_before_a_later_sighting_was_none(warehouse: Warehouse) -> None:
    """A watch with a selector says DELETED of a pod that only left the selection."""
    rows = [pod("10:02", mode="deleted"), pod("10:10")]
    build(warehouse, snapshot=[snapshot("10:00"), snapshot("10:10")], pod_observation=rows)
    assert life(warehouse)["still_alive"]


def test_p1_an_evicted_pod_ends_when_it_was_first_seen_terminal(warehouse: Warehouse) -> None:
    rows = [
        pod("10:00"),
        pod("10:10", phase="Failed", reason="Evicted"),
        pod("10:20", phase="Failed", reason="Evicted"),
    ]
    build(warehouse, snapshot=[snapshot(c) for c in ("10:00", "10:10", "10:20")], pod_observation=rows)
    found = life(warehouse)
    assert (found["held_to_ns"], found["to_basis"], found["to_uncertainty_ns"]) == (
        at("10:10"),
        "terminal_seen",
        600 * SECOND_NS,
    )


def test_p6_a_completed_pod_that_stays_listed_holds_nothing(warehouse: Warehouse) -> None:
    """Case 21."""
    rows = [pod(c, phase="Succeeded", finished_ns=at("10:03")) for c in ("11:00", "15:00", "23:00")]
    build(warehouse, snapshot=[snapshot(c) for c in ("11:00", "15:00", "23:00")], pod_observation=rows)
    assert life(warehouse)["held_to_ns"] == at("10:03")


def test_p1_a_deletion_that_is_only_requested_ends_nothing(warehouse: Warehouse) -> None:
    """Case 10."""
    rows = [pod("10:00", delete_requested_ns=at("10:00")), pod("10:10", delete_requested_ns=at("10:00"))]
    build(warehouse, snapshot=[snapshot("10:00"), snapshot("10:10")], pod_observation=rows)
    assert life(warehouse)["still_alive"]


def test_a_start_before_the_binding_is_skew_and_changes_nothing(warehouse: Warehouse) -> None:
    """Case 52: the kubelet's clock is ten seconds behind the scheduler's."""
    build(warehouse, snapshot=[snapshot("10:00")], pod_observation=[pod("10:00", start_ns=at("09:58:50"))])
    assert (life(warehouse)["held_from_ns"], life(warehouse)["from_basis"]) == (at("09:59"), "scheduled")


def test_the_waiting_reason_is_the_one_of_the_last_sighting(warehouse: Warehouse) -> None:
    rows = [pod("10:00", waiting_reason="ImagePullBackOff"), pod("10:10", waiting_reason=None)]
    build(warehouse, snapshot=[snapshot("10:00"), snapshot("10:10")], pod_observation=rows)
    found = life(warehouse)
    assert (found["waiting_reason"], found["image_pulling_from_ns"], found["image_pulling_to_ns"]) == (
        None,
        at("10:00"),
        at("10:00"),
    )


def owners(warehouse: Warehouse) -> list[tuple[Any, ...]]:
    frame = warehouse.table("core.pod_address").sort("ip", "valid_from_ns", "pod_uid")
    return frame.select("ip", "pod_uid", "valid_from_ns", "valid_to_ns").rows()


def test_p1_an_address_ends_where_the_pod_shows_another(warehouse: Warehouse) -> None:
    rows = [pod("10:00"), pod("10:10", pod_ips='["10.0.0.9"]'), pod("10:20", pod_ips='["10.0.0.9"]')]
    build(warehouse, snapshot=[snapshot(c) for c in ("10:00", "10:10", "10:20")], pod_observation=rows)
    assert owners(warehouse) == [
        ("10.0.0.5", "u1", at("10:00"), at("10:10")),
        ("10.0.0.9", "u1", at("10:10"), at("10:30")),
    ]


def test_p1_dual_stack_is_two_addresses(warehouse: Warehouse) -> None:
    build(warehouse, snapshot=[snapshot("10:00")], pod_observation=[pod("10:00", pod_ips='["10.0.0.5","fd00::5"]')])
    assert [row[0] for row in owners(warehouse)] == ["10.0.0.5", "fd00::5"]


def test_p2_rivals_stay_rivals_only_while_both_claim(warehouse: Warehouse) -> None:
    """Case 6: the earlier pod is seen alive after the later began; before and after, one owner is certain."""
    first = [pod("10:00", "a"), pod("10:10", "a")]
    began = {"ready_to_start_ns": at("10:05"), "main_started_ns": at("10:05")}
    second = [pod("10:10", "b", **began), pod("10:20", "b", **began)]
    build(warehouse, snapshot=[snapshot(c) for c in ("10:00", "10:10", "10:20")], pod_observation=first + second)
    frame = (
        warehouse.table("core.pod_address")
        .sort("valid_from_ns")
        .select("pod_uid", "valid_from_ns", "valid_to_ns", "rival")
    )
    assert frame.rows() == [
        ("a", at("10:00"), at("10:05"), False),
        ("a", at("10:05"), at("10:20"), True),
        ("b", at("10:20"), at("10:30"), False),
    ]


# --- nodes and zones -------------------------------------------------------------------------------------------------
def test_a_pod_outlives_no_node(warehouse: Warehouse) -> None:
    lists = [snapshot("10:00"), snapshot("10:00", "Node"), snapshot("10:10", "Node")]
    build(warehouse, snapshot=lists, pod_observation=[pod("10:00")], node_observation=[node("10:00")])
    assert (life(warehouse)["held_to_ns"], life(warehouse)["to_basis"], life(warehouse)["still_alive"]) == (
        at("10:10"),
        "node_gone",
        False,
    )


def test_a_node_lives_as_long_as_pods_are_seen_on_it(warehouse: Warehouse) -> None:
    lists = [snapshot("10:00", "Node"), snapshot("10:00"), snapshot("18:00")]
    build(warehouse, snapshot=lists, pod_observation=[pod("10:00"), pod("18:00")], node_observation=[node("10:00")])
    assert warehouse.table("core.node_life")["valid_to_ns"].to_list() == [at("18:00")]
    assert life(warehouse)["node_key"] == stable_key("c1", "node-1")


@pytest.mark.parametrize(("bound", "uid"), [("09:00", "node-1"), ("10:04", None), ("10:06", "node-2")])
def test_p4_a_pod_runs_on_the_life_of_its_time(warehouse: Warehouse, bound: str, uid: str | None) -> None:
    """Node names come back: between two lives the name is nobody's."""
    gone = node("10:02", mode="deleted")
    again = node("10:10", uid="node-2", created_ns=at("10:05"), zone="us-east-1b")
    end = at("10:04:30") if uid is None else at("12:00")
    member = pod(
        "10:10", scheduled_ns=at(bound), ready_to_start_ns=None, main_started_ns=None, phase="Failed", finished_ns=end
    )
    build(warehouse, snapshot=[snapshot("10:00", "Node"), snapshot("10:10", "Node")],
          node_observation=[node("10:00"), gone, again], pod_observation=[member])  # fmt: skip
    assert life(warehouse)["node_key"] == (-1 if uid is None else stable_key("c1", uid))


def test_p4_a_pod_of_a_node_never_seen_keeps_its_own_zone(warehouse: Warehouse) -> None:
    labelled = pod(
        "10:00", labels='{"topology.kubernetes.io/zone":"us-east-1b","topology.kubernetes.io/region":"us-east-1"}'
    )
    build(warehouse, snapshot=[snapshot("10:00")], pod_observation=[labelled])
    key = stable_key("aws", "us-east-1", "us-east-1b")
    assert (life(warehouse)["node_key"], life(warehouse)["zone_key"]) == (-1, key)
    assert warehouse.table("core.zone")["zone_key"].to_list() == [key]


def bill(zone: str, instance: str = "i-1") -> dict[str, Any]:
    moment = datetime(2026, 11, 1)
    return {
        "delivery_id": "d", "object_id": "o", "row_number": 1, "provider": "aws", "billing_account_id": "1",
        "billing_period": "2026-11", "billing_period_start": moment, "billing_period_end": moment,
        "charge_period_start": moment, "charge_period_end": moment, "charge_category": "Usage", "billed_cost": 0,
        "billing_currency": "USD", "resource_id": instance, "availability_zone": zone,
    }  # fmt: skip


def capture(az_id: str, instance: str = "i-1") -> dict[str, Any]:
    return {
        "object_id": "o", "cluster": "c1", "line_number": 1, "instance_id": instance, "az_id": az_id, "source_ip": "10.0.0.1",
        "destination_ip": "10.0.0.2", "start_ns": at("10:00"), "end_ns": at("10:01"),
    }  # fmt: skip


OTHER = {"uid": "node-2", "name": "n2", "zone_id": "use1-az4", "instance_id": "i-2", "zone": "us-east-1d"}


@pytest.mark.parametrize(
    ("label", "billed", "captured", "expected"),
    [
        ("us-east-1b", "us-east-1c", "use1-az4", ("us-east-1b", "pod_label")),
        (None, "us-east-1c", "use1-az4", ("us-east-1c", "bill")),
        (None, None, "use1-az4", ("us-east-1d", "flow_log")),
        (None, None, "use1-az6", (None, None)),  # no node tells which zone that is
        (None, None, None, (None, None)),
    ],
)
def test_p4_the_order_of_the_fallbacks(
    warehouse: Warehouse,
    label: str | None,
    billed: str | None,
    captured: str | None,
    expected: tuple[str | None, str | None],
) -> None:
    labels = json.dumps({"topology.kubernetes.io/zone": label} if label else {})
    build(
        warehouse,
        snapshot=[snapshot("10:00")],
        node_observation=[node("10:00", zone=None, zone_basis=None, instance_id="i-1"), node("10:00", **OTHER)],
        pod_observation=[pod("10:00", labels=labels)],
        bill_line=[bill(billed)] if billed else [],
        vpc_flow=[capture(captured)] if captured else [],
    )
    found = {row["name"]: (row["zone"], row["zone_basis"]) for row in warehouse.table("core.node_life").to_dicts()}
    assert found["n1"] == expected


@pytest.mark.parametrize(
    ("zone", "region"),
    [("us-east-1a", "us-east-1"), ("us-gov-west-1b", "us-gov-west-1"), ("us-central1-a", "us-central1"),
     ("eastus-1", "eastus"), ("westus2-3", "westus2"), ("rack-b7", None), (None, None)],
)  # fmt: skip
def test_region_of_a_zone(zone: str | None, region: str | None) -> None:
    assert region_of(zone) == region


def test_a_plugin_that_restarts_takes_no_gpu_from_the_node(warehouse: Warehouse) -> None:
    build(warehouse, snapshot=[snapshot("10:00", "Node")], node_observation=[node("10:00"), node("10:10", gpus=0.0)])
    assert warehouse.table("core.node_life")["gpus"].to_list() == [8.0]


def test_p6_a_time_slice_is_a_share_of_a_gpu(warehouse: Warehouse) -> None:
    """Case 22: one of ten replicas."""
    shared = node("10:00", gpu_replicas=10.0)
    build(warehouse, snapshot=[snapshot("10:00")], node_observation=[shared], pod_observation=[pod("10:00", gpus=1.0)])
    assert life(warehouse)["gpus"] == pytest.approx(0.1)


def test_p6_claims_count_once_and_shared_ones_are_split(warehouse: Warehouse) -> None:
    """Case 24: a request that a claim serves is the same GPU; a claim of two pods is half a GPU each."""
    own = workload("ResourceClaim", "own", "rc1", replicas='{"gpu.nvidia.com":1}', annotations='{"reserved_for":["a"]}')
    shared = workload(
        "ResourceClaim", "two", "rc2", replicas='{"gpu.nvidia.com":1}', annotations='{"reserved_for":["b","c"]}'
    )
    pods = [
        pod("10:00", "a", gpus=1.0),
        pod("10:00", "b", gpus=0.0, gpu_resource=None),
        pod("10:00", "c", gpus=0.0, gpu_resource=None),
    ]
    build(warehouse, snapshot=[snapshot("10:00")], pod_observation=pods, workload_observation=[own, shared])
    assert [life(warehouse, uid)["gpus"] for uid in "abc"] == [1.0, 0.5, 0.5]
    assert life(warehouse, "b")["gpu_resource"] == "gpu.nvidia.com"


@pytest.mark.parametrize(
    ("more", "daemon"),
    [
        ({"owner_kind": "DaemonSet"}, True),
        ({"annotations": '{"kubernetes.io/config.mirror":"x"}'}, True),
        ({"namespace": "kube-system"}, True),
        ({"owner_kind": "Job"}, False),
    ],
)
def test_p3_what_is_a_daemon(warehouse: Warehouse, more: dict[str, Any], daemon: bool) -> None:
    build(warehouse, snapshot=[snapshot("10:00")], pod_observation=[pod("10:00", **more)])
    assert life(warehouse)["daemon"] is daemon


@pytest.mark.parametrize(
    ("resource", "bypasses"),
    [
        ("vpc.amazonaws.com/efa", True),
        ("rdma/hca_shared_devices_a", True),
        ("nvidia.com/sriov_rdma", True),
        ("nvidia.com/gpu", False),
    ],
)
def test_f4_resources_that_bypass_the_kernel(warehouse: Warehouse, resource: str, bypasses: bool) -> None:
    build(
        warehouse,
        snapshot=[snapshot("10:00")],
        pod_observation=[pod("10:00", resource_requests=json.dumps({resource: 1}))],
    )
    assert life(warehouse)["bypasses_kernel"] is bypasses


# --- runs ------------------------------------------------------------------------------------------------------------
def member(clock: str, uid: str, index: int, run: str = "job-1", **more: Any) -> dict[str, Any]:
    kf = {
        "job-name": "bert",
        "operator-name": "pytorchjob-controller",
        "replica-type": "worker",
        "replica-index": str(index),
    }
    labels = json.dumps({f"training.kubeflow.org/{key}": value for key, value in kf.items()} | {"team": "nlp"})
    return pod(clock, uid, name=f"bert-worker-{index}", labels=labels, pod_ips=None, owner_kind="PyTorchJob", owner_name="bert",
               owner_uid=run, **more)  # fmt: skip


def test_n2_a_recreated_worker_is_a_second_attempt_of_one_run(warehouse: Warehouse) -> None:
    """Case 11: the same name, a new uid."""
    rows = [
        member("10:00", "a", 0),
        member("10:10", "b", 0, created_ns=at("10:05"), scheduled_ns=at("10:05")),
        member("10:10", "c", 1),
    ]
    build(warehouse, snapshot=[snapshot("10:00"), snapshot("10:10")], pod_observation=rows)
    found = warehouse.table("core.pod_life").sort("pod_uid").select("pod_uid", "attempt").rows()
    assert found == [("a", 1), ("b", 2), ("c", 1)]
    (run,) = warehouse.table("core.job_run").to_dicts()
    assert (run["run"], run["gpus"], json.loads(run["team_labels"])["team"]) == ("job-1", 24.0, "nlp")


def test_n2_a_job_of_the_same_name_on_the_next_day_is_another_run(warehouse: Warehouse) -> None:
    """Case 12."""
    build(
        warehouse,
        snapshot=[snapshot("10:00")],
        pod_observation=[member("10:00", "a", 0), member("10:00", "b", 0, "job-2")],
    )
    assert warehouse.table("core.job_run")["run"].sort().to_list() == ["job-1", "job-2"]


def workload(kind: str, name: str, uid: str, **more: Any) -> dict[str, Any]:
    return {
        "object_id": "o", "snapshot_id": "w", "cluster": "c1", "observed_ns": at("10:00"), "mode": "list", "namespace": "ml",
        "api_version": "v1", "kind": kind, "name": name, "uid": uid, **more,
    }  # fmt: skip


def test_g4_the_pod_group_states_the_size(warehouse: Warehouse) -> None:
    objects = [
        workload("PyTorchJob", "bert", "job-1", replicas='{"worker":8}', state="Running"),
        workload(
            "PodGroup", "bert", "pg", owner_kind="PyTorchJob", owner_name="bert", owner_uid="job-1", min_members=6
        ),
    ]
    build(
        warehouse, snapshot=[snapshot("10:00")], pod_observation=[member("10:00", "a", 0)], workload_observation=objects
    )
    (run,) = warehouse.table("core.job_run").to_dicts()
    assert (run["declared_size"], run["size_basis"], run["gang"], run["state"]) == (6, "min_member", True, "Running")


def test_a_daemon_set_with_gpus_is_no_job(warehouse: Warehouse) -> None:
    build(warehouse, snapshot=[snapshot("10:00")], pod_observation=[pod("10:00", owner_kind="DaemonSet")])
    assert life(warehouse)["job_key"] == -1 and warehouse.table("core.job_run").is_empty()


# --- services --------------------------------------------------------------------------------------------------------
def service(clock: str, **more: Any) -> dict[str, Any]:
    return {
        "object_id": "o", "snapshot_id": f"Service-{clock}", "cluster": "c1", "observed_ns": at(clock), "mode": "list",
        "namespace": "ml", "name": "bert", "cluster_ips": '["10.9.0.1","fd00::9"]', "selector": '{"team":"nlp"}', **more,
    }  # fmt: skip


def test_t1_a_service_is_a_runs_while_all_ready_endpoints_are(warehouse: Warehouse) -> None:
    other = member("10:20", "z", 0, "job-2", main_started_ns=at("10:15"), scheduled_ns=at("10:14"))
    lists = [snapshot(c, k) for c in ("10:00", "10:10", "10:20") for k in ("Pod", "Service")]
    build(
        warehouse,
        snapshot=lists,
        pod_observation=[member(c, "a", 0) for c in ("10:00", "10:10", "10:20")] + [other],
        service_observation=[service(c) for c in ("10:00", "10:10", "10:20")],
    )
    rows = (
        warehouse.table("core.service_address")
        .sort("ip", "valid_from_ns")
        .select("ip", "job_key", "valid_from_ns")
        .rows()
    )
    run = stable_key("c1", "ml", "PyTorchJob", "bert", "job-1")
    assert rows == [
        (ip, key, at(clock)) for ip in ("10.9.0.1", "fd00::9") for key, clock in ((run, "10:00"), (-1, "10:15"))
    ]


def test_t1_a_service_without_ready_endpoints_is_no_runs(warehouse: Warehouse) -> None:
    build(warehouse, snapshot=[snapshot("10:00")], service_observation=[service("10:00")],
          pod_observation=[member("10:00", "a", 0, main_started_ns=None, ready_to_start_ns=None)])  # fmt: skip
    assert warehouse.table("core.service_address")["job_key"].to_list() == [-1, -1]


# --- dimensions ------------------------------------------------------------------------------------------------------
def test_dimensions_have_a_none_member_and_every_key_resolves(warehouse: Warehouse) -> None:
    build(
        warehouse,
        snapshot=[snapshot("10:00")],
        pod_observation=[member("10:00", "a", 0)],
        node_observation=[node("10:00")],
    )
    warehouse.con.execute("INSERT INTO core.processed_day VALUES (DATE '2026-11-23', 'digest')")
    build_dimensions(warehouse, DAY, Parameters())
    for name, key in (
        ("job", "job_key"),
        ("node", "node_key"),
        ("zone", "zone_key"),
        ("cluster", "cluster_key"),
        ("owner", "owner_key"),
    ):
        keys = warehouse.table(f"mart.dim_{name}")[key].to_list()
        assert -1 in keys and len(keys) == len(set(keys)), name
    assert set(warehouse.table("mart.dim_node")["zone_key"]) <= set(warehouse.table("mart.dim_zone")["zone_key"])
    days = warehouse.table("mart.dim_date").sort("date")
    assert (days.height, days["date"][0], days["date"][-1]) == (365, date(2026, 1, 1), date(2026, 12, 31))
    day = days.filter(days["date"] == date(2026, 11, 23)).row(0, named=True)
    assert (day["week"], day["month"], day["is_provisional"]) == ("2026-W48", "2026-11", 1)
    assert days.row(0, named=True)["week"] == "2026-W01"


# --- real files ------------------------------------------------------------------------------------------------------
def real(warehouse: Warehouse, folder: Path, *files: Path) -> None:
    """Stage real files and build placement from them."""
    (folder / "in").mkdir()
    for number, file in enumerate(files):
        shutil.copy(file, folder / "in" / f"{file.stem}-2026-11-23T1{number}-00-00Z{file.suffix}")
    lake = Lake(folder / "lake")
    stage(Source("k", "kubernetes", folder / "in", cluster="c1"), lake, lambda text: None)
    warehouse.append(
        "staging.cluster", TABLES["staging.cluster"].frame([{"cluster": "c1", "provider": "azure", "region": None}])
    )
    for table in ("snapshot", "pod_observation", "node_observation", "workload_observation", "service_observation"):
        for file in lake.held_files(f"staging.{table}"):
            warehouse.con.execute(f"INSERT INTO staging.{table} SELECT * FROM read_parquet('{file}')")
    build_placement(warehouse, DAY, Parameters())


def test_real_aks_snapshots_are_ten_pods_without_an_end(
    warehouse: Warehouse, tmp_path: Path, shared_data: Path
) -> None:
    """Cases 2 and 3: re-ordered, ten uids, nothing ended; the host-network address belongs to no pod."""
    folder = shared_data / "kubernetes"
    real(warehouse, tmp_path, *(folder / f"podlist_aks_api_snapshot{n}.json" for n in (1, 2)))
    pods = warehouse.table("core.pod_life")
    assert pods.height == 10 and pods["still_alive"].all()
    assert pods["last_seen_ns"].unique().to_list() == [at("11:00")]
    addresses = warehouse.table("core.pod_address")
    assert addresses.height == 5 and "10.224.0.6" not in addresses["ip"].to_list()


def test_real_pytorchjob_master_resolves(warehouse: Warehouse, tmp_path: Path, shared_data: Path) -> None:
    """A real Kubeflow pod under Volcano, on a node whose name is an address (case 4)."""
    real(warehouse, tmp_path, shared_data / "kubernetes" / "pod_pytorchjob_master_volcano_baidu_aihc.json")
    found = warehouse.table("core.pod_life").row(0, named=True)
    assert (found["role"], found["replica_type"], found["replica_index"], found["node_name"]) == (
        "coordinator",
        "master",
        0,
        "192.168.12.46",
    )
    (run,) = warehouse.table("core.job_run").to_dicts()
    assert (run["kind"], run["name"], run["run"]) == (
        "PyTorchJob",
        "job-test-3",
        "b3212c83-ca27-4989-a346-bed704eba7eb",
    )
    assert warehouse.table("core.pod_address")["ip"].to_list() == ["10.11.3.106"]


def test_real_eks_node_has_its_zone(warehouse: Warehouse, tmp_path: Path, shared_data: Path) -> None:
    """Case 13."""
    real(warehouse, tmp_path, shared_data / "kubernetes" / "nodelist_eks_legacy_zone_labels.json")
    found = warehouse.table("core.node_life").row(0, named=True)
    assert (found["zone"], found["zone_basis"], found["region"]) == ("us-east-2c", "legacy_label", "us-east-2")
    assert warehouse.table("core.node_address")["ip"].to_list() == ["10.0.105.29"]


def test_n7_the_order_of_sightings_does_not_matter(warehouse: Warehouse) -> None:
    rows = [pod("10:00"), pod("10:10", waiting_reason="CrashLoopBackOff"), pod("10:20", mode="deleted")]
    build(warehouse, snapshot=[snapshot("10:00"), snapshot("10:10")], pod_observation=rows)
    with Warehouse() as other:
        other.stage_frames()
        build(other, snapshot=[snapshot("10:10"), snapshot("10:00")], pod_observation=rows[::-1])
        for table in ("core.pod_life", "core.pod_address", "core.placement_coverage", "core.job_run"):
            assert warehouse.table(table).equals(other.table(table)), table
