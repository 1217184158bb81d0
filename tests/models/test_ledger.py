"""From delivery to ledger and facts over several runs: restatement (B4), order of windows (N7), discounts (B3), rounding (N4)."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from models.contracts import TABLES
from models.engine.warehouse import Warehouse, Window
from tests.models.bill_world import (
    JOB,
    NODE,
    add_gpu_time,
    at,
    cur_row,
    deliver_cur,
    home,
    node,
    on,
    process,
    stage_source,
)

D = Decimal


def facts(warehouse: Warehouse) -> list[tuple[Any, ...]]:
    return warehouse.query(
        "SELECT day(date) AS d, cost_basis, sum(effective_cost) AS cost FROM mart.fact_gpu_hours GROUP BY ALL ORDER BY 1, 2"
    ).rows()


def everything(warehouse: Warehouse) -> dict[str, list[tuple[Any, ...]]]:
    tables = ("core.node_bill_hourly", "core.gpu_cost_line", "core.ledger_line", "mart.fact_gpu_hours", "mart.fact_cost_ledger",
              "mart.fact_reconciliation", "mart.fact_cost_bridge")  # fmt: skip
    return {name: sorted(warehouse.table(name).rows(), key=str) for name in tables}


def test_b4_a_newer_delivery_reaches_days_that_were_run_before(tmp_path: Path) -> None:
    """Day 23 was run with the month to date; day 24 is run with the next delivery, which also changes day 23."""
    with home(tmp_path) as warehouse:
        add_gpu_time(warehouse, (23, 10), (24, 10))
        stage_source(warehouse, deliver_cur(tmp_path / "in", [cur_row(23)], submitted=at(24)))
        process(warehouse, on(23))
        stage_source(warehouse, deliver_cur(tmp_path / "in", [cur_row(23, cost=9.0), cur_row(24)], submitted=at(25)))
        process(warehouse, on(24))
        assert facts(warehouse) == [(23, "billed", D(9)), (24, "billed", D(10))]
        buckets = warehouse.query(
            "SELECT bucket, sum(effective_cost) AS cost FROM core.ledger_line GROUP BY ALL"
        ).rows()
        assert buckets == [("job", D(19))]


def test_n7_estimates_end_when_the_bill_comes_in_any_order_of_runs(tmp_path: Path) -> None:
    """An hour without a line is an accrual at the newest price; once it is billed, the accrual is gone without a run of its day."""
    with home(tmp_path) as warehouse:
        add_gpu_time(warehouse, (22, 10), (23, 10), (24, 10))
        stage_source(warehouse, deliver_cur(tmp_path / "in", [cur_row(22, cost=12.0)], submitted=at(23)))
        process(warehouse, on(23))  # before the day that has the price
        process(warehouse, on(22))
        assert facts(warehouse) == [(22, "billed", D(12)), (23, "estimated", D(12))]
        assert warehouse.query("SELECT sum(effective_cost) AS c FROM core.ledger_line")["c"].to_list() == [D(12)]
        stage_source(
            warehouse, deliver_cur(tmp_path / "in", [cur_row(22, cost=12.0), cur_row(23, cost=11.0)], submitted=at(24))
        )
        process(warehouse, on(24))
        assert facts(warehouse) == [(22, "billed", D(12)), (23, "billed", D(11)), (24, "estimated", D(11))]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_n7_windows_in_any_order_and_split_give_the_same_money(tmp_path: Path, order: tuple[int, ...]) -> None:
    rows = [cur_row(day, cost=10 / 3) for day in (22, 23, 24)]
    rows.append(
        cur_row(
            22,
            cost=-1.0,
            line_item_line_item_type="EdpDiscount",
            line_item_resource_id="",
            line_item_usage_end_date=at(25),
        )
    )
    windows = [on(22), on(23), on(24)]
    results = []
    for name, runs in (("split", [windows[n] for n in order]), ("whole", [on(22, 24)])):
        with home(tmp_path / name) as warehouse:
            add_gpu_time(warehouse, (22, 10), (23, 10), (24, 10), gpus=5)
            stage_source(warehouse, deliver_cur(tmp_path / name / "in", rows))
            for window in runs:
                process(warehouse, window)
            results.append(everything(warehouse))
    assert results[0] == results[1]


def test_n7_a_later_month_leaves_the_facts_of_an_earlier_one(tmp_path: Path) -> None:
    """A day of November is corrected in December's bill; a run of December keeps what November's bill paid."""
    with home(tmp_path) as warehouse:
        add_gpu_time(warehouse, (23, 10))
        deliver_cur(tmp_path / "in", [cur_row(23)])
        stage_source(warehouse, deliver_cur(tmp_path / "in", [cur_row(23, cost=1.0)], period="2026-12"))
        process(warehouse, on(23))
        assert facts(warehouse) == [(23, "billed", D(11))]
        process(warehouse, Window(date(2026, 12, 1), date(2026, 12, 2)))
        assert facts(warehouse) == [(23, "billed", D(11))]
        periods = warehouse.query(
            "SELECT billing_period, bill_total, difference FROM mart.fact_reconciliation WHERE measure = 'billed' ORDER BY 1"
        )
        assert periods.rows() == [("2026-11", D(10), D(0)), ("2026-12", D(1), D(0))]


def test_b3_a_discount_row_adds_cost_and_no_quantity(tmp_path: Path) -> None:
    """It belongs to the usage of its type, account and hour: three quarters of it on the node, a quarter on another instance."""
    discount = cur_row(
        cost=-4.0, line_item_line_item_type="EdpDiscount", line_item_resource_id="", line_item_usage_amount=2.0
    )
    rows = [
        cur_row(line_item_usage_amount=0.75),
        cur_row(line_item_usage_amount=0.25, line_item_resource_id="i-other"),
        discount,
    ]
    with home(tmp_path) as warehouse:
        add_gpu_time(warehouse, (23, 10))
        stage_source(warehouse, deliver_cur(tmp_path / "in", rows))
        process(warehouse, on(23))
        hours = warehouse.query(
            "SELECT sum(instance_hours) AS h, sum(share_billed) AS cost FROM core.node_bill_hourly"
        ).row(0)
        assert hours == (0.75, D(7))
        ledger = warehouse.query(
            "SELECT row_number, bucket, reason, billed_cost FROM core.ledger_line ORDER BY row_number, bucket"
        ).rows()
        assert ledger == [(1, "job", None, D(10)), (2, "unattributed", "no_node", D(10)), (3, "job", None, D(-3)),
                          (3, "unattributed", "no_node", D(-1))]  # fmt: skip
        assert warehouse.query("SELECT sum(gpu_hours) AS h FROM mart.fact_gpu_hours")["h"].to_list() == [8.0]


def test_b6_a_daily_line_is_spread_over_the_hours_that_the_node_was_up(tmp_path: Path) -> None:
    """Up from 20:00: four hours; each hour gets a quarter, and the day's line is complete."""
    born = int((at(23, 20) - at(1)).total_seconds() + 1_793_491_200) * 10**9
    with home(tmp_path) as warehouse:
        warehouse.con.execute("DELETE FROM core.node_life")
        warehouse.append("core.node_life", TABLES["core.node_life"].frame([node(valid_from_ns=born)]))
        stage_source(
            warehouse,
            deliver_cur(tmp_path / "in", [cur_row(23, 0, line_item_usage_end_date=at(24), line_item_usage_amount=4.0)]),
        )
        process(warehouse, on(23))
        rows = warehouse.query(
            "SELECT hour(hour_utc) AS h, instance_hours, share_billed FROM core.node_bill_hourly ORDER BY 1"
        ).rows()
        assert rows == [(hour, 1.0, D("2.5")) for hour in (20, 21, 22, 23)]


