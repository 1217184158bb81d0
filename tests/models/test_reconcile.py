"""The ledger against the files as received (N6): sums of its own, and what makes it fail."""

from __future__ import annotations

import os
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from connectors.objects import Source
from models import bill
from models.engine.warehouse import Warehouse, Window
from models.parameters import Parameters
from models.reconcile import ReconciliationError, independent_bill_totals, violations
from tests.models.bill_world import add_gpu_time, at, cur_row, deliver_cur, home, on, process, stage_source

D = Decimal
PLAN = {"savings_plan_savings_plan_a_r_n": "arn:sp"}
FOCUS_HEADER = "BilledCost,EffectiveCost,BillingCurrency,BillingPeriodStart,BillingPeriodEnd,ChargePeriodStart,ChargePeriodEnd,ChargeCategory,BillingAccountId,ProviderName"


def focus_row(cost: str, day: int, effective: str = "1") -> str:
    return f"{cost},{effective},USD,2026-11-01T00:00:00Z,2026-12-01T00:00:00Z,2026-11-{day:02d}T10:00:00Z,2026-11-{day:02d}T11:00:00Z,Usage,0123,AWS"


def totals(warehouse: Warehouse) -> dict[str, Decimal]:
    assert warehouse.home is not None
    frame = independent_bill_totals(warehouse, warehouse.home / "landing")
    return dict(frame.select("measure", "total").rows())


def differences(warehouse: Warehouse) -> list[tuple[Any, ...]]:
    return warehouse.query(
        "SELECT measure, bill_total, ledger_total, difference FROM mart.fact_reconciliation ORDER BY 1"
    ).rows()


def conservation(warehouse: Warehouse) -> list[str]:
    """Violations of the money's own checks; dimensions are not built here."""
    return [
        text for text in violations(warehouse) if any(name in text for name in ("ledger_is_the_bill", "in_the_ledger"))
    ]


def every_kind() -> list[dict[str, Any]]:
    """A row of each line type whose amortisation has a rule of its own."""
    return [
        cur_row(cost=0.1),
        cur_row(cost=30.0, line_item_line_item_type="SavingsPlanCoveredUsage", savings_plan_savings_plan_effective_cost=18.5, **PLAN),
        cur_row(cost=-30.0, line_item_line_item_type="SavingsPlanNegation", line_item_resource_id="", **PLAN),
        cur_row(cost=20.0, line_item_line_item_type="SavingsPlanRecurringFee", savings_plan_total_commitment_to_date=20.0,
                savings_plan_used_commitment=18.5, **PLAN),
        cur_row(cost=900.0, line_item_line_item_type="SavingsPlanUpfrontFee", **PLAN),
        cur_row(cost=0.0, line_item_line_item_type="DiscountedUsage", reservation_effective_cost=0.7, reservation_reservation_a_r_n="arn:ri"),
        cur_row(cost=500.0, line_item_line_item_type="RIFee", reservation_reservation_a_r_n="arn:ri", reservation_unused_recurring_fee=1.25,
                reservation_unused_amortized_upfront_fee_for_billing_period=0.5),
        cur_row(cost=250.0, line_item_line_item_type="Fee", reservation_reservation_a_r_n="arn:ri"),
        cur_row(cost=12.0, line_item_line_item_type="Fee"),
        cur_row(cost=-5.0, line_item_line_item_type="Refund", line_item_line_item_description="Refund for one-time fee for Savings Plan ID x"),
        cur_row(cost=-3.0, line_item_line_item_type="Refund"),
        cur_row(cost=-0.3, line_item_line_item_type="EdpDiscount"),
        cur_row(cost=7.77, line_item_line_item_type="Tax"),
        cur_row(cost=99.0, line_item_operation="EKSPod-EC2"),
    ]  # fmt: skip


def test_n6_every_line_type_reconciles_and_the_total_is_known(tmp_path: Path) -> None:
    """Effective: .1 + 18.5 + 1.5 + .7 + 1.75 + 12 - 3 - .3 + 7.77; billed: all but the split-cost row."""
    with home(tmp_path) as warehouse:
        add_gpu_time(warehouse, (23, 10), gpus=5)
        stage_source(warehouse, deliver_cur(tmp_path / "in", every_kind()[:6], every_kind()[6:]))
        process(warehouse, on(23))
        assert totals(warehouse) == {"billed": D("1681.57"), "effective": D("39.02")}
        assert [row[3] for row in differences(warehouse)] == [0, 0]
        assert conservation(warehouse) == []


