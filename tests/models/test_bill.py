"""From staged bill lines to ledger and marts: scopes (B2), parts (B3), restatement (B4), node-hours (B6), conservation (N6)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pytest

from models import bill
from models.contracts import TABLES
from models.engine.warehouse import Warehouse, Window
from models.parameters import Parameters

DAY = Window(date(2026, 11, 23), date(2026, 11, 24))
NODE, JOB = 11, 77
D = Decimal


def delivery(number: int = 1, **more: Any) -> dict[str, Any]:
    return {
        "delivery_id": f"d{number}", "source": "bill", "provider": "aws", "export_scope": "bill/exp", "dataset": "cur2",
        "billing_period": "2026-11", "covers_from": datetime(2026, 11, 1), "covers_to": datetime(2026, 12, 1),
        "submitted_utc": datetime(2026, 11, 24, number), "files": 1, "rows_read": 1, "net_basis": False, "amortised": True, **more,
    }  # fmt: skip


def line(row: int, cost: str, effective: str | None = None, **more: Any) -> dict[str, Any]:
    money = D(cost)
    return {
        "delivery_id": "d1", "object_id": "o", "row_number": row, "provider": "aws", "billing_account_id": "1", "sub_account_id": "2",
        "billing_period": "2026-11", "billing_period_start": datetime(2026, 11, 1), "billing_period_end": datetime(2026, 12, 1),
        "charge_period_start": datetime(2026, 11, 23, 10), "charge_period_end": datetime(2026, 11, 23, 11), "charge_category": "Usage",
        "billed_cost": money, "effective_cost": money if effective is None else D(effective), "billing_currency": "USD",
        "x_line_item_type": "Usage", "x_usage_type": "BoxUsage:p4d.24xlarge", "x_instance_type": "p4d.24xlarge", "resource_id": "i-1",
        "consumed_quantity": D(1), "pricing_category": "Standard", "region_id": "us-east-1", **more,
    }  # fmt: skip


def state(hours: float, name: str, job: int = JOB, **more: Any) -> dict[str, Any]:
    return {"date": date(2026, 11, 23), "hour_utc": datetime(2026, 11, 23, 10), "cluster": "c1", "node_key": NODE, "job_key": job,
            "state": name, "activity_basis": "engine", "gpu_hours": hours, **more}  # fmt: skip


@pytest.fixture
def ledger(warehouse: Warehouse) -> Iterator[Warehouse]:
    """A GPU node with eight GPUs that is billed, and a processed day."""
    warehouse.append(
        "staging.cluster",
        TABLES["staging.cluster"].frame([{"cluster": "c1", "provider": "aws", "region": "us-east-1"}]),
    )
    node = {"node_key": NODE, "cluster": "c1", "node_uid": "n", "name": "n1", "instance_id": "i-1", "instance_type": "p4d.24xlarge",
            "lifecycle": "on_demand", "region": "us-east-1", "zone_key": -1, "gpus": 8.0, "valid_from_ns": 0, "valid_to_ns": 2**62,
            "from_basis": "created", "to_basis": "last_seen"}  # fmt: skip
    warehouse.append("core.node_life", TABLES["core.node_life"].frame([node]))
    warehouse.append(
        "core.processed_day", TABLES["core.processed_day"].frame([{"date": date(2026, 11, 23), "input_digest": "x"}])
    )
    yield warehouse


def run(
    warehouse: Warehouse,
    lines: list[dict[str, Any]],
    states: tuple[dict[str, Any], ...] | list[dict[str, Any]] = (),
    deliveries: list[dict[str, Any]] | None = None,
) -> Warehouse:
    warehouse.append("staging.bill_delivery", TABLES["staging.bill_delivery"].frame(deliveries or [delivery()]))
    warehouse.append("staging.bill_line", TABLES["staging.bill_line"].frame(lines))
    if states:
        warehouse.append("core.gpu_state_hourly", TABLES["core.gpu_state_hourly"].frame(list(states)))
    for model in bill.MODELS:
        if model is not bill.RECONCILIATION:
            model.build(warehouse, DAY, Parameters())
    return warehouse


def scopes(warehouse: Warehouse) -> dict[int, str]:
    return dict(warehouse.query("SELECT row_number, charge_scope FROM core.bill_line WHERE part = 1").rows())


@pytest.mark.parametrize(
    ("usage_type", "operation", "scope"),
    [
        ("BoxUsage:p4d.24xlarge", "RunInstances", "gpu_compute"),
        ("USW2-DataTransfer-Regional-Bytes", "InterZone-In", "inter_az_transfer"),
        ("DataTransfer-Regional-Bytes", "InterZone-Out", "inter_az_transfer"),
        ("DataTransfer-Regional-Bytes", "PublicIP-Out", "regional_other"),
        ("DataTransfer-Regional-Bytes", "LoadBalancing", "regional_other"),
        ("DataTransfer-Regional-Bytes", "VPCPeering-In", "peering"),
        ("USE1-DataTransfer-xAZ-In-Bytes", "", "inter_az_transfer"),
        ("NatGateway-Bytes", "NatGateway", "nat"),
        ("USE1-VpcEndpoint-Bytes", "", "private_link"),
        ("TransitGateway-Bytes", "", "transit_gateway"),
        ("USE1-USW2-AWS-Out-Bytes", "", "inter_region_transfer"),
        ("DataTransfer-Out-Bytes", "RunInstances", "internet_transfer"),
        ("PublicIPv4:InUseAddress", "", "public_ip"),
        ("UnusedBox:p5.48xlarge", "RunInstances", "capacity_unused"),
        ("SomethingNew-Bytes", "", "other"),
    ],
)
def test_b2_each_line_has_one_scope(ledger: Warehouse, usage_type: str, operation: str, scope: str) -> None:
    run(ledger, [line(1, "1", x_usage_type=usage_type, x_operation=operation, resource_id=None)])
    assert scopes(ledger) == {1: scope}


def test_b2_a_recurring_fee_is_two_parts_whose_sums_are_its_cost(ledger: Warehouse) -> None:
    fee = line(
        1,
        "24",
        "3.2",
        x_line_item_type="SavingsPlanRecurringFee",
        charge_category="Purchase",
        resource_id=None,
        x_usage_type="SP",
    )
    run(ledger, [fee])
    parts = ledger.query("SELECT charge_scope, billed_cost, effective_cost FROM core.bill_line ORDER BY part").rows()
    assert parts == [("commitment_purchase", D(24), D(0)), ("commitment_unused", D(0), D("3.2"))]


def test_b2_without_an_operation_the_class_is_uncertain(ledger: Warehouse) -> None:
    vague = line(
        1,
        "1",
        x_usage_type=None,
        resource_id=None,
        charge_description="$0.010 per GB - regional data transfer - in/out",
    )
    run(ledger, [vague])
    assert ledger.query("SELECT charge_scope, scope_certain FROM core.bill_line").rows() == [
        ("inter_az_transfer", False)
    ]


def test_b4_a_newer_delivery_replaces_the_period(ledger: Warehouse) -> None:
    old, new = line(1, "100"), line(1, "93", delivery_id="d2", object_id="p")
    run(ledger, [old, new], deliveries=[delivery(1), delivery(2)])
    assert ledger.query("SELECT sum(billed_cost) AS s FROM core.ledger_line")["s"].to_list() == [D(93)]


def test_b6_g5_a_node_hour_is_split_over_its_gpus_states_exactly(ledger: Warehouse) -> None:
    run(ledger, [line(1, "10")], [state(3.0, "busy"), state(2.0, "idle"), state(3.0, "unallocated", job=-1)])
    parts = ledger.query("SELECT state, effective_cost, cost_basis FROM core.gpu_cost_line ORDER BY state").rows()
    assert parts == [("busy", D("3.75"), "billed"), ("idle", D("2.5"), "billed"), ("unallocated", D("3.75"), "billed")]


def test_b6_before_the_horizon_a_missing_line_is_not_billed_and_after_it_estimated(ledger: Warehouse) -> None:
    later = state(8.0, "busy") | {"hour_utc": datetime(2026, 11, 23, 12)}
    early = state(8.0, "busy") | {"hour_utc": datetime(2026, 11, 23, 9)}
    run(ledger, [line(1, "16", "12")], [state(8.0, "busy"), later, early])
    rows = ledger.query(
        "SELECT hour(hour_utc) AS h, cost_basis, effective_cost FROM core.gpu_cost_line ORDER BY 1"
    ).rows()
    assert rows == [(9, "not_billed", None), (10, "billed", D(12)), (12, "estimated", D(12))]
    assert ledger.query("SELECT sum(effective_cost) AS s FROM core.ledger_line")["s"].to_list() == [D(12)]


def test_n3_without_any_bill_gpu_time_is_unpriced_never_free(ledger: Warehouse) -> None:
    nat = line(1, "1", x_usage_type="NatGateway-Hours", resource_id="nat", charge_period_start=datetime(2026, 11, 23, 8),
               charge_period_end=datetime(2026, 11, 23, 9))  # fmt: skip
    run(ledger, [nat], [state(8.0, "busy")])
    assert ledger.query("SELECT cost_basis, effective_cost FROM core.gpu_cost_line").rows() == [("unpriced", None)]


def test_b6_lines_without_a_resource_id_are_pooled_over_unmatched_nodes(ledger: Warehouse) -> None:
    run(ledger, [line(1, "10", resource_id=None)], [state(8.0, "busy")])
    assert ledger.query("SELECT cost_basis, billed_cost FROM core.gpu_cost_line").rows() == [("pooled", D(10))]


def test_b7_b8_both_measures_are_split_by_the_same_shares_down_to_the_line(ledger: Warehouse) -> None:
    run(ledger, [line(1, "10", "5")], [state(6.0, "busy"), state(2.0, "unallocated", job=-1)])
    rows = ledger.query(
        "SELECT row_number, bucket, job_key, reason, billed_cost, effective_cost FROM core.ledger_line ORDER BY bucket"
    ).rows()
    assert rows == [
        (1, "job", JOB, None, D("7.5"), D("3.75")),
        (1, "unattributed", -1, "unallocated", D("2.5"), D("1.25")),
    ]


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"resource_id": "i-unknown"}, "no_node"),
        ({"charge_period_start": datetime(2026, 11, 25, 1), "charge_period_end": datetime(2026, 11, 25, 2)}, "not_run"),
        ({}, "no_gpu_state"),
        ({"x_source_changes": "rejected: bad_value: x"}, "rejected"),
    ],
)
def test_n6_what_nothing_claims_is_unattributed_with_its_reason(
    ledger: Warehouse, more: dict[str, Any], reason: str
) -> None:
    run(ledger, [line(1, "10", **more)])
    assert ledger.query("SELECT bucket, reason, billed_cost FROM core.ledger_line").rows() == [
        ("unattributed", reason, D(10))
    ]


def test_n6_a_line_longer_than_a_day_stays_whole_on_its_start(ledger: Warehouse) -> None:
    tax = line(1, "118.42", charge_category="Tax", x_line_item_type="Tax", x_usage_type=None, resource_id=None,
               charge_period_start=datetime(2026, 11, 1), charge_period_end=datetime(2026, 12, 1))  # fmt: skip
    run(ledger, [tax])
    assert ledger.query("SELECT date, charge_span, charge_scope, bucket FROM core.ledger_line").rows() == [
        (date(2026, 11, 1), "period", "tax", "out_of_scope")
    ]


def test_n5_two_currencies_are_never_added(ledger: Warehouse) -> None:
    run(ledger, [line(1, "10"), line(2, "10", billing_currency="NOK")])
    assert ledger.query("SELECT currency, billed_cost FROM mart.fact_cost_bridge ORDER BY 1").rows() == [
        ("NOK", D(10)),
        ("USD", D(10)),
    ]


def test_b7_the_bridge_leads_from_billed_to_effective(ledger: Warehouse) -> None:
    fee = line(
        2,
        "24",
        "3",
        x_line_item_type="SavingsPlanRecurringFee",
        charge_category="Purchase",
        resource_id=None,
        x_usage_type="SP",
    )
    run(ledger, [line(1, "0", "21"), fee])
    row = ledger.query(
        "SELECT billed_cost, purchases, used_amortisation, unused_amortisation, effective_cost FROM mart.fact_cost_bridge"
    )
    assert row.rows() == [(D(24), D(24), D(21), D(3), D(24))]


def test_n4_published_money_agrees_from_totals_to_facts(ledger: Warehouse) -> None:
    third = [state(1.0, "busy", cause=None), state(1.0, "idle", cause="pause"), state(1.0, "unallocated", job=-1)]
    run(ledger, [line(1, "0.000001"), line(2, "0.0000005", x_usage_type="NatGateway-Bytes", resource_id="nat")], third)
    facts = ledger.query("SELECT sum(billed_cost) AS s FROM mart.fact_gpu_hours")["s"][0]
    rows = dict(ledger.query("SELECT charge_scope, sum(billed_cost) FROM mart.fact_cost_ledger GROUP BY ALL").rows())
    assert facts == rows["gpu_compute"] == D("0.000001")


def test_n7_running_again_changes_nothing(ledger: Warehouse) -> None:
    run(
        ledger,
        [line(1, "10", "5"), line(2, "1", x_usage_type="NatGateway-Hours")],
        [state(6.0, "busy"), state(2.0, "idle")],
    )
    before = {
        name: ledger.table(name).sort(pl_all(ledger, name)) for name in ("core.ledger_line", "mart.fact_gpu_hours")
    }
    for model in bill.MODELS:
        if model is not bill.RECONCILIATION:
            model.build(ledger, DAY, Parameters())
    for name, frame in before.items():
        assert ledger.table(name).sort(pl_all(ledger, name)).equals(frame)


def pl_all(warehouse: Warehouse, name: str) -> list[str]:
    return warehouse.table(name).columns


def test_r1_a_day_is_open_until_its_hours_are_there_and_three_days_have_passed(ledger: Warehouse) -> None:
    run(ledger, [line(1, "10"), line(2, "1", charge_period_start=datetime(2026, 11, 24, 23), charge_period_end=datetime(2026, 11, 25))],
        deliveries=[delivery(1, submitted_utc=datetime(2026, 11, 27, 1))])  # fmt: skip
    rows = ledger.query("SELECT date, status FROM mart.fact_bill_status ORDER BY 1").rows()
    assert rows == [(date(2026, 11, 23), "settled"), (date(2026, 11, 24), "open")]
