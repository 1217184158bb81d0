"""`split`, `slow` and `stalled`: rules F1 and F4, and their look-alikes (F6)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from models.engine.warehouse import Warehouse
from tests.models.finding_world import (
    END,
    HOUR,
    TEN,
    ZONE_A,
    ZONE_B,
    at,
    connected,
    find,
    job,
    pod,
    retries,
    segment,
    volume,
)

Tables = dict[str, list[dict[str, Any]]]


def stretch(start: float, end: float, work: float | None, state: str = "busy") -> list[dict[str, Any]]:
    """Both workers in one state, w1 on the node in zone b."""
    return [segment(start, end, state, "w0", work), segment(start, end, state, "w1", work, node_key=12)]


def world(**changes: list[dict[str, Any]]) -> Tables:
    """Two workers of one run, in two zones from ten to noon; one worker in each."""
    tables: Tables = {
        "core.job_run": [job()],
        "core.pod_life": [
            pod("w0", held_from_ns=TEN, created_ns=TEN, held_to_ns=at(120), still_alive=False),
            pod("w1", ZONE_B, held_from_ns=TEN, created_ns=TEN, held_to_ns=at(120), still_alive=False),
        ],
        "core.gpu_state_segment": stretch(0, 120, 0.9),
    }
    return tables | {name.replace("__", "."): rows for name, rows in changes.items()}


EARLIER = 87  # a run of the same name, in one zone, the night before


def one_zone_before(hours: float = 3, work: float = 0.8, **changes: Any) -> Tables:
    start, end = -9 * 60, -9 * 60 + hours * 60
    life: dict[str, Any] = {
        "job_key": EARLIER,
        "held_from_ns": at(start),
        "created_ns": at(start),
        "held_to_ns": at(end),
        "still_alive": False,
    }
    runs = [job(), job(EARLIER, first_seen_ns=at(start), last_seen_ns=at(end), **changes)]
    pods = [pod("e0", **life), pod("e1", **life)]
    past = [segment(start, end, "busy", uid, work, job_key=EARLIER) for uid in ("e0", "e1")]
    return {"core.job_run": runs, "pods": pods, "past": past}


def slow_world(before: Tables, **changes: list[dict[str, Any]]) -> Tables:
    base = world(core__zone_traffic_hourly=[volume(10, 50), volume(11, 50)])
    now = changes.pop("now", stretch(0, 120, 0.3))
    tables = {
        **base,
        "core.job_run": before["core.job_run"],
        "core.pod_life": base["core.pod_life"] + before["pods"],
        "core.gpu_state_segment": now + before["past"],
    }
    return tables | {name.replace("__", "."): rows for name, rows in changes.items()}


# --- split --------------------------------------------------------------------------------------------------------
def test_f1_split_opens_after_ten_minutes_in_two_zones(warehouse: Warehouse) -> None:
    found = find(warehouse, world())
    split = found.pop("split")
    assert found == {}
    assert (split["first_evidence_ns"], split["opened_ns"], split["closed_ns"]) == (at(0), at(10), at(120))
    assert "members_apart" in split["summary"] and "us-east-1a and us-east-1b" in split["summary"]


def test_f1_f6_less_than_ten_minutes_apart_is_nothing(warehouse: Warehouse) -> None:
    pods = [pod("w0"), pod("w1", ZONE_B, held_from_ns=at(0), held_to_ns=at(9), still_alive=False)]
    assert find(warehouse, world(core__pod_life=pods)) == {}


def test_p4_f6_an_unknown_zone_is_not_another_zone(warehouse: Warehouse) -> None:
    assert find(warehouse, world(core__pod_life=[pod("w0"), pod("w1", -1)])) == {}


def test_f1_f6_an_evaluator_in_another_zone_is_no_member(warehouse: Warehouse) -> None:
    assert find(warehouse, world(core__pod_life=[pod("w0"), pod("x0", ZONE_B, "auxiliary", gpus=1.0)])) == {}


def test_f1_a_coordinator_without_gpus_away_from_every_gpu_is_split_with_its_reason(warehouse: Warehouse) -> None:
    split = find(warehouse, world(core__pod_life=[pod("w0"), pod("m0", ZONE_B, "coordinator")]))["split"]
    assert "coordinator_apart" in split["summary"]
    assert split["remedy"].startswith("Pin the coordinator to zone us-east-1a")


def test_f1_f6_a_coordinator_beside_any_gpu_of_a_run_is_not_apart(warehouse: Warehouse) -> None:
    pods = [pod("w0"), pod("m0", ZONE_A, "coordinator")]
    assert find(warehouse, world(core__pod_life=pods)) == {}


def test_f4_efa_over_two_zones_is_split_at_once(warehouse: Warehouse) -> None:
    requests = [
        {"object_id": "o", "snapshot_id": "s", "cluster": "c", "observed_ns": TEN, "mode": "list", "uid": uid, "namespace": "ml",
         "name": uid, "host_network": False, "resource_requests": '{"vpc.amazonaws.com/efa": "4"}'}
        for uid in ("w0", "w1")
    ]  # fmt: skip
    pods = [
        pod("w0", bypasses_kernel=True),
        pod("w1", ZONE_B, bypasses_kernel=True, held_from_ns=at(0), held_to_ns=at(3)),
    ]
    split = find(warehouse, world(core__pod_life=pods, staging__pod_observation=requests))["split"]
    assert "efa_cross_zone" in split["summary"] and split["opened_ns"] == at(0)


# --- slow ---------------------------------------------------------------------------------------------------------
def test_f4_slow_opens_on_the_first_half_hour_below_seventy_percent_of_the_baseline(warehouse: Warehouse) -> None:
    found = find(warehouse, slow_world(one_zone_before()))
    slow = found.pop("slow")
    assert found == {}  # F1: not split as well
    assert (slow["first_evidence_ns"], slow["opened_ns"], slow["closed_ns"]) == (at(0), at(30), at(120))
    assert slow["confidence"] == "complete" and "30% against 80%" in slow["summary"]
    assert "Pin all of the run" in slow["remedy"]


@pytest.mark.parametrize(
    "tables",
    [
        slow_world(one_zone_before(), now=stretch(0, 120, 0.6)),
        slow_world(one_zone_before(), core__zone_traffic_hourly=[volume(10, 1.5), volume(11, 1.5)]),
        slow_world(one_zone_before(), now=[*stretch(0, 120, 0.3)[:1], segment(0, 120, "busy", "w1", None)]),
        slow_world(one_zone_before(1.9)),
        slow_world(one_zone_before(name="other")),
        slow_world(one_zone_before(gpus=8.0)),
        slow_world(one_zone_before(), now=stretch(0, 14, 0.3) + stretch(14, 120, 0.8)),
    ],
    ids=["near_baseline", "half_a_gb_in_half_an_hour", "work_of_half_the_gpus", "short_baseline", "other_name", "other_size",
         "slow_for_less_than_half_a_window"],
)  # fmt: skip
def test_f4_f6_look_alikes_stay_split(warehouse: Warehouse, tables: Tables) -> None:
    assert set(find(warehouse, tables)) == {"split"}


def test_f4_work_never_rests_on_utilisation(warehouse: Warehouse) -> None:
    """GPU_UTIL alone gives no work: split, not slow."""
    assert set(find(warehouse, slow_world(one_zone_before(), now=stretch(0, 120, None)))) == {"split"}


def test_f4_without_baseline_a_fifth_of_the_time_in_common_stalls_opens_it(warehouse: Warehouse) -> None:
    pattern = [
        piece for m in range(0, 120, 10) for piece in stretch(m, m + 7, 0.8) + stretch(m + 7, m + 10, 0.1, "comm_stall")
    ]
    found = find(
        warehouse, world(core__gpu_state_segment=pattern, core__zone_traffic_hourly=[volume(10, 50), volume(11, 50)])
    )
    assert set(found) == {"slow"}
    assert found["slow"]["confidence"] == "partial" and "no baseline" in found["slow"]["summary"]


def test_f4_a_straggler_is_counter_evidence_not_slow(warehouse: Warehouse) -> None:
    """One GPU works while the other waits: never all of them together."""
    pattern = [segment(0, 120, "busy", "w0", 0.8), segment(0, 120, "comm_stall", "w1", 0.1)]
    found = find(
        warehouse, world(core__gpu_state_segment=pattern, core__zone_traffic_hourly=[volume(10, 50), volume(11, 50)])
    )
    assert set(found) == {"split"}


@pytest.mark.parametrize(("until", "kind"), [(119.5, "slow"), (20, "split")])
def test_f4_without_bytes_a_worker_connection_must_live_throughout(
    warehouse: Warehouse, until: float, kind: str
) -> None:
    live = (
        [connected(0.2, min(until, 59.9), "w0", "w1"), connected(60.1, until, "w0", "w1")]
        if until > 60
        else [connected(0.2, until, "w0", "w1")]
    )
    tables = slow_world(one_zone_before(), core__zone_traffic_hourly=[volume(10, None)], core__connection=live)
    found = find(warehouse, tables)
    assert set(found) == {kind}
    assert found[kind]["confidence"] == ("partial" if kind == "slow" else "complete")


def test_f4_slow_closes_after_half_an_hour_without_and_split_takes_over(warehouse: Warehouse) -> None:
    pods = [pod(uid, zone, held_from_ns=TEN, created_ns=TEN) for uid, zone in (("w0", ZONE_A), ("w1", ZONE_B))]
    tables = slow_world(one_zone_before(), now=stretch(0, 60, 0.3) + stretch(60, 600, 0.8))
    tables["core.pod_life"] = pods + one_zone_before()["pods"]
    tables["core.zone_traffic_hourly"] = [volume(hour, 50) for hour in range(10, 20)]
    found = find(warehouse, tables)
    last_window_end = at(60 + 15)  # beyond it more than half of the window works
    assert found["slow"]["closed_ns"] == last_window_end + HOUR // 2
    assert json.loads(found["split"]["spans"]) == [[last_window_end + HOUR // 2, END]]


# --- stalled ------------------------------------------------------------------------------------------------------
def one_zone(*segments: dict[str, Any]) -> Tables:
    return {"core.job_run": [job()], "core.pod_life": [pod("w0"), pod("w1")], "core.gpu_state_segment": list(segments)}


def test_f1_all_gpus_stalled_together_for_ten_minutes_whatever_the_zones(warehouse: Warehouse) -> None:
    waiting = [
        segment(0, 20, "comm_stall"),
        segment(5, 20, "comm_stall", "w1"),
        segment(0, 5, "busy", "w1"),
        segment(20, 60),
        segment(20, 60, uid="w1"),
    ]
    found = find(warehouse, one_zone(*waiting))
    assert set(found) == {"stalled"}
    assert (found["stalled"]["first_evidence_ns"], found["stalled"]["opened_ns"], found["stalled"]["closed_ns"]) == (
        at(5),
        at(15),
        at(20),
    )


@pytest.mark.parametrize(
    "segments",
    [
        [segment(0, 9, "comm_stall"), segment(0, 9, "comm_stall", "w1"), segment(9, 60), segment(9, 60, uid="w1")],
        [segment(0, 60, "comm_stall"), segment(0, 60, "busy", "w1")],
        [segment(0, 60, "comm_stall"), segment(0, 60, "unmeasured", "w1")],
        [segment(0, 60, "idle", cause="pause"), segment(0, 60, "idle", "w1", cause="pause")],
    ],
    ids=["nine_minutes", "straggler", "one_unmeasured", "checkpoint_pause"],
)
def test_f1_f6_look_alikes_of_a_stall_open_nothing(warehouse: Warehouse, segments: list[dict[str, Any]]) -> None:
    assert find(warehouse, one_zone(*segments)) == {}


def test_f1_healthy_traffic_to_storage_over_zones_opens_nothing(warehouse: Warehouse) -> None:
    tables = one_zone(segment(0, 120, "busy", work=0.8), segment(0, 120, "busy", "w1", work=0.8))
    tables["core.zone_traffic_hourly"] = [volume(10, 500, peer_job_key=-1, peer_role=None, peer_name="storage/minio")]
    tables["core.drop_attempt"] = retries(0, 9, destination="s0", destination_job_key=-1)
    assert find(warehouse, tables) == {}
