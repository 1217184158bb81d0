"""`blocked`: rule F3, its look-alikes (F6), and the remedy that fits the door."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from models.engine.warehouse import Warehouse
from tests.models.finding_world import (
    MINUTE,
    TEN,
    ZONE_B,
    at,
    attempt,
    connected,
    cost_line,
    covered,
    find,
    job,
    pod,
    policy,
    retries,
    segment,
    zone_policies,
)

Tables = dict[str, list[dict[str, Any]]]


def world(**changes: list[dict[str, Any]]) -> Tables:
    """Two GPU workers in zone a, their coordinator in zone b; the worker w0 retries for twenty minutes from ten."""
    tables: Tables = {
        "core.job_run": [job()],
        "core.pod_life": [pod("w0"), pod("w1"), pod("m0", ZONE_B, "coordinator")],
        "core.drop_attempt": retries(0, 20),
        "core.connection": [connected(60, 61, "o", "o", client_job_key=5, server_job_key=5)],
        "core.flow_coverage_hourly": covered(),
    }
    return tables | {name.replace("__", "."): rows for name, rows in changes.items()}


def test_f3_opens_at_the_third_attempt_after_two_minutes_and_names_the_door(warehouse: Warehouse) -> None:
    found = find(warehouse, world(core__drop_attempt=[attempt(m) for m in (0, 1, 1.5, 2, 3)]))["blocked"]
    assert (found["role"], found["peer_role"], found["port"]) == ("worker", "coordinator", "23456/TCP")
    assert (found["first_evidence_ns"], found["opened_ns"]) == (at(0), at(2))
    assert json.loads(found["evidence"])[0]["rows"] == 5


def test_f3_closes_thirty_minutes_after_the_last_attempt(warehouse: Warehouse) -> None:
    found = find(warehouse, world())["blocked"]
    assert (found["status"], found["closed_ns"]) == ("closed", at(50))


def test_f3_stays_open_at_the_end_of_what_is_known(warehouse: Warehouse) -> None:
    assert find(warehouse, world(core__connection=[]))["blocked"]["closed_ns"] is None


@pytest.mark.parametrize(
    "attempts",
    [
        [attempt(0), attempt(3)],
        [attempt(0), attempt(0.5), attempt(1.9)],
        [attempt(0), attempt(16), attempt(32), attempt(48)],
        [attempt(0), attempt(1, destination="m0", port=2), attempt(3, source="w1")],
        retries(0, 20, destination_job_key=78),
        retries(0, 20, audit=True),
        retries(0, 20, drop_reason="STALE_OR_UNROUTABLE_IP"),
        retries(0, 20, destination_reserved="unmanaged"),
        retries(0, 20, source_reserved="init"),
        retries(0, 20, destination="x0"),
        retries(0, 1.9, drop_reason="AUTH_REQUIRED"),
    ],
    ids=[
        "two_only", "within_two_minutes", "gaps_over_15_min", "no_pair_has_three", "another_run", "audit", "other_reason",
        "young_identity", "init_identity", "auxiliary", "authentication",
    ],
)  # fmt: skip
def test_f3_f6_look_alikes_open_nothing(warehouse: Warehouse, attempts: list[dict[str, Any]]) -> None:
    pods = [pod("w0"), pod("w1"), pod("m0", role="coordinator"), pod("x0", role="auxiliary")]
    assert "blocked" not in find(warehouse, world(core__drop_attempt=attempts, core__pod_life=pods))


def test_f3_authentication_counts_from_its_third_minute(warehouse: Warehouse) -> None:
    found = find(warehouse, world(core__drop_attempt=retries(0, 20, drop_reason="AUTH_REQUIRED")))["blocked"]
    assert (found["first_evidence_ns"], found["opened_ns"]) == (at(2), at(4))
    assert "authentication" in found["counter_evidence"]


def test_f3_f6_drops_within_a_minute_of_a_start_or_policy_change_do_not_count(warehouse: Warehouse) -> None:
    young = pod("m0", ZONE_B, "coordinator", created_ns=at(-0.5), held_from_ns=at(-0.5))
    found = find(warehouse, world(core__pod_life=[pod("w0"), young]))["blocked"]
    assert found["first_evidence_ns"] == at(0.5)
    assert "startup" in found["counter_evidence"]


def test_f3_a_coordinator_restart_is_no_block(warehouse: Warehouse) -> None:
    """F6: drops to a coordinator that was re-created seconds ago, then connected."""
    again = pod("m1", role="coordinator", created_ns=at(0), held_from_ns=at(0))
    attempts = [attempt(m, destination="m1") for m in (0.1, 0.3, 0.6, 0.9)]
    tables = world(
        core__pod_life=[pod("w0"), again], core__drop_attempt=attempts, core__connection=[connected(1, 40, server="m1")]
    )
    assert find(warehouse, tables) == {}


def test_f3_drops_after_a_policy_change_count_a_minute_later(warehouse: Warehouse) -> None:
    changed = [
        *zone_policies(),
        policy("intra-zone-a", {"zone": "zone-a"}, [], resource_version="2", observed_ns=at(0)),
    ]
    found = find(warehouse, world(staging__policy_observation=changed))["blocked"]
    assert found["first_evidence_ns"] == at(1)


def test_f3_a_run_without_gpus_is_not_blocked(warehouse: Warehouse) -> None:
    pods = [pod("w0", gpus=0.0), pod("m0", ZONE_B, "coordinator")]
    assert "blocked" not in find(warehouse, world(core__pod_life=pods))


def test_f3_an_answer_since_the_first_attempt_starts_the_count_again(warehouse: Warehouse) -> None:
    tables = world(core__connection=[connected(1.6, 1.7), connected(90, 91, "w1")])
    assert find(warehouse, tables)["blocked"]["opened_ns"] == at(4)


def test_f3_closes_when_every_pair_has_connected(warehouse: Warehouse) -> None:
    both = retries(0, 20) + retries(0, 20, source="w1")
    tables = world(core__drop_attempt=both, core__connection=[connected(21, 59), connected(25, 59, "w1")])
    found = find(warehouse, tables)["blocked"]
    assert found["closed_ns"] == at(25)


def test_f3_closes_when_the_run_ends(warehouse: Warehouse) -> None:
    assert find(warehouse, world(core__job_run=[job(finished_ns=at(22))]))["blocked"]["closed_ns"] == at(22)


def test_f3_a_new_attempt_within_a_day_reopens_the_same_finding(warehouse: Warehouse) -> None:
    tables = world(core__drop_attempt=[*retries(0, 20), attempt(300)], core__connection=[connected(400, 401, "o", "o")])
    found = find(warehouse, tables)["blocked"]
    assert json.loads(found["spans"]) == [[at(0), at(50)], [at(300), at(330)]]
    assert found["opened_ns"] == at(2)


def test_f3_dynamic_ports_of_one_pair_count_together_and_named_ones_apart(warehouse: Warehouse) -> None:
    chosen = [attempt(number, "w0", "w1", port=40000 + number) for number in range(4)]
    found = find(warehouse, world(core__drop_attempt=chosen))["blocked"]
    assert (found["role"], found["peer_role"], found["port"]) == ("worker", "worker", "dynamic")


@pytest.mark.parametrize("named_by", ["container", "service"])
def test_f3_a_port_that_a_container_or_service_names_is_its_own_class(warehouse: Warehouse, named_by: str) -> None:
    ports = json.dumps([{"name": "p", "port": 7777, "protocol": "TCP", "target_port": 7777}])
    service = {
        "object_id": "o", "snapshot_id": "s", "cluster": "c", "observed_ns": TEN, "mode": "list", "namespace": "ml", "name": "s",
        "selector": '{"role": "coordinator"}', "ports": ports,
    }  # fmt: skip
    pods = [pod("w0"), pod("m0", ZONE_B, "coordinator", ports=ports if named_by == "container" else "[]")]
    services = [service] if named_by == "service" else []
    tables = world(
        core__pod_life=pods, core__drop_attempt=retries(0, 9, port=7777), staging__service_observation=services
    )
    assert find(warehouse, tables)["blocked"]["port"] == "7777/TCP"


@pytest.mark.parametrize(("state", "opens"), [("busy", False), ("idle", True), ("unmeasured", True)])
def test_f3_a_side_port_of_a_working_run_is_not_blocked(warehouse: Warehouse, state: str, opens: bool) -> None:
    """Connected on another port meanwhile: closed only if the GPUs also stand still."""
    tables = world(
        core__drop_attempt=retries(0, 20, port=9090),
        core__connection=[connected(-5, 59), connected(200, 201, "o", "o")],
        core__gpu_state_segment=[segment(-30, 60, state)],
    )
    assert ("blocked" in find(warehouse, tables)) is opens


def test_f3_one_blocked_worker_of_many_is_enough(warehouse: Warehouse) -> None:
    others = [connected(-5, 59, f"w{number}") for number in range(1, 9)]
    pods = [*(pod(f"w{number}") for number in range(9)), pod("m0", ZONE_B, "coordinator")]
    found = find(warehouse, world(core__pod_life=pods, core__connection=others))["blocked"]
    assert "1 worker opens" in found["summary"]


def test_f3_dropped_look_ups_open_it_with_the_dns_door(warehouse: Warehouse) -> None:
    looks = retries(0, 9, destination=None, port=53, protocol="UDP", destination_job_key=-1, destination_role="none")
    found = find(warehouse, world(core__drop_attempt=looks))["blocked"]
    assert (found["role"], found["peer_role"], found["port"]) == ("worker", "dns", "53/UDP")
    assert "port 53" in found["remedy"]


def test_f3_an_answered_look_up_in_between_opens_nothing(warehouse: Warehouse) -> None:
    looks = retries(0, 9, step=1.5, destination=None, port=53, protocol="UDP", destination_job_key=-1)
    answers = [
        connected(m + 0.5, m + 0.6, port=53, server_job_key=-1, server_pod_uid=None) for m in (0, 1.5, 3, 4.5, 6, 7.5)
    ]
    assert "blocked" not in find(warehouse, world(core__drop_attempt=looks, core__connection=answers))


@pytest.mark.parametrize(("forwarded", "confidence"), [(True, "complete"), (False, "partial")])
def test_t6_not_connected_needs_forwarded_records_of_both_nodes(
    warehouse: Warehouse, forwarded: bool, confidence: str
) -> None:
    coverage = covered(nodes=("n11",)) + covered(nodes=("n12",), forwarded=forwarded)
    tables = world(core__flow_coverage_hourly=coverage, core__gpu_state_segment=[segment(0, 50, "idle", cause="blocked_by_policy")],
                   core__gpu_cost_line=[cost_line(10, "idle", "blocked_by_policy", 8 * 50 / 60, "40")])  # fmt: skip
    assert find(warehouse, tables)["blocked"]["confidence"] == confidence


def test_f2_without_gpu_telemetry_the_impact_is_unmeasured_not_zero(warehouse: Warehouse) -> None:
    found = find(warehouse, world(core__gpu_state_segment=[segment(-60, 60, "unmeasured")]))["blocked"]
    assert found["confidence"] == "impact_unmeasured"


def test_f1_split_is_not_told_while_blocked_is_open(warehouse: Warehouse) -> None:
    """The coordinator is apart all day; the half hours before and after the block are the split's."""
    pods = [
        pod("w0"),
        pod("m0", ZONE_B, "coordinator", held_from_ns=at(-5), created_ns=at(-5), held_to_ns=at(49), still_alive=False),
    ]
    assert set(find(warehouse, world(core__pod_life=pods))) == {"blocked"}


