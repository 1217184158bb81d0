"""Is the ledger the bill? The bill's total, computed anew from the files as they were received, beside the ledger (N6).

This module reads the landed copies with its own queries. It shares no mapping, no model and no scope table with the
ledger: of staging it asks only which files a delivery has and which delivery is the newest.
"""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import polars as pl

from models.engine.warehouse import Warehouse

TOTAL_SCHEMA: dict[str, pl.DataType | type[pl.DataType]] = {
    "billing_period": pl.String,
    "provider": pl.String,
    "billing_account": pl.String,
    "currency": pl.String,
    "measure": pl.String,
    "total": pl.Decimal(38, 18),
}
_CHECKS = Path(__file__).resolve().parent / "checks"


class ReconciliationError(Exception):
    """The received files and what was staged of them do not belong together."""


def independent_bill_totals(warehouse: Warehouse, landing: Path) -> pl.DataFrame:
    """Totals of every billing period from the landed files: (billing_period, provider, billing_account, currency, measure, total)."""
    files = _files_in_force(warehouse)
    parts = [pl.DataFrame(schema=TOTAL_SCHEMA)]
    for (dataset, net), group in files.group_by("dataset", "net_basis", maintain_order=True):
        located = [
            (row["billing_period"], _landed(landing, row["source"], row["object_id"]))
            for row in group.iter_rows(named=True)
        ]
        if str(dataset).startswith("cur"):
            parts += [_cur_totals(warehouse, period, path, bool(net)) for period, path in located]
    focus = files.filter(pl.col("dataset").str.starts_with("focus"))
    if focus.height:
        parts.append(_focus_totals(warehouse, landing, focus))
    return (
        pl.concat(parts)
        .group_by("billing_period", "provider", "billing_account", "currency", "measure")
        .agg(pl.col("total").sum().cast(pl.Decimal(38, 18)))
        .sort("billing_period", "provider", "billing_account", "currency", "measure")
    )


def _files_in_force(warehouse: Warehouse) -> pl.DataFrame:
    """Files of the newest delivery of each CUR period, and every FOCUS file (their days are weighed on reading)."""
    files = warehouse.query(
        "SELECT d.delivery_id, d.source, d.dataset, d.export_scope, d.billing_period, d.submitted_utc, d.files, d.net_basis,"
        " line.object_id FROM staging.bill_delivery AS d"
        " JOIN (SELECT DISTINCT delivery_id, object_id FROM staging.bill_line) AS line USING (delivery_id)"
        " ORDER BY d.export_scope, d.billing_period, d.submitted_utc, d.delivery_id, line.object_id"
    )
    cur = files.filter(pl.col("dataset").str.starts_with("cur"))
    newest = cur.group_by("export_scope", "billing_period").agg(
        pl.col("delivery_id").sort_by("submitted_utc", "delivery_id").last().alias("newest")
    )
    cur = cur.join(newest, on=["export_scope", "billing_period"]).filter(pl.col("delivery_id") == pl.col("newest"))
    counted = cur.group_by("delivery_id").agg(pl.len().alias("staged"), pl.col("files").first())
    short = counted.filter(pl.col("staged") != pl.col("files"))
    if short.height:
        raise ReconciliationError(
            f"delivery {short['delivery_id'][0]} has {short['files'][0]} files, {short['staged'][0]} staged"
        )
    return pl.concat([cur.drop("newest"), files.filter(~pl.col("dataset").str.starts_with("cur"))])


def _landed(landing: Path, source: str, object_id: str) -> Path:
    folder = landing / "".join(c if c.isalnum() or c in "._-" else "_" for c in source)
    found = sorted(folder.glob(f"{object_id}-*"))
    if not found:
        raise ReconciliationError(
            f"the received file {object_id} of {source} is not in {folder}: run again from its source"
        )
    return found[0]


