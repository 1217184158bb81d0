"""Why a GPU did nothing (G4): one cause a test, in the order of the rule, on one node for two hours unless said."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import polars as pl
import pytest

from models.contracts import TABLES
from models.engine.warehouse import Warehouse, Window
from models.gpu_states import build_gpu_causes, build_gpu_states
from models.parameters import Parameters
from tests.models.gpu_world import (
    DAY,
    JOB,
    WINDOW,
    at,
    covered,
    fill,
    hours_by,
    job,
    minutes_by,
    node,
    pod,
    samples,
    segments,
    states,
)

Row = dict[str, Any]


def idle(start: float = 0, end: float = 120, uid: str = "w0", gpu: str = "GPU-0") -> list[Row]:
    return samples(start, end, 0, uid=uid, gpu=gpu)


def active(start: float, end: float, uid: str = "w0", gpu: str = "GPU-0") -> list[Row]:
    return samples(start, end, 90, uid=uid, gpu=gpu)


def causes(warehouse: Warehouse, state: str = "idle", uid: str = "w0") -> list[tuple[str | None, float, float]]:
    """(cause, from, to) of a pod's stretches of one state."""
    found = segments(warehouse).filter((pl.col("state") == state) & (pl.col("pod_uid") == uid)).sort("from_ns")
    return found.select("cause", "start", "end").rows()


def finding(kind: str, *spans: tuple[float, float], key: int = JOB) -> Row:
    return {
        "finding_id": f"{kind}{key}", "kind": kind, "confidence": "complete", "cluster": "c", "job_key": key,
        "first_evidence_ns": at(spans[0][0]), "opened_ns": at(spans[0][0]), "status": "open", "idle_gpu_hours": 0.0, "counted": 1,
        "summary": "s", "evidence": "[]", "counter_evidence": "[]", "spans": json.dumps([[at(a), at(b)] for a, b in spans]),
    }  # fmt: skip


def sighting(minutes: float, uid: str = "w0", **changes: Any) -> Row:
    return {
        "object_id": "o", "snapshot_id": f"s{minutes}", "cluster": "c", "observed_ns": at(minutes), "mode": "list", "uid": uid,
        "namespace": "ml", "name": uid, "host_network": False,
    } | changes  # fmt: skip


# --- starting ------------------------------------------------------------------------------------------------------
def test_g4_a_start_is_creating_then_init_then_the_image_of_the_main_container(warehouse: Warehouse) -> None:
    late = pod(started=30, ready_to_start_ns=at(2), initialized_ns=at(20))
    fill(warehouse, core__pod_life=[late], staging__gpu_sample=active(30, 120))
    states(warehouse)
    assert causes(warehouse, "starting") == [("creating", 0, 2), ("init", 2, 20), ("image_pull", 20, 30)]


def test_g4_an_image_that_is_pulled_comes_before_init(warehouse: Warehouse) -> None:
    late = pod(
        started=30,
        ready_to_start_ns=at(2),
        initialized_ns=at(30),
        image_pulling_from_ns=at(4),
        image_pulling_to_ns=at(10),
    )
    fill(warehouse, core__pod_life=[late])
    states(warehouse)
    assert causes(warehouse, "starting") == [
        ("creating", 0, 2),
        ("init", 2, 4),
        ("image_pull", 4, 10),
        ("init", 10, 30),
    ]


def test_g4_an_image_that_never_came_is_the_cause_to_the_end(warehouse: Warehouse) -> None:
    stuck = pod(
        started=None,
        phase="Pending",
        waiting_reason="ImagePullBackOff",
        ready_to_start_ns=at(1),
        image_pulling_from_ns=at(1),
        image_pulling_to_ns=at(50),
    )
    fill(warehouse, core__pod_life=[stuck])
    states(warehouse)
    assert causes(warehouse, "starting") == [("creating", 0, 1), ("image_pull", 1, 120)]