# --- remedies -----------------------------------------------------------------------------------------------------
def test_f2_a_door_that_keys_on_a_label_needs_the_label_and_the_pin(warehouse: Warehouse) -> None:
    remedy = find(warehouse, world(staging__policy_observation=zone_policies()))["blocked"]["remedy"]
    assert "us-east-1a" in remedy and "spec.pytorchReplicaSpecs.Master.template.spec" in remedy
    assert "`zone: zone-a`" in remedy and "does not open the door" in remedy
    assert "16 of the run's 16 GPUs" in remedy
    assert "pread" not in remedy


def test_f2_a_coordinator_in_the_right_zone_with_the_wrong_label_needs_no_pin(warehouse: Warehouse) -> None:
    mislabelled = pod("m0", role="coordinator", labels=json.dumps({"role": "coordinator", "zone": "zone-b"}))
    tables = world(core__pod_life=[pod("w0"), mislabelled], staging__policy_observation=zone_policies())
    remedy = find(warehouse, tables)["blocked"]["remedy"]
    assert "Pin" not in remedy and "`zone: zone-a`" in remedy and "only the label is wrong" in remedy


def test_f2_a_label_change_that_would_not_open_the_door_is_not_offered(warehouse: Warehouse) -> None:
    closed = [policy("deny", {"zone": "zone-a"}, [{"app": "metrics"}])]
    remedy = find(warehouse, world(staging__policy_observation=closed))["blocked"]["remedy"]
    assert "Pin" not in remedy
    assert remedy.startswith("Allow worker to coordinator of this run on port 23456/TCP") and "deny" in remedy


