"""The bill from staged lines to the ledger: deliveries in force, charge scopes, node-hours, what paid for which state.

Splits are exact to the twelfth place (`money`). The ledger keeps every part of every line: with a job, unattributed with
a reason, or out of scope; what nothing claims is a row of its own, so that the ledger is the bill (N6, N8).
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date, timedelta
from pathlib import Path

import polars as pl

from models.attribution import build_transfer_cost
from models.engine.run import Model
from models.engine.warehouse import Warehouse, WarehouseError, Window, load_sql
from models.gpu_states import build_gpu_causes
from models.money import round_sql, split_sql
from models.parameters import Parameters
from models.reconcile import independent_bill_totals, ledger_cut

_HERE = Path(__file__).resolve().parent
_LINE_KEY = ("delivery_id", "object_id", "row_number", "part")


def scope_rules() -> pl.DataFrame:
    """The reviewed table of charge scopes, in order of priority (B2)."""
    rules = pl.read_csv(_HERE / "charge_scopes.csv", infer_schema=False).with_columns(
        pl.col("priority", "certain").cast(pl.Int64)
    )
    blank = [name for name, kind in rules.schema.items() if kind == pl.String]
    return rules.with_columns(
        pl.when(pl.col(name) == "").then(None).otherwise(pl.col(name)).alias(name) for name in blank
    ).with_row_index("rule_id")


def build_bill_line(warehouse: Warehouse, window: Window, parameters: Parameters) -> None:
    """Fill `core.bill_line` for the billing periods that the window's bills touch."""
    periods = _periods(warehouse, window)
    bound = {"periods": periods}
    warehouse.scratch_frame("charge_scope_rule", scope_rules())
    warehouse.scratch_frame("gpu_instance_type", pl.read_csv(_HERE / "gpu_instance_types.csv", infer_schema=False))
    warehouse.scratch_sql("bill_in_force", load_sql("core.bill_line__in_force"), bound)
    warehouse.scratch_sql("bill_scope", load_sql("core.bill_line__scope"))
    warehouse.run_sql_model("core.bill_line", bound, periods=periods)
    warehouse.drop_scratch("charge_scope_rule", "gpu_instance_type", "bill_in_force", "bill_scope")


def _periods(warehouse: Warehouse, window: Window) -> list[str]:
    """Billing periods of the window's months, and later ones that correct its days (a charge may be billed a month on)."""
    late = warehouse.query(
        "SELECT DISTINCT billing_period FROM staging.bill_line WHERE charge_period_start >= $from_date"
        " AND charge_period_start < $to_date",
        window.parameters(),
    )["billing_period"].to_list()
    return sorted({*window.periods, *late})


def build_node_bill_hourly(warehouse: Warehouse, window: Window, parameters: Parameters) -> None:
    """Fill `core.node_bill_hourly`: each compute line on the node-hours that it pays for, exactly (B6).

    Days outside the window that were split over lines which are no longer in force, or before their lines came, are
    split again, so that a newer delivery reaches every day that was run (B4, N7).
    """
    _node_bill(warehouse, window)
    for stale in _spans(_stale_days(warehouse, window)):
        _node_bill(warehouse, stale)
        build_transfer_cost(warehouse, stale, parameters)
        build_gpu_causes(warehouse, stale, parameters)  # the hourly capacity follows the hours that were billed (G1)
        build_gpu_cost_line(warehouse, stale, parameters)


def _node_bill(warehouse: Warehouse, window: Window) -> None:
    bound = window.parameters()
    warehouse.scratch_sql("compute_unit", load_sql("core.node_bill_hourly__unit"), bound)
    warehouse.scratch_sql("compute_split", _split_compute("compute_unit"))
    warehouse.scratch_sql("discount_unit", load_sql("core.node_bill_hourly__discount"), bound)
    warehouse.scratch_sql("discount_split", _split_compute("discount_unit"))
    warehouse.run_sql_model("core.node_bill_hourly", bound, window=window)
    warehouse.drop_scratch("compute_unit", "compute_split", "discount_unit", "discount_split")


def _split_compute(unit: str) -> str:
    return split_sql(
        unit,
        group=_LINE_KEY,
        key=("for_hour", "for_node"),
        weight="weight",
        amounts=("billed_cost", "effective_cost"),
    )