def test_g4_init_containers_that_never_end_are_init(warehouse: Warehouse) -> None:
    waits = pod(started=None, phase="Pending", waiting_reason="PodInitializing", ready_to_start_ns=at(1))
    fill(warehouse, core__pod_life=[waits])
    states(warehouse)
    assert causes(warehouse, "starting") == [("creating", 0, 1), ("init", 1, 120)]


def test_g4_what_stands_between_init_and_a_start_that_failed_is_not_guessed(warehouse: Warehouse) -> None:
    broken = pod(
        started=None, phase="Pending", waiting_reason="CreateContainerConfigError", ready_to_start_ns=at(1),
        initialized_ns=at(3),
    )  # fmt: skip
    fill(warehouse, core__pod_life=[broken], core__job_run=[job(gang=False)])
    states(warehouse)
    assert causes(warehouse, "starting") == [("creating", 0, 1), ("init", 1, 3), ("unexplained", 3, 120)]


# --- idle ----------------------------------------------------------------------------------------------------------
def test_g4_no_work_is_never_active_since_the_start(warehouse: Warehouse) -> None:
    fill(warehouse, core__pod_life=[pod()], staging__gpu_sample=idle(0, 40) + active(40, 120))
    states(warehouse)
    assert causes(warehouse) == [("no_work", 0, 40)]


def test_g4_a_pause_lies_between_activity_and_is_no_longer_than_half_an_hour(warehouse: Warehouse) -> None:
    rows = active(0, 10) + idle(10, 40) + active(40, 50) + idle(50, 81) + active(81, 120)
    fill(warehouse, core__pod_life=[pod()], staging__gpu_sample=rows)
    states(warehouse)
    assert causes(warehouse) == [("pause", 10, 40), ("unexplained", 50, 81)]


@pytest.mark.parametrize(
    ("ended", "cause"), [(104, "unexplained"), (105.5, "finished_not_released"), (120, "finished_not_released")]
)
def test_g4_idle_to_the_end_after_activity_is_not_released(warehouse: Warehouse, ended: float, cause: str) -> None:
    """From 15 min of what is known of the pod."""
    fill(warehouse, core__pod_life=[pod(end=ended)], staging__gpu_sample=active(0, 90) + idle(90, ended))
    states(warehouse)
    assert causes(warehouse) == [(cause, 90, ended)]


def test_g4_a_pod_that_came_after_the_last_activity_has_finished_nothing(warehouse: Warehouse) -> None:
    """w1 worked and failed; w1b was created again, started, and waits for a member that never comes."""
    pods = [pod("w1", end=30, name="w1"), pod("w1b", start=35, started=36, name="w1", attempt=2)]
    fill(
        warehouse,
        core__pod_life=pods,
        core__job_run=[job(declared_size=2)],
        staging__gpu_sample=active(0, 30, "w1") + idle(36, 120, "w1"),
    )
    states(warehouse)
    assert causes(warehouse, uid="w1b") == [("waiting_for_members", 36, 120)]


def test_g4_a_gpu_of_the_run_that_works_to_the_end_means_that_it_is_not_finished(warehouse: Warehouse) -> None:
    rows = active(0, 30) + idle(30, 120) + active(0, 120, "w1", "GPU-1")
    fill(
        warehouse, core__node_life=[node(gpus=2)], core__pod_life=[pod(), pod("w1")], staging__gpu_sample=rows,
        core__job_run=[job(declared_size=2)],
    )  # fmt: skip
    states(warehouse)
    assert causes(warehouse) == [("unexplained", 30, 120)]


def test_g4_once_the_coordinator_succeeded_the_rest_is_not_released(warehouse: Warehouse) -> None:
    """The worker did nothing from the start, waiting or not: from the coordinator's end it has this cause."""
    done = pod("m0", end=60, gpus=0.0, role="coordinator", succeeded=True, finished_ns=at(60))
    fill(warehouse, core__pod_life=[pod(), done], staging__gpu_sample=idle(), core__job_run=[job(declared_size=2)])
    states(warehouse)
    assert causes(warehouse) == [("no_work", 0, 60), ("finished_not_released", 60, 120)]