def test_b6_a_line_over_midnight_is_whole_over_two_windows(tmp_path: Path) -> None:
    with home(tmp_path) as warehouse:
        stage_source(
            warehouse,
            deliver_cur(
                tmp_path / "in", [cur_row(23, 22, line_item_usage_end_date=at(24, 2), line_item_usage_amount=4.0)]
            ),
        )
        process(warehouse, on(24))
        process(warehouse, on(23))
        rows = warehouse.query(
            "SELECT day(date) AS d, sum(share_billed) AS cost FROM core.node_bill_hourly GROUP BY ALL ORDER BY 1"
        ).rows()
        assert rows == [(23, D(5)), (24, D(5))]


def test_b6_pooled_lines_keep_to_their_cluster_and_to_nodes_without_a_line(tmp_path: Path) -> None:
    with home(tmp_path) as warehouse:
        more = [node(node_key=12, node_uid="n2", name="n2", instance_id="i-2"), node(node_key=13, node_uid="n3", name="n3", instance_id="i-3"),
                node(node_key=14, cluster="c2", node_uid="n4", name="n4", instance_id="i-4")]  # fmt: skip
        warehouse.append("core.node_life", TABLES["core.node_life"].frame(more))
        warehouse.append(
            "staging.cluster",
            TABLES["staging.cluster"].frame([{"cluster": "c2", "provider": "aws", "region": "us-east-1"}]),
        )
        pooled = cur_row(
            cost=6.0, line_item_usage_amount=2.0, line_item_resource_id=None, product_region_code="us-east-1"
        )
        stage_source(warehouse, deliver_cur(tmp_path / "in", [cur_row()], [pooled]))
        warehouse.con.execute(
            "UPDATE staging.bill_line SET tags = $tags WHERE resource_id IS NULL",
            {"tags": '{"aws_eks_cluster_name": "c1"}'},
        )
        process(warehouse, on(23))
        rows = warehouse.query(
            "SELECT node_key, cost_basis, instance_hours, share_billed FROM core.node_bill_hourly ORDER BY 1"
        ).rows()
        assert rows == [(NODE, "billed", 1.0, D(10)), (12, "pooled", 1.0, D(3)), (13, "pooled", 1.0, D(3))]