def _cur_totals(warehouse: Warehouse, period: str, path: Path, net: bool) -> pl.DataFrame:
    """Billed and effective total of one CUR 2.0 file, by payer account and currency."""
    reader = (
        "read_parquet($file)"
        if path.name.endswith(".parquet")
        else "read_csv($file, header => true, all_varchar => true)"
    )
    names = set(warehouse.query(f"SELECT * FROM {reader} LIMIT 0", {"file": str(path)}).columns)

    def amount(name: str, net_name: str = "") -> str:
        chosen = [n for n in ((net_name, name) if net else (name,)) if n in names]
        cells = [f"CAST(CAST({n} AS VARCHAR) AS DECIMAL(38,18))" for n in chosen]
        return f"coalesce({', '.join(cells)}, 0)" if cells else "0"

    cost = amount("line_item_unblended_cost", "line_item_net_unblended_cost")
    no_reservation = (
        "coalesce(reservation_reservation_a_r_n, '') = ''" if "reservation_reservation_a_r_n" in names else "true"
    )
    covered = amount("savings_plan_savings_plan_effective_cost", "savings_plan_net_savings_plan_effective_cost")
    unused_plan = f"{amount('savings_plan_total_commitment_to_date')} - {amount('savings_plan_used_commitment')}"
    reserved = amount("reservation_effective_cost", "reservation_net_effective_cost")
    unused_reservation = (
        amount("reservation_unused_amortized_upfront_fee_for_billing_period",
               "reservation_net_unused_amortized_upfront_fee_for_billing_period")
        + " + "
        + amount("reservation_unused_recurring_fee", "reservation_net_unused_recurring_fee")
    )  # fmt: skip
    refund = "line_item_line_item_description LIKE 'Refund for one-time fee for Savings Plan ID%'"
    frame = warehouse.query(
        f"""
        SELECT bill_payer_account_id AS billing_account, line_item_currency_code AS currency,
            sum({cost}) AS billed,
            coalesce(sum({covered}) FILTER (WHERE line_item_line_item_type = 'SavingsPlanCoveredUsage'), 0)
            + coalesce(sum({unused_plan}) FILTER (WHERE line_item_line_item_type = 'SavingsPlanRecurringFee'), 0)
            + coalesce(sum({reserved}) FILTER (WHERE line_item_line_item_type = 'DiscountedUsage'), 0)
            + coalesce(sum({unused_reservation}) FILTER (WHERE line_item_line_item_type = 'RIFee'), 0)
            + coalesce(sum({cost}) FILTER (WHERE line_item_line_item_type = 'Fee' AND {no_reservation}), 0)
            + coalesce(sum({cost}) FILTER (WHERE line_item_line_item_type = 'Refund' AND NOT coalesce({refund}, false)), 0)
            + coalesce(sum({cost}) FILTER (WHERE line_item_line_item_type NOT IN ('SavingsPlanCoveredUsage',
                'SavingsPlanRecurringFee', 'SavingsPlanNegation', 'SavingsPlanUpfrontFee', 'DiscountedUsage', 'RIFee', 'Fee', 'Refund')), 0)
            AS effective
        FROM {reader}
        WHERE coalesce(line_item_operation, '') NOT IN ('EKSPod-EC2', 'ECSTask-EC2')
        GROUP BY ALL
        """,
        {"file": str(path)},
    )
    return _long(frame.with_columns(pl.lit(period).alias("billing_period"), pl.lit("aws").alias("provider")))


def _focus_totals(warehouse: Warehouse, landing: Path, files: pl.DataFrame) -> pl.DataFrame:
    """Totals of FOCUS files: of two versions of a file the newer one stands for the days that it holds."""
    parts = []
    versions = files.unique(subset=["export_scope", "object_id"], keep="first", maintain_order=True)
    for _, group in versions.group_by("export_scope", maintain_order=True):
        newer: set[tuple[str, str, str]] = set()
        for row in group.sort("submitted_utc", "delivery_id", descending=True).iter_rows(named=True):
            frame = _focus_rows(_landed(landing, row["source"], row["object_id"]))
            held = set(zip(frame["provider"], frame["billing_period"], frame["day"], strict=True))
            stands = [
                key not in newer for key in zip(frame["provider"], frame["billing_period"], frame["day"], strict=True)
            ]
            parts.append(frame.filter(pl.Series(stands, dtype=pl.Boolean)))
            newer |= held
    rows = pl.concat(parts)
    totals = rows.group_by("billing_period", "provider", "billing_account", "currency").agg(
        pl.col("billed").sum(), pl.col("effective").sum()
    )
    return _long(totals)


_PROVIDER_WORDS = {"aws": "aws", "amazon": "aws", "microsoft": "azure", "azure": "azure", "google": "gcp", "gcp": "gcp"}