def test_g4_a_coordinator_that_came_again_after_a_success_is_not_finished(warehouse: Warehouse) -> None:
    first = pod("m0", end=40, gpus=0.0, role="coordinator", succeeded=True, finished_ns=at(40))
    again = pod("m1", start=50, started=50, gpus=0.0, role="coordinator", attempt=1)
    fill(
        warehouse,
        core__pod_life=[pod(), first, again],
        core__job_run=[job(gang=False)],
        staging__gpu_sample=idle(0, 90) + active(90, 120),
    )
    states(warehouse)
    assert causes(warehouse) == [("no_work", 0, 90)]


def test_g4_a_gang_waits_for_the_members_that_have_not_started(warehouse: Warehouse) -> None:
    late = pod("w1", start=0, started=45)
    fill(
        warehouse,
        core__node_life=[node(gpus=2)],
        core__pod_life=[pod(), late],
        core__job_run=[job(declared_size=2)],
        staging__gpu_sample=idle(0, 60) + active(60, 120),
    )
    states(warehouse)
    assert causes(warehouse) == [("waiting_for_members", 0, 45), ("no_work", 45, 60)]


def test_g4_a_member_that_failed_is_missed_one_that_succeeded_is_not(warehouse: Warehouse) -> None:
    pods = [pod(), pod("w1", end=40), pod("w2", end=20, succeeded=True, finished_ns=at(20))]
    rows = active(0, 10) + idle(10, 80) + active(80, 120)
    fill(
        warehouse,
        core__node_life=[node(gpus=3)],
        core__pod_life=pods,
        core__job_run=[job(declared_size=3)],
        staging__gpu_sample=rows,
    )
    states(warehouse)
    assert causes(warehouse) == [("unexplained", 10, 40), ("waiting_for_members", 40, 80)]


def test_g4_a_run_that_is_no_gang_waits_for_nobody(warehouse: Warehouse) -> None:
    fill(
        warehouse, core__pod_life=[pod()], core__job_run=[job(declared_size=5, gang=False)], staging__gpu_sample=idle()
    )
    states(warehouse)
    assert causes(warehouse) == [("no_work", 0, 120)]


def test_g4_a_coordinator_that_never_started_keeps_a_gang_waiting(warehouse: Warehouse) -> None:
    master = pod("m0", gpus=0.0, role="coordinator", started=None, phase="Pending")
    fill(warehouse, core__pod_life=[pod(), master], core__job_run=[job(declared_size=None)], staging__gpu_sample=idle())
    states(warehouse)
    assert causes(warehouse) == [("waiting_for_members", 0, 120)]


def test_g4_a_member_that_is_created_again_is_a_restart_for_the_whole_gang(warehouse: Warehouse) -> None:
    """w1 fails at 30, is created again at 35 and starts at 50."""
    pods = [
        pod(),
        pod("w1", end=30, name="w1"),
        pod("w1b", start=36, started=50, name="w1", attempt=2, created_ns=at(35)),
    ]
    rows = active(0, 30) + idle(30, 70) + active(70, 120)
    fill(
        warehouse,
        core__node_life=[node(gpus=3)],
        core__pod_life=pods,
        core__job_run=[job(declared_size=2)],
        staging__gpu_sample=rows,
    )
    states(warehouse)
    assert causes(warehouse) == [("waiting_for_members", 30, 35), ("restarting", 35, 50), ("unexplained", 50, 70)]


