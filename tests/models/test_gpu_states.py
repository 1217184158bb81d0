"""What each GPU did (G1-G3, P6, N3, N7, N8): one rule a test, on one node for two hours unless said."""

from __future__ import annotations

from datetime import date, timedelta
from itertools import pairwise

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from models.contracts import TABLES
from models.engine.warehouse import Warehouse, Window
from models.gpu_states import build_gpu_states, canonical_model, gpu_models, model_of, unrequested_use
from models.parameters import Parameters
from tests.models.gpu_world import (
    DAY,
    HOUR,
    MINUTE,
    NODE,
    WINDOW,
    at,
    billed,
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

EXACT = 1e-9
LATE = 14 * 60  # minutes from ten to midnight


# --- how long a sample stands ---------------------------------------------------------------------------------------
def test_g2_a_sample_holds_two_intervals_at_most_and_the_last_one_only_one(warehouse: Warehouse) -> None:
    """30 s apart; silent from 30 to 60; the last sample is at 89.5."""
    fill(warehouse, core__pod_life=[pod()], staging__gpu_sample=samples(0, 30, 50) + samples(60, 90, 50))
    silent = states(warehouse).filter(pl.col("state") == "unmeasured")
    assert silent.select("start", "end").rows() == [(30.5, 60.0), (90.0, 120.0)]


def test_g2_a_sample_never_stands_past_the_pod(warehouse: Warehouse) -> None:
    fill(warehouse, core__pod_life=[pod(end=29.7)], staging__gpu_sample=samples(0, 30, 50))
    found = states(warehouse)
    assert found.filter(pl.col("state") == "busy")["end"].max() == 29.7
    assert minutes_by(found, "state") == {"busy": 29.7, "unallocated": 90.3}


def test_g2_time_past_the_pod_lengthens_no_episode(warehouse: Warehouse) -> None:
    """Low for the pod's last 4.7 minutes: its last sample would have made them five."""
    rows = samples(0, 60, 90) + samples(60, 65, 0)
    fill(warehouse, core__pod_life=[pod(end=64.7)], staging__gpu_sample=rows)
    assert minutes_by(states(warehouse), "state") == {"busy": 64.7, "unallocated": 55.3}


def test_g2_each_day_has_its_own_interval(warehouse: Warehouse) -> None:
    """Every 30 s on the first day, every four minutes on the second, with a hole of 20 minutes on each."""
    first = samples(LATE - 60, LATE - 40, 50) + samples(LATE - 20, LATE, 50)
    second = samples(LATE, LATE + 40, 50, step=4) + samples(LATE + 60, LATE + 100, 50, step=4)
    fill(
        warehouse,
        core__node_life=[node(start=LATE - 60, end=LATE + 100)],
        core__placement_coverage=[covered(0, 2000)],
        core__pod_life=[pod(start=LATE - 60, end=LATE + 100)],
        staging__gpu_sample=first + second,
    )
    silent = states(warehouse, Window(DAY, DAY + timedelta(days=2))).filter(pl.col("state") == "unmeasured")
    assert silent.select("start", "end").rows() == [(LATE - 39.5, LATE - 20), (LATE + 44, LATE + 60)]


def test_g2_the_interval_is_the_median_of_the_day_within_bounds(warehouse: Warehouse) -> None:
    """A sample every ten minutes stands for ten (twice the longest interval), the last for five; one in 2 s for ten seconds."""
    slow = samples(0, 60, 50, step=10)
    quick = samples(0, 1, 50, gpu="GPU-1", uid="w1", step=1 / 30)
    fill(
        warehouse,
        core__node_life=[node(gpus=2)],
        core__pod_life=[pod(), pod("w1")],
        staging__gpu_sample=slow + quick,
    )
    found = states(warehouse).filter(pl.col("state") == "busy")
    assert minutes_by(found, "pod_uid") == {"w0": 55.0, "w1": pytest.approx(50 / 60 + 10 / 60, abs=1e-6)}


def test_g2_a_gpu_counts_once_however_many_exporters_report_it(warehouse: Warehouse) -> None:
    """A second target, a replica four seconds later and the same file read twice change nothing."""
    one = samples(0, 120, 50)
    again = samples(0, 120, 50, object_id="o2")
    other = [row | {"instance": "10.0.0.9:9400", "time_ns": row["time_ns"] + 4 * 10**9} for row in one]
    fill(warehouse, core__pod_life=[pod()], staging__gpu_sample=one + again + other)
    assert minutes_by(states(warehouse), "state") == {"busy": 120.0}
    assert hours_by(warehouse, "state") == {"busy": 1.0, "underused": 1.0}


def test_g2_mig_rows_count_their_instances_and_never_the_device(warehouse: Warehouse) -> None:
    """Two slices of 1g and 2g; the device's own row is no slice; four sevenths were asked by nobody."""
    slices = samples(0, 120, 0.5, "engine_active", gpu_instance="7") + samples(
        0, 120, 0.25, "engine_active", uid="w1", gpu_instance="3"
    )
    fill(
        warehouse,
        core__pod_life=[
            pod(gpus=1 / 7, gpu_resource="nvidia.com/mig-1g.10gb"),
            pod("w1", gpus=2 / 7, gpu_resource="nvidia.com/mig-2g.20gb"),
        ],
        staging__gpu_sample=slices + samples(0, 120, 99, uid=None),
    )
    states(warehouse)
    assert hours_by(warehouse, "state") == pytest.approx(
        {"busy": 2 * (0.5 / 7 + 0.5 / 7), "underused": 2 * (0.5 / 7 + 1.5 / 7), "unallocated": 8 / 7}, abs=1e-8
    )
    assert set(segments(warehouse).drop_nulls("pod_uid")["gpu_uuid"]) == {"GPU-0/7", "GPU-0/3"}


def test_g2_an_idle_shared_device_makes_all_its_holders_idle(warehouse: Warehouse) -> None:
    shared = {"gpus": 0.5, "gpu_resource": "nvidia.com/gpu.shared"}
    rows = samples(0, 60, 0) + samples(0, 60, 0, uid="w1") + samples(60, 120, 80) + samples(60, 120, 80, uid="w1")
    fill(warehouse, core__pod_life=[pod(**shared), pod("w1", **shared)], staging__gpu_sample=rows)
    found = states(warehouse)
    assert minutes_by(found, "pod_uid", "state") == {
        ("w0", "idle"): 30.0, ("w1", "idle"): 30.0, ("w0", "busy"): 30.0, ("w1", "busy"): 30.0,
    }  # fmt: skip
    assert set(found.filter(pl.col("state") == "busy")["activity_basis"]) == {"device_shared"}
    assert found["work"].null_count() == found.height


def test_g2_a_pods_own_utilisation_beside_the_devices_row_is_its_own(warehouse: Warehouse) -> None:
    """Per-process series: w0 works, w1 does nothing on the same active device."""
    shared = {"gpus": 0.5, "gpu_resource": "nvidia.com/gpu.shared"}
    rows = samples(0, 120, 80, uid=None) + samples(0, 120, 80) + samples(0, 120, 0, uid="w1")
    fill(warehouse, core__pod_life=[pod(**shared), pod("w1", **shared)], staging__gpu_sample=rows)
    found = states(warehouse)
    assert minutes_by(found, "pod_uid", "state") == {("w0", "busy"): 60.0, ("w1", "idle"): 60.0}
    assert set(found["activity_basis"]) == {"util"}


def test_g2_a_row_without_a_pod_is_the_pods_that_holds_the_whole_node(warehouse: Warehouse) -> None:
    rows = samples(0, 120, 50, uid=None) + samples(0, 120, 50, uid=None, gpu="GPU-1")
    fill(warehouse, core__node_life=[node(gpus=2)], core__pod_life=[pod(gpus=2)], staging__gpu_sample=rows)
    assert minutes_by(states(warehouse), "state") == {"busy": 240.0}


def test_g2_a_row_without_a_pod_on_a_node_with_one_gpu_is_all_its_holders(warehouse: Warehouse) -> None:
    shared = {"gpus": 0.5, "gpu_resource": "nvidia.com/gpu.shared"}
    rows = samples(0, 60, 0, uid=None) + samples(60, 120, 80, uid=None)
    fill(warehouse, core__pod_life=[pod(**shared), pod("w1", **shared)], staging__gpu_sample=rows)
    found = minutes_by(states(warehouse), "pod_uid", "state", "activity_basis")
    assert found == {
        (uid, *kind): 30.0 for uid in ("w0", "w1") for kind in (("idle", "util"), ("busy", "device_shared"))
    }


def test_n2_the_same_names_in_two_clusters_never_meet(warehouse: Warehouse) -> None:
    """Node name, pod name, pod uid and GPU uuid are equal; the clusters do the opposite of each other."""
    there = {"cluster": "d"}
    fill(
        warehouse,
        core__node_life=[node(), node(12, name=f"n{NODE}", **there)],
        core__placement_coverage=[covered(), covered() | there],
        core__pod_life=[pod(), pod(node_key=12, **there)],
        staging__gpu_sample=samples(0, 120, 0) + [row | there for row in samples(0, 120, 100)],
    )
    assert minutes_by(states(warehouse), "cluster", "node_key", "state") == {
        ("c", NODE, "idle"): 120.0, ("d", 12, "busy"): 120.0,
    }  # fmt: skip


def test_n3_a_row_without_a_pod_is_nobodys_where_two_could_be_meant(warehouse: Warehouse) -> None:
    rows = samples(0, 120, 50, uid=None) + samples(0, 120, 0, uid=None, gpu="GPU-1")
    fill(warehouse, core__node_life=[node(gpus=2)], core__pod_life=[pod(), pod("w1")], staging__gpu_sample=rows)
    assert minutes_by(states(warehouse), "state") == {"unmeasured": 240.0}


def test_g2_a_name_that_is_taken_again_is_the_newer_pod(warehouse: Warehouse) -> None:
    old, new = pod("u1", 0, 70, name="w0"), pod("u2", 60, 120, started=60, name="w0")
    fill(warehouse, core__pod_life=[old, new], staging__gpu_sample=samples(0, 120, 50))
    assert minutes_by(states(warehouse), "pod_uid", "state") == {("u1", "busy"): 60.0, ("u2", "busy"): 60.0}


@pytest.mark.parametrize(("metric", "value"), [("gpu_util", 250.0), ("gpu_util", -1.0), ("engine_active", 50.0)])
def test_n3_a_value_that_its_unit_cannot_have_is_no_measurement(
    warehouse: Warehouse, metric: str, value: float
) -> None:
    fill(warehouse, core__pod_life=[pod()], staging__gpu_sample=samples(0, 120, value, metric))
    assert minutes_by(states(warehouse), "state") == {"unmeasured": 120.0}


# --- idle, comm_stall, starting ----------------------------------------------------------------------------------
@pytest.mark.parametrize(("low_minutes", "state"), [(4.5, "busy"), (5.0, "idle")])
def test_g3_idle_needs_300_seconds_of_measured_time(warehouse: Warehouse, low_minutes: float, state: str) -> None:
    rows = samples(0, 60, 90) + samples(60, 60 + low_minutes, 4.9) + samples(60 + low_minutes, 120, 90)
    fill(warehouse, core__pod_life=[pod()], staging__gpu_sample=rows)
    low = states(warehouse).filter(pl.col("start") == 60.0)
    assert low["state"].to_list() == [state]


def test_g3_five_percent_is_not_idle(warehouse: Warehouse) -> None:
    fill(warehouse, core__pod_life=[pod()], staging__gpu_sample=samples(0, 120, 5.0))
    assert minutes_by(states(warehouse), "state") == {"busy": 120.0}
    assert hours_by(warehouse, "state") == {"busy": 0.1, "underused": 1.9}


def test_g3_a_gap_of_five_minutes_neither_ends_nor_lengthens_an_episode(warehouse: Warehouse) -> None:
    """3.5 min low (two intervals before the gap), five minutes of silence, 1.5 min low: together five; the gap stays unmeasured."""
    rows = samples(0, 50, 90) + samples(50, 53, 0) + samples(58.5, 60, 0) + samples(60, 120, 90)
    fill(warehouse, core__pod_life=[pod()], staging__gpu_sample=rows)
    found = states(warehouse)
    assert found.filter(pl.col("state") == "idle").select("start", "end").rows() == [(50.0, 53.5), (58.5, 60.0)]
    assert minutes_by(found, "state")["unmeasured"] == 5.0


def test_g3_a_longer_gap_ends_an_episode(warehouse: Warehouse) -> None:
    rows = samples(0, 50, 90) + samples(50, 53, 0) + samples(59, 61, 0) + samples(61, 120, 90)
    fill(warehouse, core__pod_life=[pod()], staging__gpu_sample=rows)
    assert "idle" not in minutes_by(states(warehouse), "state")


def test_g3_engine_activity_counts_where_it_exists(warehouse: Warehouse) -> None:
    """Utilisation says 100 %, the engine 2 %: idle. Where the engine vanishes, utilisation speaks."""
    rows = samples(0, 120, 100) + samples(0, 60, 0.02, "engine_active")
    fill(warehouse, core__pod_life=[pod()], staging__gpu_sample=rows)
    found = states(warehouse)
    assert minutes_by(found, "state", "activity_basis") == {("idle", "engine"): 60.0, ("busy", "util"): 60.0}


def stall(**changes: float | None) -> list[dict[str, object]]:
    values = {"gpu_util": 100.0, "tensor_active": 0.01, "dram_active": 0.02, "power_watts": 150.0} | changes
    return [row for metric, value in values.items() if value is not None for row in samples(0, 120, value, metric)]


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({}, "comm_stall"),
        ({"tensor_active": None, "dram_active": None}, "comm_stall"),
        ({"power_watts": None}, "comm_stall"),
        ({"power_watts": None, "dram_active": None}, "busy"),
        ({"tensor_active": None, "dram_active": None, "power_watts": None}, "busy"),
        ({"tensor_active": 0.05}, "busy"),
        ({"dram_active": 0.10}, "busy"),
        ({"power_watts": 70 + 0.25 * 630}, "busy"),
        ({"gpu_util": 89.0}, "busy"),
        ({"gpu_util": None, "engine_active": 0.95}, "comm_stall"),
    ],
)
def test_g3_a_stall_is_high_by_utilisation_and_low_by_all_else_that_exists(
    warehouse: Warehouse, changes: dict[str, float | None], state: str
) -> None:
    fill(warehouse, core__pod_life=[pod()], staging__gpu_sample=stall(**changes))
    assert minutes_by(states(warehouse), "state") == {state: 120.0}


