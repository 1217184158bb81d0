"""`waiting`, `unreleased`, `billed`, and what findings cost: rules F1, F2 and F5."""

from __future__ import annotations

import json
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from models.engine.warehouse import Warehouse
from models.findings import build_fact_finding, build_finding_money, build_findings, insufficient_runs
from models.parameters import Parameters
from tests.models.finding_world import (
    DAY,
    JOB,
    WINDOW,
    ZONE_B,
    at,
    check_evidence,
    cost_line,
    covered,
    find,
    findings,
    job,
    load,
    pod,
    retries,
    segment,
    transfer_line,
    volume,
)

Tables = dict[str, list[dict[str, Any]]]


def world(**changes: list[dict[str, Any]]) -> Tables:
    tables: Tables = {"core.job_run": [job()], "core.pod_life": [pod("w0"), pod("w1")]}
    return tables | {name.replace("__", "."): rows for name, rows in changes.items()}


# --- waiting ------------------------------------------------------------------------------------------------------
def test_f1_waiting_opens_at_fifteen_minutes_and_one_gpu_hour_and_says_why(warehouse: Warehouse) -> None:
    late = pod("w2", -1, held_from_ns=None, main_started_ns=None, node_name=None)
    waits = [segment(0, 60, "idle", cause="waiting_for_members")]
    tables = world(core__pod_life=[pod("w0"), pod("w1"), late], core__gpu_state_segment=[*waits, segment(60, 90)])
    found = find(warehouse, tables)["waiting"]
    assert (found["first_evidence_ns"], found["opened_ns"], found["closed_ns"]) == (at(0), at(15), at(60))
    assert "1 of its pods have no node" in found["summary"]
    assert "1 member waits for a node" in found["remedy"] and "Gang" not in found["remedy"]


@pytest.mark.parametrize(
    ("segments", "opens"),
    [
        ([segment(0, 14, "idle", cause="waiting_for_members")], False),
        ([segment(0, 59, "idle", cause="waiting_for_members", weight=1.0)], False),
        ([segment(0, 60, "idle", cause="waiting_for_members", weight=1.0)], True),
        ([segment(0, 60, "idle", cause="pause")], False),
        ([segment(0, 8, "idle", cause="restarting"), segment(9, 16, "starting", cause="restarting")], True),
    ],
    ids=["fourteen_minutes", "less_than_a_gpu_hour", "one_gpu_hour", "checkpoint_pause", "restarts_are_one_episode"],
)
def test_f1_f6_waiting_needs_both_minima(warehouse: Warehouse, segments: list[dict[str, Any]], opens: bool) -> None:
    assert ("waiting" in find(warehouse, world(core__gpu_state_segment=segments))) is opens


# --- unreleased ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("minutes", "opens"), [(7.4, False), (7.6, True)])
def test_f1_unreleased_needs_one_gpu_hour(warehouse: Warehouse, minutes: float, opens: bool) -> None:
    held = [segment(0, minutes, "idle", cause="finished_not_released")]
    assert ("unreleased" in find(warehouse, world(core__gpu_state_segment=held))) is opens


def test_f1_unreleased_says_since_when_and_stays_open_while_it_lasts(warehouse: Warehouse) -> None:
    pods = [pod("w0"), pod("m0", role="coordinator", succeeded=True)]
    held = [segment(0, 60, "idle", cause="finished_not_released")]
    found = find(warehouse, world(core__pod_life=pods, core__gpu_state_segment=held))["unreleased"]
    assert found["closed_ns"] is None and "its coordinator succeeded" in found["summary"]
    assert "cleanPodPolicy" in found["remedy"]


# --- billed -------------------------------------------------------------------------------------------------------
def test_f5_billed_above_the_floor_counts_members_only(warehouse: Warehouse) -> None:
    lines = [
        transfer_line(9, "0.7"),
        transfer_line(10, "0.6"),
        transfer_line(11, "0.2", role="worker", peer_role="coordinator"),
    ]
    others = [
        transfer_line(10, "50", peer_job_key=-1, peer_role=None),
        transfer_line(10, "9", job_key=-1, reason="unexplained"),
    ]
    found = find(warehouse, world(core__transfer_cost=lines + others))["billed"]
    assert found["transfer_cost"] == Decimal("1.5") and found["counted"] == 1
    assert (found["first_evidence_ns"], found["opened_ns"]) == (at(-60), at(60))
    assert [item["rows"] for item in json.loads(found["evidence"])] == [3]