def test_g4_a_main_container_that_waits_to_restart_is_restarting(warehouse: Warehouse) -> None:
    seen = [
        sighting(20, main_running=True),
        sighting(40, main_running=False, last_finished_ns=at(33), waiting_reason="CrashLoopBackOff"),
        sighting(50, main_running=False, last_finished_ns=at(33), waiting_reason="CrashLoopBackOff"),
        sighting(60, main_running=True, last_finished_ns=at(33)),
    ]
    rows = active(0, 33) + idle(33, 80) + active(80, 120)
    fill(warehouse, core__pod_life=[pod()], staging__gpu_sample=rows, staging__pod_observation=seen)
    states(warehouse)
    assert causes(warehouse) == [("restarting", 33, 60), ("unexplained", 60, 80)]


def test_g4_gpus_of_other_runs_lend_no_cause(warehouse: Warehouse) -> None:
    other = job() | {"job_key": 78, "name": "other", "declared_size": 9}
    pods = [pod(), pod("x0", job_key=78)]
    fill(
        warehouse, core__node_life=[node(gpus=2)], core__pod_life=pods, core__job_run=[job(), other],
        staging__gpu_sample=idle() + idle(0, 120, "x0", "GPU-1"),
    )  # fmt: skip
    states(warehouse)
    assert causes(warehouse) == [("no_work", 0, 120)]
    assert causes(warehouse, uid="x0") == [("waiting_for_members", 0, 120)]


def test_g4_only_idle_and_starting_carry_one_cause_and_their_hours_sum(warehouse: Warehouse) -> None:
    rows = active(20, 50) + idle(50, 120)
    fill(
        warehouse, core__node_life=[node(gpus=2)], core__pod_life=[pod(started=20, gpus=2.0)], staging__gpu_sample=rows
    )
    states(warehouse)
    assert hours_by(warehouse, "state") == pytest.approx(
        {"starting": 2 / 3, "idle": 7 / 6, "busy": 0.45, "underused": 0.05, "unmeasured": 10 / 6}, abs=1e-8
    )
    for state, cause in warehouse.table("core.gpu_state_hourly").select("state", "cause").unique().rows():
        assert (cause is not None) == (state in ("idle", "starting"))


def test_g4_causes_are_provisional_while_the_pod_lives(warehouse: Warehouse) -> None:
    fill(
        warehouse, core__node_life=[node(gpus=2)], core__pod_life=[pod(still_alive=True), pod("w1")],
        staging__gpu_sample=idle() + idle(0, 120, "w1", "GPU-1"),
    )  # fmt: skip
    found = states(warehouse)
    assert dict(found.select("pod_uid", "provisional").unique().rows()) == {"w0": True, "w1": False}


def test_g4_n7_causes_know_the_whole_life_of_a_pod_whatever_the_window(warehouse: Warehouse) -> None:
    """Active on the first day, idle to the end of the third: not released on every day, each run alone."""
    rows = samples(0, 60, 90, step=5) + samples(60, 2 * 1440, 0, step=5)
    fill(
        warehouse,
        core__node_life=[node(end=2 * 1440)],
        core__placement_coverage=[covered(0, 2 * 1440)],
        core__pod_life=[pod(end=2 * 1440)],
        staging__gpu_sample=rows,
    )
    for offset in (2, 0, 1):
        day = DAY + timedelta(days=offset)
        build_gpu_states(warehouse, Window(day, day + timedelta(days=1)), Parameters())
    found = segments(warehouse).filter(pl.col("state") == "idle")
    assert found["cause"].to_list() == ["finished_not_released"] * 3
    assert minutes_by(found, "cause") == {"finished_not_released": 2 * 1440 - 60}