def test_g3_the_basis_says_that_a_stall_can_not_be_seen(warehouse: Warehouse) -> None:
    fill(warehouse, core__pod_life=[pod()], staging__gpu_sample=samples(0, 120, 100))
    found = states(warehouse)
    assert set(found["activity_basis"]) == {"util"}
    assert found["work"].null_count() == found.height


def test_g3_a_stall_under_five_minutes_is_busy(warehouse: Warehouse) -> None:
    rows = [row for row in stall() if row["time_ns"] < at(4.5)]
    fill(warehouse, core__pod_life=[pod()], staging__gpu_sample=rows)
    assert "comm_stall" not in minutes_by(states(warehouse), "state")


def test_g3_p6_starting_runs_from_binding_to_the_first_main_container(warehouse: Warehouse) -> None:
    """Pending with images and init containers: held. Samples before the start change nothing."""
    fill(warehouse, core__pod_life=[pod(started=20)], staging__gpu_sample=samples(0, 120, 60))
    assert minutes_by(states(warehouse), "state") == {"starting": 20.0, "busy": 100.0}


def test_p6_a_pod_that_never_started_held_its_gpus_to_its_end(warehouse: Warehouse) -> None:
    fill(warehouse, core__pod_life=[pod(end=90, started=None, phase="Pending")])
    assert minutes_by(states(warehouse), "state") == {"starting": 90.0, "unallocated": 30.0}