def _focus_rows(path: Path) -> pl.DataFrame:
    """The five columns of a FOCUS file that a total needs, as text cast to decimals."""
    if path.name.endswith(".parquet"):
        raw = pl.read_parquet(path)
        raw = raw.select(pl.col(c).cast(pl.String) for c in raw.columns if raw[c].dtype not in (pl.Struct, pl.List))
    else:
        raw = pl.read_csv(path, infer_schema=False, null_values=["NULL", ""], truncate_ragged_lines=True)
    names = {name.lower(): name for name in raw.columns}

    def money(name: str) -> pl.Expr:
        # E-notation is text that a decimal cast refuses: go through Python's exact decimal
        return pl.col(names[name]).str.strip_chars().map_elements(lambda t: Decimal(t), return_dtype=pl.Decimal(38, 18))

    word = pl.col(names["providername"]).str.to_lowercase() if "providername" in names else pl.lit("unknown")
    start = pl.col(names["billingperiodstart"]).str.slice(0, 7)
    return raw.select(
        start.alias("billing_period"),
        word.str.extract("^(aws|amazon|microsoft|azure|google|gcp)", 1)
        .replace_strict(_PROVIDER_WORDS, default=word)
        .fill_null("unknown")
        .alias("provider"),
        pl.col(names["billingaccountid"]).str.strip_chars().fill_null("unknown").alias("billing_account"),
        pl.col(names["billingcurrency"]).str.strip_chars().alias("currency"),
        pl.coalesce(pl.col(names["chargeperiodstart"]), pl.col(names["billingperiodstart"]))
        .str.slice(0, 10)
        .alias("day"),
        money("billedcost").alias("billed"),
        (money("effectivecost") if "effectivecost" in names else pl.lit(None, dtype=pl.Decimal(38, 18))).alias(
            "effective"
        ),
    )


def _long(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.unpivot(
        on=["billed", "effective"],
        index=["billing_period", "provider", "billing_account", "currency"],
        variable_name="measure",
        value_name="total",
    ).select(pl.col(name).cast(kind) for name, kind in TOTAL_SCHEMA.items())


def ledger_cut(warehouse: Warehouse) -> pl.DataFrame:
    """What cutting each line from 18 to 12 places dropped, by period, account, currency and measure (N4).

    A line's amount in `core.bill_line` is the cut one; the exact one is staged beside it.
    """
    return warehouse.query(
        """
        WITH exact AS (
            SELECT line.delivery_id, line.object_id, line.row_number, staged.billed_cost, staged.effective_cost
            FROM (SELECT DISTINCT delivery_id, object_id, row_number FROM core.bill_line) AS line
            JOIN staging.bill_line AS staged USING (delivery_id, object_id, row_number)
        ),
        cut AS (
            SELECT delivery_id, object_id, row_number, any_value(billing_period) AS billing_period, any_value(provider) AS provider,
                any_value(billing_account) AS billing_account, any_value(currency) AS currency,
                sum(billed_cost) AS billed, sum(effective_cost) AS effective
            FROM core.bill_line GROUP BY ALL
        ),
        summed AS (
            SELECT billing_period, provider, billing_account, currency,
                sum(exact.billed_cost) AS exact_billed, sum(cut.billed) AS cut_billed,
                sum(exact.effective_cost) AS exact_effective, sum(cut.effective) AS cut_effective
            FROM cut JOIN exact USING (delivery_id, object_id, row_number)
            GROUP BY ALL
        )
        SELECT billing_period, provider, billing_account, currency, 'billed' AS measure,
            CAST(coalesce(exact_billed, 0) AS DECIMAL(38,12)) - coalesce(cut_billed, 0) AS rounding
        FROM summed
        UNION ALL
        SELECT billing_period, provider, billing_account, currency, 'effective',
            CAST(coalesce(exact_effective, 0) AS DECIMAL(38,12)) - coalesce(cut_effective, 0)
        FROM summed
        """
    )


def violations(warehouse: Warehouse) -> list[str]:
    """What breaks a promise of the marts, one sentence each: every query of `models/checks` must return no rows."""
    broken = []
    for path in sorted(_CHECKS.glob("*.sql")):
        text = path.read_text(encoding="utf-8")
        rows = warehouse.query(f"SELECT * FROM ({text}) AS violation LIMIT 3")
        if rows.height:
            claim = text.splitlines()[0].removeprefix("-- ").strip()
            broken.append(f"{claim} Not so in {path.stem}: {rows.to_dicts()}")
    return broken