@pytest.mark.parametrize(
    ("cost", "gpu_cost", "currency", "opens"),
    [
        ("0.99", None, "USD", False),
        ("1.01", None, "USD", True),
        ("5", "600", "USD", False),
        ("7", "600", "USD", True),
        ("5", None, "EUR", False),
        ("5", "400", "EUR", True),
    ],
    ids=["below_floor", "above_floor", "below_one_percent", "above_one_percent", "no_floor_no_gpu_cost", "share_alone"],
)
def test_f5_threshold_is_the_floor_or_one_percent_of_gpu_cost(
    warehouse: Warehouse, cost: str, gpu_cost: str | None, currency: str, opens: bool
) -> None:
    gpus = [cost_line(10, "busy", None, 8, gpu_cost, currency=currency)] if gpu_cost else []
    tables = world(core__transfer_cost=[transfer_line(10, cost, currency=currency)], core__gpu_cost_line=gpus)
    assert ("billed" in find(warehouse, tables)) is opens


def test_f5_the_threshold_is_per_day(warehouse: Warehouse) -> None:
    lines = [transfer_line(None, "0.9"), transfer_line(None, "0.9", date=DAY + timedelta(days=1))]
    assert find(warehouse, world(core__transfer_cost=lines)) == {}


def test_f5_flow_shares_make_it_partial(warehouse: Warehouse) -> None:
    found = find(warehouse, world(core__transfer_cost=[transfer_line(10, "3", basis="flow_share")]))["billed"]
    assert found["confidence"] == "partial"


# --- money --------------------------------------------------------------------------------------------------------
def blocked_tables() -> Tables:
    """Blocked from 10:00 to 10:50; 8 GPUs idle by policy until 10:30, then waiting for members until 11:00."""
    return world(
        core__pod_life=[pod("w0"), pod("m0", ZONE_B, "coordinator")],
        core__drop_attempt=[*retries(0, 20), *retries(200, 201, source="w0", destination_job_key=5)],
        core__gpu_state_segment=[
            segment(0, 30, "idle", cause="blocked_by_policy"),
            segment(30, 60, "idle", cause="waiting_for_members"),
            segment(60, 70),
        ],
        core__gpu_cost_line=[
            cost_line(10, "idle", "blocked_by_policy", 4, "20"),
            cost_line(10, "idle", "waiting_for_members", 4, "20.000000000001"),
        ],
    )


def test_f1_f2_each_gpu_hour_counts_in_one_finding_and_the_summary_says_what_it_costs(warehouse: Warehouse) -> None:
    found = find(warehouse, blocked_tables())
    assert (found["blocked"]["idle_gpu_hours"], found["blocked"]["idle_cost"]) == (4.0, Decimal(20))
    assert (found["waiting"]["idle_gpu_hours"], found["waiting"]["idle_cost"]) == (4.0, Decimal("20.000000000001"))
    assert "4.0 GPU-hours lost, 20.00 USD" in found["blocked"]["summary"]
    assert "576.00 USD a day" in found["blocked"]["summary"]  # 20 USD in 50 minutes


def test_f1_a_stall_counts_in_stalled_before_slow_and_the_other_shows_it_uncounted(warehouse: Warehouse) -> None:
    """All GPUs of a split run stall all along: stalled takes the GPU-hours, slow keeps the transfer."""
    pods = [pod("w0"), pod("w1", ZONE_B)]
    stalls = [segment(0, 120, "comm_stall", uid, 0.01, cause="cross_zone_sync") for uid in ("w0", "w1")]
    tables = world(
        core__pod_life=pods,
        core__gpu_state_segment=stalls,
        core__gpu_cost_line=[cost_line(10, "comm_stall", "cross_zone_sync", 16, "100")],
        core__zone_traffic_hourly=[],
        core__transfer_cost=[transfer_line(10, "2")],
        core__connection=[],
    )
    tables["core.zone_traffic_hourly"] = [volume(10, 80), volume(11, 80)]
    load(warehouse, tables)
    rows = {row["kind"]: row for row in findings(warehouse)}
    assert (rows["stalled"]["idle_cost"], rows["stalled"]["counted"]) == (Decimal(100), 1)
    assert (rows["slow"]["idle_cost"], rows["slow"]["transfer_cost"], rows["slow"]["counted"]) == (
        Decimal(0),
        Decimal(2),
        1,
    )
    assert (rows["billed"]["transfer_cost"], rows["billed"]["counted"]) == (Decimal(2), 0)
    assert "counted in another finding" in rows["billed"]["summary"]