@pytest.mark.parametrize(
    ("phase", "known", "starting"),
    [("Running", {"initialized_ns": at(5)}, 5.0), ("Running", {}, 0.0), ("Succeeded", {"ready_to_start_ns": at(2)}, 2.0),
     ("Failed", {"initialized_ns": at(5)}, 120.0), ("Pending", {"initialized_ns": at(5)}, 120.0)],
)  # fmt: skip
def test_g3_a_source_without_container_states_still_says_that_a_running_pod_started(
    warehouse: Warehouse, phase: str, known: dict[str, int], starting: float
) -> None:
    fill(warehouse, core__pod_life=[pod(started=None, phase=phase, **known)])
    assert minutes_by(states(warehouse), "state").get("starting", 0.0) == starting


def test_p6_a_pod_that_is_not_bound_holds_nothing(warehouse: Warehouse) -> None:
    fill(warehouse, core__pod_life=[pod(held_from_ns=None, held_to_ns=None, started=None)])
    assert minutes_by(states(warehouse), "state") == {"unallocated": 120.0}


def test_f4_work_is_tensor_else_power(warehouse: Warehouse) -> None:
    """H100: idle 70 W, limit 700 W."""
    rows = samples(0, 60, 100) + samples(0, 60, 0.6, "tensor_active") + samples(0, 120, 385, "power_watts")
    fill(warehouse, core__pod_life=[pod()], staging__gpu_sample=rows + samples(60, 120, 100))
    work = states(warehouse).group_by("activity_basis").agg(pl.col("work").mean().round(9))
    assert dict(work.iter_rows()) == {"tensor": 0.6, "util": 0.5}