# --- what rests on findings --------------------------------------------------------------------------------------
def test_g4_while_a_blocked_finding_is_open_policy_is_the_cause_after_creating_and_images(warehouse: Warehouse) -> None:
    late = pod(started=30, ready_to_start_ns=at(2), initialized_ns=at(20))
    fill(
        warehouse, core__pod_life=[late], staging__gpu_sample=idle(0, 90) + active(90, 120),
        core__finding=[finding("blocked", (1, 60)), finding("blocked", (0, 120), key=5)],
    )  # fmt: skip
    states(warehouse)
    before = hours_by(warehouse, "hour_utc", "state")
    build_gpu_causes(warehouse, WINDOW, Parameters())
    assert causes(warehouse, "starting") == [("creating", 0, 2), ("blocked_by_policy", 2, 20), ("image_pull", 20, 30)]
    assert causes(warehouse) == [("blocked_by_policy", 30, 60), ("no_work", 60, 90)]
    assert hours_by(warehouse, "hour_utc", "state") == pytest.approx(before, abs=1e-9)
    assert hours_by(warehouse, "cause")["blocked_by_policy"] == pytest.approx(48 / 60, abs=1e-9)


def test_g4_a_stall_carries_cross_zone_sync_while_slow_is_open_else_none(warehouse: Warehouse) -> None:
    values = {"gpu_util": 100.0, "tensor_active": 0.01, "dram_active": 0.02}
    stall = [row for metric, value in values.items() for row in samples(0, 120, value, metric)]
    fill(
        warehouse, core__pod_life=[pod()], staging__gpu_sample=stall,
        core__finding=[finding("slow", (30, 60), (90, 100)), finding("blocked", (0, 120))],
    )  # fmt: skip
    states(warehouse)
    build_gpu_causes(warehouse, WINDOW, Parameters())
    assert causes(warehouse, "comm_stall") == [
        (None, 0, 30), ("cross_zone_sync", 30, 60), (None, 60, 90), ("cross_zone_sync", 90, 100), (None, 100, 120),
    ]  # fmt: skip


def test_n7_a_finding_that_changed_leaves_no_trace(warehouse: Warehouse) -> None:
    """Relabelled twice, then with another finding, then with none: as if the earlier ones had never been."""
    fill(warehouse, core__pod_life=[pod()], staging__gpu_sample=idle())
    clean = states(warehouse)

    def relabelled(*rows: Row) -> pl.DataFrame:
        warehouse.replace("core.finding", TABLES["core.finding"].frame(list(rows)))
        build_gpu_causes(warehouse, WINDOW, Parameters())
        return segments(warehouse)

    first = relabelled(finding("blocked", (10, 60)))
    assert relabelled(finding("blocked", (10, 60))).equals(first)
    assert minutes_by(relabelled(finding("blocked", (20, 30), (50, 120))), "cause") == {
        "blocked_by_policy": 80.0, "no_work": 40.0,
    }  # fmt: skip
    assert relabelled().equals(clean)


def test_g2_on_a_shared_active_device_nothing_is_said_of_stalls(warehouse: Warehouse) -> None:
    """Both pods see the device's values, which look like a stall: no finding or cause rests on them."""
    shared = {"gpus": 0.5, "gpu_resource": "nvidia.com/gpu.shared"}
    values = {"gpu_util": 100.0, "tensor_active": 0.01, "dram_active": 0.02}
    rows = [
        row
        for uid in ("w0", "w1")
        for metric, value in values.items()
        for row in samples(0, 120, value, metric, uid=uid)
    ]
    fill(warehouse, core__pod_life=[pod(**shared), pod("w1", **shared)], staging__gpu_sample=rows)
    assert minutes_by(states(warehouse), "state", "activity_basis") == {("busy", "device_shared"): 120.0}


def test_g2_no_cause_rests_on_the_activity_of_a_shared_device(warehouse: Warehouse) -> None:
    """Never active is known of every holder; who was active later is not, so no pause and nothing unreleased."""
    rows = idle(0, 10) + active(10, 40) + idle(40, 50) + active(50, 60) + idle(60, 120)
    shared = pod(gpus=0.5, gpu_resource="nvidia.com/gpu.shared")
    fill(warehouse, core__pod_life=[shared], staging__gpu_sample=rows)
    states(warehouse)
    assert causes(warehouse) == [("no_work", 0, 10), ("unexplained", 40, 50), ("unexplained", 60, 120)]