def test_b6_the_horizon_is_that_of_the_bill_which_charges_the_cluster(tmp_path: Path) -> None:
    """Another cloud's bill is a day ahead; the node's hour after its own bill's horizon is an accrual, not `not_billed`."""
    with home(tmp_path) as warehouse:
        add_gpu_time(warehouse, (23, 10), (23, 12))
        stage_source(warehouse, deliver_cur(tmp_path / "in", [cur_row(23, 10)]))
        ahead = warehouse.table("staging.bill_line").row(0, named=True)
        other = {**ahead, "delivery_id": "z", "object_id": "z", "provider": "gcp", "resource_id": "vm", "tags": None,
                 "charge_period_start": at(24, 10), "charge_period_end": at(24, 11)}  # fmt: skip
        delivery = {
            **warehouse.table("staging.bill_delivery").row(0, named=True),
            "delivery_id": "z",
            "provider": "gcp",
            "export_scope": "z",
        }
        warehouse.append("staging.bill_line", TABLES["staging.bill_line"].frame([other]))
        warehouse.append("staging.bill_delivery", TABLES["staging.bill_delivery"].frame([delivery]))
        process(warehouse, on(23), reconcile=False)
        assert facts(warehouse) == [(23, "billed", D(10)), (23, "estimated", D(10))]


def test_b7_list_cost_follows_the_shares_of_the_cost(tmp_path: Path) -> None:
    with home(tmp_path) as warehouse:
        add_gpu_time(warehouse, (23, 10), gpus=6)
        stage_source(warehouse, deliver_cur(tmp_path / "in", [cur_row(pricing_public_on_demand_cost=16.0)]))
        process(warehouse, on(23))
        rows = warehouse.query(
            "SELECT job_key, list_cost, contracted_cost, effective_cost FROM core.ledger_line ORDER BY 1 DESC"
        ).rows()
        assert rows[0][0] == JOB
        assert [row[3] for row in rows] == [D("7.5"), D("2.5")]
        assert sum(row[1] for row in rows) == 16
        assert abs(rows[0][1] - 12) < D("0.000001")


def test_n4_published_sums_agree_from_total_to_ledger_to_fact(tmp_path: Path) -> None:
    """Thirds of millionths, over a week of odd amounts: each published total is the sum of its published parts."""
    hours = [(day, hour) for day in (22, 23) for hour in range(6)]
    rows = [cur_row(day, hour, cost=(day * 7 + hour) / 3e5) for day, hour in hours]
    with home(tmp_path) as warehouse:
        add_gpu_time(warehouse, *hours, gpus=3)
        stage_source(warehouse, deliver_cur(tmp_path / "in", rows))
        process(warehouse, on(22, 23))
        for day in (22, 23):
            bound = {"day": at(day).date()}
            exact = warehouse.query(
                "SELECT round(sum(billed_cost), 6) AS c FROM core.ledger_line WHERE date = $day", bound
            )["c"][0]
            ledger = warehouse.query(
                "SELECT sum(billed_cost) AS c FROM mart.fact_cost_ledger WHERE date = $day", bound
            )["c"][0]
            parts = warehouse.query("SELECT sum(billed_cost) AS c FROM mart.fact_gpu_hours WHERE date = $day", bound)[
                "c"
            ][0]
            assert exact == ledger == parts
        by_job = "SELECT job_key, sum(effective_cost) AS c FROM {} GROUP BY ALL ORDER BY 1"
        assert (
            warehouse.query(by_job.format("mart.fact_gpu_hours")).rows()
            == warehouse.query(by_job.format("mart.fact_cost_ledger")).rows()
        )
        bridge = warehouse.query("SELECT billed_cost, effective_cost FROM mart.fact_cost_bridge").row(0)
        published = warehouse.query(
            "SELECT sum(billed_cost) AS b, sum(effective_cost) AS e FROM mart.fact_cost_ledger"
        ).row(0)
        assert bridge == published


def test_b3_without_amortised_data_effective_cost_is_unknown_never_zero(tmp_path: Path) -> None:
    row = cur_row(line_item_line_item_type="SavingsPlanCoveredUsage", savings_plan_savings_plan_a_r_n="arn:sp")
    del row["savings_plan_savings_plan_effective_cost"]
    with home(tmp_path) as warehouse:
        add_gpu_time(warehouse, (23, 10))
        stage_source(warehouse, deliver_cur(tmp_path / "in", [row]))
        process(warehouse, on(23))
        assert facts(warehouse) == [(23, "billed", None)]
        assert warehouse.query("SELECT effective_cost FROM mart.fact_cost_ledger").rows() == [(None,)]
        assert warehouse.query("SELECT measure, unknown_lines, difference FROM mart.fact_reconciliation ORDER BY 1").rows() == [
            ("billed", 0, D(0)), ("effective", 1, D(0)),
        ]  # fmt: skip


def test_b4_the_days_between_two_deliveries_are_growth_not_restatement(tmp_path: Path) -> None:
    with home(tmp_path) as warehouse:
        stage_source(warehouse, deliver_cur(tmp_path / "in", [cur_row(10)], submitted=at(11)))
        stage_source(warehouse, deliver_cur(tmp_path / "in", [cur_row(10), cur_row(11)], submitted=at(12)))
        process(warehouse, on(10, 11))
        assert warehouse.table("mart.fact_restatement").is_empty()