# --- capacity ------------------------------------------------------------------------------------------------------
def test_g1_held_gpus_without_series_are_unmeasured_and_the_rest_free(warehouse: Warehouse) -> None:
    fill(
        warehouse,
        core__node_life=[node(gpus=8)],
        core__pod_life=[pod(gpus=4)],
        staging__gpu_sample=samples(0, 120, 100),
    )
    found = states(warehouse)
    assert minutes_by(found, "state", "cause") == {
        ("busy", None): 120.0, ("unmeasured", None): 360.0, ("unallocated", "free"): 480.0,
    }  # fmt: skip
    assert set(found.filter(pl.col("state") == "unallocated")["job_key"]) == {-1}


def test_g1_more_devices_than_were_requested_share_the_request(warehouse: Warehouse) -> None:
    """A node that was reset gave the pod's one GPU another device: each counts for a half, and the whole stays one."""
    rows = samples(0, 120, 100) + samples(0, 120, 0, gpu="GPU-1")
    fill(warehouse, core__node_life=[node(gpus=2)], core__pod_life=[pod()], staging__gpu_sample=rows)
    assert minutes_by(states(warehouse), "state") == {"busy": 60.0, "idle": 60.0, "unallocated": 120.0}


def test_g1_outside_placement_coverage_time_is_unmeasured_and_no_jobs(warehouse: Warehouse) -> None:
    fill(
        warehouse,
        core__placement_coverage=[covered(0, 60), covered(30, 90)],
        core__pod_life=[pod()],
        staging__gpu_sample=samples(0, 120, 100),
    )
    found = states(warehouse)
    assert minutes_by(found, "state", "cause", "job_key") == {
        ("busy", None, 77): 90.0, ("unmeasured", "no_placement", -1): 30.0,
    }  # fmt: skip