def test_f2_without_captured_policies_a_pin_is_never_given(warehouse: Warehouse) -> None:
    assert "Pin" not in find(warehouse, world())["blocked"]["remedy"]


def test_f2_hostile_names_are_quoted_in_every_query(warehouse: Warehouse) -> None:
    evil = "w0'; DROP TABLE core.pod_life; --"
    tables = world(
        core__pod_life=[pod(evil), pod("m0", ZONE_B, "coordinator")],
        core__drop_attempt=retries(0, 9, source=evil, source_role="worker"),
    )
    assert find(warehouse, tables)["blocked"]["kind"] == "blocked"


def test_f2_a_policy_of_the_wrong_shape_stops_nothing_and_opens_nothing(warehouse: Warehouse) -> None:
    shapes = [
        json.dumps(document) for document in ({"spec": "no"}, {"spec": {"endpointSelector": {"matchLabels": [1]}}}, {})
    ]
    broken = [policy(f"p{number}", {}, [], document=document) for number, document in enumerate(shapes)]
    remedy = find(warehouse, world(staging__policy_observation=[*zone_policies(), *broken]))["blocked"]["remedy"]
    assert "Pin" not in remedy


def test_n7_the_same_world_gives_the_same_findings_again_and_in_any_row_order(warehouse: Warehouse) -> None:
    tables = world(core__drop_attempt=retries(0, 20) + retries(5, 30, source="w1"))
    first = find(warehouse, tables)
    with Warehouse() as other:
        other.stage_frames()
        again = find(other, {name: rows[::-1] for name, rows in tables.items()})
    assert first == again


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 10**9))
def test_f3_n7_any_attempts_and_answers_give_spans_in_order_that_no_answer_spoils(seed: int) -> None:
    """Opening comes after two minutes of evidence, spans are disjoint, and row order changes nothing."""
    dice = random.Random(seed)
    attempts = {(dice.randint(0, 600) // 2, dice.choice(["w0", "w1"])) for _ in range(dice.randint(0, 60))}
    rows = [attempt(minute, source) for minute, source in attempts]
    answers = [
        connected(start, start + dice.randint(0, 30), dice.choice(["w0", "w1"]), dice.choice(["m0", "w1"]))
        for start in (dice.randint(0, 300) for _ in range(dice.randint(0, 4)))
    ]
    results = []
    for _ in range(2):
        dice.shuffle(rows)
        dice.shuffle(answers)
        with Warehouse() as warehouse:
            warehouse.stage_frames()
            found = find(warehouse, world(core__drop_attempt=rows, core__connection=answers)).get("blocked")
        results.append(found)
    assert results[0] == results[1]
    if results[0] is None:
        return
    found = results[0]
    spans = json.loads(found["spans"])
    assert spans[0][0] == found["first_evidence_ns"] <= found["opened_ns"] - 2 * MINUTE
    assert all(low < high for low, high in spans)
    assert all(before[1] <= after[0] for before, after in pairwise(spans))
    assert found["closed_ns"] in (None, spans[-1][1])