def test_n3_idle_hours_without_a_price_have_no_cost(warehouse: Warehouse) -> None:
    tables = blocked_tables()
    tables["core.gpu_cost_line"] = [cost_line(10, "idle", "blocked_by_policy", 4, None, currency=None)]
    found = find(warehouse, tables)["blocked"]
    assert (found["idle_gpu_hours"], found["idle_cost"]) == (4.0, None)
    assert "price unknown" in found["summary"]


def test_n5_two_currencies_are_never_added(warehouse: Warehouse) -> None:
    tables = blocked_tables()
    tables["core.gpu_cost_line"].append(cost_line(10, "idle", "blocked_by_policy", 0, "7", currency="EUR"))
    found = find(warehouse, tables)["blocked"]
    assert (found["idle_cost"], found["currency"]) == (None, None)


def test_f1_only_the_part_of_an_hour_inside_the_finding_counts(warehouse: Warehouse) -> None:
    """A stall of the whole hour; blocked until 10:50 takes 5/6 of it, the finding stalled the rest."""
    tables = blocked_tables()
    tables["core.gpu_state_segment"] = [segment(0, 60, "comm_stall")]
    tables["core.gpu_cost_line"] = [cost_line(10, "comm_stall", None, 8, "60")]
    tables["core.connection"] = []
    tables["core.drop_attempt"] = [
        *retries(0, 20),
        *retries(60, 60, source="w0", destination="x9", destination_job_key=5),
    ]
    found = find(warehouse, tables)
    assert found["blocked"]["idle_cost"] == Decimal(50)
    assert found["stalled"]["idle_cost"] == Decimal(10)


def test_n7_money_twice_is_money_once(warehouse: Warehouse) -> None:
    load(warehouse, blocked_tables())
    first = findings(warehouse)
    build_finding_money(warehouse, WINDOW, Parameters())
    assert list(warehouse.table("core.finding").sort("finding_id").iter_rows(named=True)) == first
    build_fact_finding(warehouse, WINDOW, Parameters())
    fact = warehouse.table("mart.fact_finding")
    assert fact["detected_after_seconds"].to_list()[0] is not None and len(fact) == len(first)
    assert fact["finding_key"].n_unique() == len(first)


@pytest.mark.parametrize(
    ("state", "events", "listed"), [("unmeasured", 0, True), ("unmeasured", 5, False), ("busy", 0, False)]
)
def test_t6_a_run_without_any_evidence_is_listed_as_insufficient(
    warehouse: Warehouse, state: str, events: int, listed: bool
) -> None:
    seen = [row | {"events": events} for row in covered()]
    load(warehouse, world(core__gpu_state_segment=[segment(0, 60, state)], core__flow_coverage_hourly=seen))
    assert insufficient_runs(warehouse).rows() == ([(JOB, 8.0)] if listed else [])


def test_f2_evidence_is_counted_again_after_causes_cut_the_states(warehouse: Warehouse) -> None:
    tables = blocked_tables()
    tables["core.gpu_state_segment"] = [segment(0, 60, "idle")]
    load(warehouse, tables)
    build_findings(warehouse, WINDOW, Parameters())
    warehouse.con.execute("DELETE FROM core.gpu_state_segment")
    cut = [
        segment(0, 30, "idle", cause="blocked_by_policy"),
        segment(30, 40, "idle"),
        segment(40, 60, "idle", cause="pause"),
    ]
    load(warehouse, {"core.zone": [], "core.node_life": [], "core.gpu_state_segment": cut})
    build_finding_money(warehouse, WINDOW, Parameters())
    row = next(row for row in warehouse.table("core.finding").iter_rows(named=True) if row["kind"] == "blocked")
    check_evidence(warehouse, row)
    assert [item["rows"] for item in json.loads(row["evidence"]) if "stood idle" in item["what"]] == [3]