def test_g1_time_billed_outside_the_nodes_life_is_not_in_cluster(warehouse: Warehouse) -> None:
    """Life 10:30-12:00; billed 10:15-12:00."""
    fill(
        warehouse,
        core__node_life=[node(start=30, gpus=4)],
        core__node_bill_hourly=[billed(0, 0.75), billed(60, 0.4), billed(60, 0.6)],
    )
    states(warehouse)
    assert hours_by(warehouse, "cause") == {"free": 6.0, "not_in_cluster": 1.0}


def test_g1_time_billed_while_placement_was_unknown_is_no_placement(warehouse: Warehouse) -> None:
    """The hour before the node's life was covered for its second half only."""
    fill(
        warehouse,
        core__node_life=[node(start=60, gpus=4)],
        core__placement_coverage=[covered(30, 840)],
        core__node_bill_hourly=[billed(0, 1.0), billed(60, 1.0)],
    )
    states(warehouse)
    assert hours_by(warehouse, "state", "cause") == {
        ("unallocated", "free"): 4.0, ("unallocated", "not_in_cluster"): 2.0, ("unmeasured", "no_placement"): 2.0,
    }  # fmt: skip


def test_g1_capacity_is_what_was_billed_where_that_is_less_than_the_life(warehouse: Warehouse) -> None:
    fill(
        warehouse,
        core__node_life=[node(gpus=4)],
        core__pod_life=[pod(gpus=2)],
        core__node_bill_hourly=[billed(0, 0.5), billed(60, 0.25, scope="other_compute")],
    )
    states(warehouse)
    assert hours_by(warehouse, "hour_utc", "state") == {
        (billed(0, 1)["hour_utc"], "unallocated"): 1.0, (billed(0, 1)["hour_utc"], "unmeasured"): 1.0,
        (billed(60, 1)["hour_utc"], "unallocated"): 2.0, (billed(60, 1)["hour_utc"], "unmeasured"): 2.0,
    }  # fmt: skip