def _stale_days(warehouse: Warehouse, window: Window) -> list[date]:
    days = warehouse.query(load_sql("core.node_bill_hourly__stale"), window.parameters())["date"]
    return [day for day in days.to_list() if not window.from_date <= day < window.to_date]


def _spans(days: Iterable[date]) -> list[Window]:
    """Runs of consecutive days as windows."""
    spans: list[Window] = []
    for day in sorted(set(days)):
        if spans and spans[-1].to_date == day:
            spans[-1] = Window(spans[-1].from_date, day + timedelta(days=1))
        else:
            spans.append(Window(day, day + timedelta(days=1)))
    return spans


def build_gpu_cost_line(warehouse: Warehouse, window: Window, parameters: Parameters) -> None:
    """Fill `core.gpu_cost_line`: what paid for each GPU state; hours without a line are estimated or say why not (B6)."""
    bound = window.parameters()
    warehouse.scratch_sql("gpu_paid", load_sql("core.gpu_cost_line__paid"), bound)
    split = split_sql(
        "gpu_paid",
        group=(*_LINE_KEY, "node_key", "hour_utc"),
        key=("state_id",),
        weight="weight",
        amounts=("share_billed", "share_effective"),
    )
    warehouse.scratch_sql("gpu_split", split)
    warehouse.scratch_sql("gpu_price", load_sql("core.gpu_cost_line__price"))
    warehouse.run_sql_model("core.gpu_cost_line", bound, window=window)
    warehouse.drop_scratch("gpu_paid", "gpu_split", "gpu_price")


def build_ledger(warehouse: Warehouse, window: Window, parameters: Parameters) -> None:
    """Fill `core.ledger_line` for the window's billing periods, from every day processed so far."""
    periods = _periods(warehouse, window)
    warehouse.scratch_sql("ledger_part", load_sql("core.ledger_line__part"), {"periods": periods})
    # list and contracted cost follow the shares of the cost that was split
    warehouse.scratch_sql(
        "ledger_split",
        split_sql(
            "ledger_part",
            group=_LINE_KEY,
            key=("job_key", "reason"),
            weight="weight",
            amounts=("list_cost", "contracted_cost"),
        ),
    )
    warehouse.run_sql_model("core.ledger_line", {"periods": periods}, periods=periods)
    warehouse.drop_scratch("ledger_part", "ledger_split")


def build_bill_marts(warehouse: Warehouse, window: Window, parameters: Parameters) -> None:
    """Fill the published money: totals rounded first, ledger rows within them, facts within their ledger row (N4)."""
    periods = _periods(warehouse, window)
    bound = {"periods": periods, "settle_hours": parameters.bill_settle_hours}
    days = _fact_days(warehouse, window, periods)
    warehouse.scratch_frame("fact_day", pl.DataFrame({"date": days}, schema={"date": pl.Date}))
    _rounded_ledger(warehouse, bound)
    warehouse.run_sql_model("mart.fact_cost_ledger", bound, periods=periods)
    _rounded_facts(warehouse, bound, "gpu", "mart.fact_gpu_hours", days)
    _rounded_facts(warehouse, bound, "transfer", "mart.fact_transfer_cost", days)
    for table in ("fact_cost_bridge", "fact_bill_status", "fact_restatement"):
        warehouse.run_sql_model(f"mart.{table}", bound)
    warehouse.drop_scratch("fact_day", "ledger_row", "ledger_rounded")


def _fact_days(warehouse: Warehouse, window: Window, periods: list[str]) -> list[date]:
    """Days whose published facts may have changed: the window's, those that the periods charge, and open estimates.

    Facts are replaced by whole days, and rounding keeps to days, so that other days and periods stay as they are.
    """
    charged = warehouse.query(
        "SELECT DISTINCT date FROM core.bill_line WHERE list_contains($periods, billing_period)"
        " UNION SELECT DISTINCT date FROM mart.fact_gpu_hours WHERE cost_basis NOT IN ('billed', 'pooled')"
        " UNION SELECT date FROM core.processed_day WHERE list_contains($periods, strftime(date, '%Y-%m'))",
        {"periods": periods},
    )["date"]
    return sorted({*window.days, *charged.to_list()})