def test_n6_a_whole_period_reconciles_whatever_the_window(tmp_path: Path) -> None:
    with home(tmp_path) as warehouse:
        stage_source(warehouse, deliver_cur(tmp_path / "in", [cur_row(day, cost=1.5) for day in range(1, 31)]))
        process(warehouse, on(23))
        assert differences(warehouse)[0] == ("billed", D(45), D(45), 0)
        reasons = warehouse.query(
            "SELECT reason, sum(billed_cost) FROM core.ledger_line GROUP BY ALL ORDER BY 1"
        ).rows()
        assert reasons == [("no_gpu_state", D("1.5")), ("not_run", D("43.5"))]


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM core.ledger_line WHERE row_number = 1",
        "UPDATE core.ledger_line SET billed_cost = billed_cost + 0.000000000001 WHERE row_number = 1",
        "INSERT INTO core.ledger_line SELECT * FROM core.ledger_line WHERE row_number = 1",
    ],
)
def test_n6_a_ledger_that_is_not_the_bill_is_found(tmp_path: Path, damage: str) -> None:
    with home(tmp_path) as warehouse:
        stage_source(warehouse, deliver_cur(tmp_path / "in", [cur_row(), cur_row(cost=2.0)]))
        process(warehouse, on(23))
        assert conservation(warehouse) == []
        warehouse.con.execute(damage)
        bill.build_reconciliation(warehouse, on(23), Parameters())
        assert [text for text in conservation(warehouse) if "ledger_is_the_bill" in text]


def test_n6_a_line_lost_between_landing_and_staging_is_found(tmp_path: Path) -> None:
    with home(tmp_path) as warehouse:
        stage_source(warehouse, deliver_cur(tmp_path / "in", [cur_row(), cur_row(cost=2.0)]))
        warehouse.con.execute("DELETE FROM staging.bill_line WHERE row_number = 2")
        process(warehouse, on(23))
        assert differences(warehouse)[0] == ("billed", D(12), D(10), D(2))


def test_n6_a_coarse_cut_can_not_hide_behind_the_rounding_residue(tmp_path: Path) -> None:
    with home(tmp_path) as warehouse:
        stage_source(warehouse, deliver_cur(tmp_path / "in", [cur_row(cost=0.123456789)]))
        process(warehouse, on(23))
        warehouse.con.execute("UPDATE core.bill_line SET billed_cost = 0.12, effective_cost = 0.12")
        warehouse.con.execute("UPDATE core.ledger_line SET billed_cost = 0.12, effective_cost = 0.12")
        bill.build_reconciliation(warehouse, on(23), Parameters())
        assert [row[3] for row in differences(warehouse)] == [0, 0]
        assert [text for text in conservation(warehouse) if "ledger_is_the_bill" in text]


def test_b4_a_newer_delivery_stands_alone_in_both_totals(tmp_path: Path) -> None:
    """Day 10 of a month: cost 100, then 93: 93, never 193."""
    with home(tmp_path) as warehouse:
        stage_source(warehouse, deliver_cur(tmp_path / "in", [cur_row(10, cost=100.0)], submitted=at(11)))
        stage_source(warehouse, deliver_cur(tmp_path / "in", [cur_row(10, cost=93.0)], submitted=at(12)))
        process(warehouse, on(10))
        assert totals(warehouse)["billed"] == 93
        assert differences(warehouse)[0] == ("billed", D(93), D(93), 0)
        changed = warehouse.query(
            "SELECT week, measure, before, after, delta, cause FROM mart.fact_restatement WHERE measure = $m",
            {"m": "billed_cost"},
        )
        assert changed.rows() == [("2026-W46", "billed_cost", D(100), D(93), D(-7), "newer delivery of 2026-11")]