def test_g1_capacity_nobody_could_have_says_why(warehouse: Warehouse) -> None:
    """Cordoned from 60; one of eight GPUs unhealthy from 90."""
    seen = {
        "object_id": "o", "snapshot_id": "s", "cluster": "c", "mode": "list", "uid": "n", "name": "n", "lifecycle": "on_demand",
        "gpus": 8.0, "gpus_allocatable": 8.0, "unschedulable": False,
    }  # fmt: skip
    sightings = [
        seen | {"observed_ns": at(0)},
        seen | {"observed_ns": at(60), "unschedulable": True},
        seen | {"observed_ns": at(90), "unschedulable": True, "gpus_allocatable": 7.0},
    ]
    key = warehouse.query("SELECT stable_key('c' || chr(31) || 'n') AS k")["k"][0]
    fill(warehouse, core__node_life=[node(key, gpus=8)], staging__node_observation=sightings)
    assert minutes_by(states(warehouse), "cause") == {"free": 480.0, "unschedulable": 240.0 + 210.0, "unhealthy": 30.0}


def test_g1_where_more_is_held_than_exists_the_later_binding_is_right(warehouse: Warehouse) -> None:
    """The end of w0 is uncertain: w1 was bound to its GPU before it is seen to be gone."""
    fill(warehouse, core__pod_life=[pod(end=70), pod("w1", start=60, started=60)])
    assert minutes_by(states(warehouse), "pod_uid") == {"w0": 60.0, "w1": 60.0}


def test_g1_pods_on_a_node_that_was_never_seen_keep_their_gpu_time(warehouse: Warehouse) -> None:
    fill(warehouse, core__node_life=[], core__pod_life=[pod(node_key=-1)], staging__gpu_sample=samples(0, 60, 100))
    assert minutes_by(states(warehouse), "node_key", "state") == {(-1, "busy"): 60.5 - 0.5, (-1, "unmeasured"): 60.0}


def test_n8_gpus_held_on_a_node_that_never_showed_any_are_not_lost(warehouse: Warehouse) -> None:
    fill(
        warehouse,
        core__node_life=[node(gpus=0)],
        core__pod_life=[pod(end=60)],
        staging__gpu_sample=samples(0, 120, 100),
    )
    assert minutes_by(states(warehouse), "node_key", "state") == {(NODE, "busy"): 60.0}


def test_g1_activity_on_a_gpu_nobody_requested_stays_unallocated_and_is_listed(warehouse: Warehouse) -> None:
    fill(
        warehouse,
        core__node_life=[node(gpus=2)],
        staging__gpu_sample=samples(0, 30, 90, uid="sneaky") + samples(0, 30, 0, uid=None),
    )
    assert minutes_by(states(warehouse), "state", "cause") == {("unallocated", "free"): 240.0}
    used = unrequested_use(warehouse, WINDOW, Parameters())
    assert used.select("node_name", "gpu_uuid", "pod", "active_samples").rows() == [(f"n{NODE}", "GPU-0", "sneaky", 60)]