def build_reconciliation(warehouse: Warehouse, window: Window, parameters: Parameters) -> None:
    """Fill `mart.fact_reconciliation`: for each billing period of the ledger, the landed bill beside it (N6)."""
    if warehouse.home is None:
        raise WarehouseError("reconciliation reads the landed bills: it needs a warehouse that lies in a home folder")
    totals = independent_bill_totals(warehouse, warehouse.home / "landing")
    built = warehouse.query("SELECT DISTINCT billing_period FROM core.bill_line")["billing_period"].to_list()
    covered = sorted({*built, *_periods(warehouse, window)})
    warehouse.scratch_frame("independent_bill_total", totals.filter(pl.col("billing_period").is_in(covered)))
    warehouse.scratch_frame("ledger_cut", ledger_cut(warehouse))
    warehouse.run_sql_model("mart.fact_reconciliation", {})
    warehouse.drop_scratch("independent_bill_total", "ledger_cut")


MEASURES = ("list_cost", "contracted_cost", "billed_cost", "effective_cost")
_TOTAL_KEY = ("billing_period", "date", "billing_account", "currency", "charge_scope")


def _rounded_ledger(warehouse: Warehouse, bound: dict[str, object]) -> None:
    """Scratch `ledger_rounded`: ledger rows at 12 places with their 6-place amounts, and a number for each."""
    warehouse.scratch_sql("ledger_row", load_sql("mart.fact_cost_ledger__row"), bound)
    warehouse.scratch_sql(
        "ledger_rounded",
        round_sql("ledger_row", group=_TOTAL_KEY, key=("ledger_row_id",), amounts=MEASURES, totals=False),
    )


def _rounded_facts(warehouse: Warehouse, bound: dict[str, object], kind: str, table: str, days: Iterable[date]) -> None:
    """Round the facts of one kind within their ledger rows and fill their mart for whole days."""
    warehouse.scratch_sql(f"{kind}_fact", load_sql(f"{table}__fact"), bound)
    rounded = round_sql(
        f"{kind}_fact",
        group=("ledger_row_id",),
        key=("fact_id",),
        amounts=("billed_cost", "effective_cost"),
        totals=True,
    )
    warehouse.scratch_sql(f"{kind}_rounded", rounded)
    for span in _spans(days):
        warehouse.run_sql_model(table, span.parameters(), window=span)
    warehouse.drop_scratch(f"{kind}_fact", f"{kind}_rounded")


BILL_LINE = Model(
    "bill_line",
    ("core.bill_line",),
    ("staging.bill_line", "staging.bill_delivery", "core.node_life"),
    build_bill_line,
    "Bill lines in force, in parts of one scope each.",
)
NODE_BILL = Model(
    "node_bill_hourly",
    ("core.node_bill_hourly",),
    ("core.bill_line", "core.node_life", "core.processed_day"),
    build_node_bill_hourly,
    "Compute lines on the node-hours that they pay for.",
)
GPU_COST = Model(
    "gpu_cost_line",
    ("core.gpu_cost_line",),
    ("core.node_bill_hourly", "core.gpu_state_hourly", "core.bill_line", "core.node_life"),
    build_gpu_cost_line,
    "What paid for each GPU state.",
)
LEDGER = Model(
    "ledger",
    ("core.ledger_line",),
    ("core.bill_line", "core.gpu_cost_line", "core.transfer_cost", "core.processed_day"),
    build_ledger,
    "Every part of every bill line, with a job, a reason or a scope.",
)
MARTS = Model(
    "bill_marts",
    (
        "mart.fact_cost_ledger",
        "mart.fact_gpu_hours",
        "mart.fact_transfer_cost",
        "mart.fact_cost_bridge",
        "mart.fact_bill_status",
        "mart.fact_restatement",
    ),
    (
        "core.ledger_line",
        "core.gpu_cost_line",
        "core.transfer_cost",
        "core.bill_line",
        "staging.bill_delivery",
        "staging.bill_line",
    ),
    build_bill_marts,
    "Published money.",
)
RECONCILIATION = Model(
    "reconciliation",
    ("mart.fact_reconciliation",),
    ("core.ledger_line", "core.bill_line", "staging.bill_delivery", "staging.bill_line"),
    build_reconciliation,
    "The bill as received beside the ledger.",
)
MODELS = (BILL_LINE, NODE_BILL, GPU_COST, LEDGER, MARTS, RECONCILIATION)