def test_b4_focus_files_add_up_and_a_newer_version_replaces_its_days(tmp_path: Path) -> None:
    source = Source("focus", "focus", tmp_path / "in")
    (tmp_path / "in").mkdir()

    def write(name: str, *rows: str, header: str = FOCUS_HEADER) -> None:
        (tmp_path / "in" / name).write_text("\n".join([header, *rows]) + "\n")

    with home(tmp_path) as warehouse:
        write("a.csv", focus_row("1.5", 3), focus_row("2.5", 4))
        write("b.csv", focus_row("10", 3))
        stage_source(warehouse, source)
        process(warehouse, on(3))
        assert totals(warehouse) == {"billed": 14, "effective": 3}
        # a later version, of FOCUS 1.2 and without day 3: day 4 is replaced, day 3 stays
        write("a.csv", focus_row("4", 4) + ",inv-1", header=FOCUS_HEADER + ",InvoiceId")
        later = at(30).timestamp() + 10**8
        os.utime(tmp_path / "in" / "a.csv", (later, later))
        stage_source(warehouse, source)
        process(warehouse, on(3))
        assert totals(warehouse) == {"billed": D("15.5"), "effective": 3}
        assert [row[3] for row in differences(warehouse)] == [0, 0]


def test_n6_a_received_file_that_is_gone_is_an_error_that_says_so(tmp_path: Path) -> None:
    with home(tmp_path) as warehouse:
        stage_source(warehouse, deliver_cur(tmp_path / "in", [cur_row()]))
        for file in (tmp_path / "landing" / "bill").glob("*.parquet"):
            file.unlink()
        with pytest.raises(ReconciliationError, match="run again from its source"):
            totals(warehouse)


def test_n6_a_chunk_of_split_cost_rows_alone_is_no_missing_file(tmp_path: Path) -> None:
    with home(tmp_path) as warehouse:
        stage_source(warehouse, deliver_cur(tmp_path / "in", [cur_row()], [cur_row(line_item_operation="EKSPod-EC2")]))
        process(warehouse, on(23))
        assert differences(warehouse)[0] == ("billed", D(10), D(10), 0)


def test_b3_the_net_basis_is_chosen_for_the_delivery_in_both_totals(tmp_path: Path) -> None:
    chunks = (
        [cur_row(cost=10.0, line_item_net_unblended_cost=None)],
        [cur_row(cost=10.0, line_item_net_unblended_cost=8.5)],
    )
    with home(tmp_path) as warehouse:
        stage_source(warehouse, deliver_cur(tmp_path / "in", *chunks))
        process(warehouse, on(23))
        assert differences(warehouse)[0] == ("billed", D("18.5"), D("18.5"), 0)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    costs=st.lists(
        st.floats(min_value=-1e6, max_value=1e6, allow_nan=False, allow_infinity=False), min_size=1, max_size=6
    ),
    gpus=st.integers(min_value=0, max_value=8),
)
def test_n6_any_doubles_reconcile_to_the_last_digit(
    tmp_path_factory: pytest.TempPathFactory, costs: list[float], gpus: int
) -> None:
    folder = tmp_path_factory.mktemp("money")
    with home(folder) as warehouse:
        add_gpu_time(warehouse, (23, 10), gpus=gpus)
        stage_source(warehouse, deliver_cur(folder / "in", [cur_row(cost=cost) for cost in costs]))
        process(warehouse, on(23))
        exact = sum((D(repr(cost)).quantize(D("1e-18")) for cost in costs), D(0))
        assert totals(warehouse)["billed"] == exact
        assert conservation(warehouse) == []


def test_the_official_focus_sample_reconciles(tmp_path: Path, shared_data: Path) -> None:
    source = Source("focus", "focus", shared_data / "billing" / "focus" / "FOCUS-1.0_focus_sample_1000.csv")
    with home(tmp_path) as warehouse:
        stage_source(warehouse, source)
        process(warehouse, Window(date(2024, 9, 1), date(2024, 10, 1)))
        rows = warehouse.query(
            "SELECT provider, bill_total, difference FROM mart.fact_reconciliation WHERE measure = 'billed'"
        )
        assert rows["difference"].to_list() == [0] * rows.height
        billed = dict(rows.group_by("provider").agg(pl.col("bill_total").sum()).rows())
        assert billed == {"aws": D("18.0066386184"), "azure": D("1.97651418586"), "oracle": D("0.53707392473")}
        regional = warehouse.query(
            "SELECT count(*) AS n, sum(quantity) AS gb, sum(billed_cost) AS cost, bool_or(scope_certain) AS certain"
            " FROM core.bill_line WHERE charge_scope = 'inter_az_transfer'"
        ).row(0)
        assert regional == (58, D("0.6809419853"), D("0.0068094198"), False)
        reasons = warehouse.query(
            "SELECT DISTINCT bucket, reason FROM core.ledger_line WHERE charge_scope = 'inter_az_transfer'"
        ).rows()
        assert reasons == [("unattributed", "no_evidence")]