def test_g1_nothing_is_unrequested_while_its_pod_requested_it(warehouse: Warehouse) -> None:
    fill(warehouse, core__pod_life=[pod()], staging__gpu_sample=samples(0, 30, 90))
    assert unrequested_use(warehouse, WINDOW, Parameters()).is_empty()


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_g1_n8_states_of_a_node_hour_sum_to_its_capacity(data: st.DataObject) -> None:
    """Whatever pods, samples, coverage and bill say, states sum to GPUs x billed hours, else GPUs x life."""
    minute = st.integers(0, 150)
    gpus = data.draw(st.sampled_from([1, 2, 8]))
    pods = []
    for number in range(data.draw(st.integers(0, 4))):
        start = data.draw(minute)
        pods.append(
            pod(f"w{number}", start, start + data.draw(st.integers(1, 100)), gpus=data.draw(st.sampled_from([0.5, 1 / 3, 1, 2, 8])),
                started=data.draw(st.none() | minute), still_alive=data.draw(st.booleans()))
        )  # fmt: skip
    rows = []
    for _ in range(data.draw(st.integers(0, 6))):
        start = data.draw(minute)
        rows += samples(
            start, start + data.draw(st.integers(1, 40)), data.draw(st.sampled_from([0, 3, 50, 97.3])),
            uid=data.draw(st.sampled_from(["w0", "w1", "w2", None])), gpu=f"GPU-{data.draw(st.integers(0, 3))}", step=1,
        )  # fmt: skip
    life = data.draw(st.tuples(minute, st.integers(10, 150)))
    bill = data.draw(st.dictionaries(st.sampled_from([0, 60, 120]), st.floats(0.01, 1.0)))
    seen = data.draw(st.lists(st.tuples(minute, st.integers(1, 200)), max_size=3))
    with Warehouse() as warehouse:
        warehouse.stage_frames()
        fill(
            warehouse,
            core__node_life=[node(gpus=gpus, start=life[0], end=life[0] + life[1])],
            core__placement_coverage=[covered(start, start + length) for start, length in seen],
            core__pod_life=pods,
            staging__gpu_sample=rows,
            core__node_bill_hourly=[billed(minutes, hours) for minutes, hours in bill.items()],
        )
        found = states(warehouse)
        hourly = warehouse.table("core.gpu_state_hourly")
    assert hourly.is_empty() or hourly["gpu_hours"].min() > 0
    sums = dict(hourly.group_by("hour_utc").agg(pl.col("gpu_hours").sum()).iter_rows())
    for number in range(6):
        low = max(life[0], number * 60)
        lived = max(0, min(life[0] + life[1], number * 60 + 60) - low) / 60
        expected = gpus * bill.get(number * 60, lived)
        assert sums.get(billed(number * 60, 1)["hour_utc"], 0) == pytest.approx(expected, abs=EXACT)
    for device in found.filter(~pl.col("gpu_uuid").str.starts_with("slot")).partition_by("gpu_uuid", "pod_uid"):
        spans = device.sort("from_ns").select("from_ns", "to_ns").rows()
        assert all(first[1] <= second[0] for first, second in pairwise(spans)), "a device does one thing at a time"


# --- windows -------------------------------------------------------------------------------------------------------


def around_midnight(warehouse: Warehouse) -> None:
    """Low from 23:57 to 00:03: six minutes, three on each side; then a pause with a gap, and a stall over the next midnight."""
    rows = samples(LATE - 60, LATE - 3, 90) + samples(LATE - 3, LATE + 3, 0) + samples(LATE + 3, LATE + 60, 90)
    rows += samples(LATE + 300, LATE + 1436, 90) + [
        row | {"time_ns": row["time_ns"] + (LATE + 1437) * MINUTE} for row in stall() if row["time_ns"] < at(6)
    ]
    fill(
        warehouse,
        core__node_life=[node(start=0, end=5000)],
        core__placement_coverage=[covered(0, 5000)],
        core__pod_life=[pod(end=4000)],
        staging__gpu_sample=rows,
    )


def test_n7_an_episode_over_midnight_is_idle_on_both_days(warehouse: Warehouse) -> None:
    around_midnight(warehouse)
    found = states(warehouse, Window(DAY, DAY + timedelta(days=2)))
    assert found.filter(pl.col("state") == "idle").select("start", "end").rows() == [(LATE - 3, LATE), (LATE, LATE + 3)]
    stalled = found.filter(pl.col("state") == "comm_stall").select("start", "end").rows()
    assert stalled == [(LATE + 1437, LATE + 1440)]


def test_n7_a_window_split_in_days_in_any_order_gives_the_same_rows() -> None:
    built = []
    for windows in ([(0, 3)], [(2, 3), (0, 1), (1, 2)], [(1, 3), (0, 2), (0, 2)]):
        with Warehouse() as warehouse:
            warehouse.stage_frames()
            around_midnight(warehouse)
            for low, high in windows:
                window = Window(DAY + timedelta(days=low), DAY + timedelta(days=high))
                build_gpu_states(warehouse, window, Parameters())
            built.append([warehouse.table(name).sort(pl.all()) for name in TABLES if name.startswith("core.gpu_state")])
    assert built[0][0].height > 100
    assert all(first.equals(other) for tables in built[1:] for first, other in zip(built[0], tables, strict=True))


def test_g2_a_silence_of_half_a_day_ends_a_series_of_less_does_not(warehouse: Warehouse) -> None:
    """The sample before a silence of 11 h (and of 10 h over midnight) stands for two intervals, that before 13 h for one."""
    rows = samples(0, 1, 50) + samples(661, 662, 50) + samples(1261, 1262, 50) + samples(2041, 2042, 50)
    fill(
        warehouse, core__node_life=[node(end=2200)], core__placement_coverage=[covered(0, 2200)], core__pod_life=[pod(end=2200)],
        staging__gpu_sample=rows,
    )  # fmt: skip
    found = states(warehouse, Window(DAY, DAY + timedelta(days=2))).filter(pl.col("state") == "busy")
    assert minutes_by(found, "state") == {"busy": 1.5 + 1.5 + 1.0 + 1.0}


# --- models --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("raw", "model"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA-H100-80GB-HBM3", "H100"),
        ("NVIDIA A100-SXM4-40GB", "A100 40GB"),
        ("NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", "A100 80GB"),
        ("NVIDIA A100 80GB PCIe", "A100 PCIe 80GB"),
        ("A100-PCIE-40GB", "A100 PCIe 40GB"),
        ("Tesla T4", "T4"),
        ("Tesla-T4-SHARED", "T4"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA L4", "L4"),
        ("Tesla V100-SXM2-16GB", "V100 SXM2"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA B200", "B200"),
        ("AMD Instinct MI300X OAM", "MI300X"),
        ("AMD_Instinct_MI300X", "MI300X"),
        ("Some Accelerator", None),
        ("", None),
    ],
)
def test_g3_names_of_exporters_and_nodes_meet_in_one_model(raw: str, model: str | None) -> None:
    found = model_of(raw, gpu_models())
    assert (found["model"] if found else None) == model


def test_g3_each_model_has_one_form_and_its_idle_draw_is_below_its_limit() -> None:
    models = gpu_models()
    assert all(name == canonical_model(name) for name in models)
    for row in models.values():
        assert 0 < row["idle_watts"] < 0.25 * row["limit_watts"]  # type: ignore[operator]


def test_g1_a_node_that_names_no_model_has_that_of_its_devices(warehouse: Warehouse) -> None:
    fill(
        warehouse,
        core__node_life=[node(gpus=2, gpu_model=None)],
        core__pod_life=[pod()],
        staging__gpu_sample=samples(0, 120, 100),
    )
    states(warehouse)
    assert hours_by(warehouse, "gpu_model") == {"H100": 4.0}


def test_n7_chunks_of_gpus_change_nothing(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is laid out at once is a matter of memory only."""
    rows = [row for gpu in range(5) for row in samples(0, 60, 20 * gpu, gpu=f"GPU-{gpu}", step=1)]
    fill(warehouse, core__node_life=[node(gpus=8)], core__pod_life=[pod(gpus=8)], staging__gpu_sample=rows)
    whole = states(warehouse)
    monkeypatch.setattr("models.gpu_states.CHUNK_ROWS", 40)
    assert states(warehouse).sort(pl.all()).equals(whole.sort(pl.all()))


def test_hours_are_where_their_time_is(warehouse: Warehouse) -> None:
    """N1: a stretch over an hour's edge is split there; the date is the day of its hours."""
    fill(warehouse, core__node_life=[node(start=30, end=90)], core__job_run=[job()])
    states(warehouse)
    hourly = warehouse.table("core.gpu_state_hourly")
    assert set(hourly["date"]) == {date(2026, 11, 23)}
    assert [round(value, 9) for value in hourly.sort("hour_utc")["gpu_hours"]] == [0.5, 0.5]
    assert at(60) % HOUR == 0
