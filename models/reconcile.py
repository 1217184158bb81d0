"""Is the ledger the bill? The bill's total, computed anew from the files as they were received, beside the ledger (N6).

This module reads the landed copies with its own queries. It shares no mapping, no model and no scope table with the
ledger: of staging it asks only which deliveries exist. Doubles become decimals through their shortest text here too,
written anew.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal, localcontext
from pathlib import Path
from typing import IO

import polars as pl
import zstandard

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
_PLACES = Decimal("1e-18")
_EXACT = Context(prec=76, rounding=ROUND_HALF_UP)  # the default of 28 digits would round sums


class ReconciliationError(Exception):
    """The received files and what was staged of them do not belong together."""


@dataclass(frozen=True)
class Received:
    """One delivery as it lies in landing."""

    dataset: str
    scope: str
    period: str | None
    submitted: str
    order: str
    files: tuple[Path, ...]


def independent_bill_totals(warehouse: Warehouse, landing: Path) -> pl.DataFrame:
    """Totals of every billing period from the landed files: (billing_period, provider, billing_account, currency, measure, total)."""
    received = _received(warehouse, landing)
    parts = [pl.DataFrame(schema=TOTAL_SCHEMA)]
    newest: dict[tuple[str, str | None], Received] = {}
    for delivery in received:
        if delivery.dataset == "cur2":
            newest[delivery.scope, delivery.period] = delivery
    for delivery in newest.values():
        net = any(_has_net(warehouse, path) for path in delivery.files)
        parts += [_cur_totals(warehouse, str(delivery.period), path, net) for path in delivery.files]
    by_scope: dict[str, list[Received]] = defaultdict(list)
    for delivery in received:
        if delivery.dataset == "focus":
            by_scope[delivery.scope].append(delivery)
    parts += [_focus_totals(deliveries) for deliveries in by_scope.values()]
    return (
        pl.concat(parts)
        .group_by("billing_period", "provider", "billing_account", "currency", "measure")
        .agg(pl.col("total").sum().cast(pl.Decimal(38, 18)))
        .sort("billing_period", "provider", "billing_account", "currency", "measure")
    )


def _received(warehouse: Warehouse, landing: Path) -> list[Received]:
    """The deliveries of landing that were staged, oldest first. One that was staged and is not there is an error."""
    staged = set(warehouse.query("SELECT delivery_id FROM staging.bill_delivery")["delivery_id"])
    found, seen = [], set()
    for note in sorted(landing.glob(".deliveries/*.json")):
        record = json.loads(note.read_text(encoding="utf-8"))
        ids = set(record["delivery_ids"])
        if not ids & staged:
            continue  # received and not yet staged
        seen |= ids
        files = tuple(_landed(landing / record["folder"], object_id) for object_id in record["objects"])
        dataset, scope, period = record["dataset"], record["export_scope"], record["billing_period"]
        found.append(Received(dataset, scope, period, record["submitted_utc"], min(ids), files))
    if staged - seen:
        raise ReconciliationError(
            f"{len(staged - seen)} deliveries are not in {landing}, first {min(staged - seen)}: restore the folder from"
            " its backup, or set up a new home and run again from the sources"
        )
    return sorted(found, key=lambda delivery: (delivery.submitted, delivery.order))


def _landed(folder: Path, object_id: str) -> Path:
    found = sorted(path for path in folder.glob(f"{object_id}-*") if path.suffix != ".partial")
    if not found:
        raise ReconciliationError(f"the received file {object_id} is not in {folder}: run again from its source")
    return found[0]


# --- CUR 2.0: the amortisation algebra, as one sum a line type ------------------------------------------------------
def _cur_reader(path: Path) -> str:
    if path.name.lower().endswith(".parquet"):
        return "read_parquet($file)"
    packed = "gzip" if path.read_bytes()[:2] == b"\x1f\x8b" else "none"
    return (
        f"read_csv($file, header => true, all_varchar => true, delim => ',', quote => '\"', compression => '{packed}')"
    )


def _cur_names(warehouse: Warehouse, path: Path) -> set[str]:
    return set(warehouse.query(f"SELECT * FROM {_cur_reader(path)} LIMIT 0", {"file": str(path)}).columns)


def _has_net(warehouse: Warehouse, path: Path) -> bool:
    """One price basis a delivery: net, as soon as any row of any of its files has a net cost (B3)."""
    if "line_item_net_unblended_cost" not in _cur_names(warehouse, path):
        return False
    filled = "count(*) FILTER (WHERE coalesce(CAST(line_item_net_unblended_cost AS VARCHAR), '') <> '')"
    counted = warehouse.query(f"SELECT {filled} AS filled FROM {_cur_reader(path)}", {"file": str(path)})
    return bool(counted["filled"][0])


def _cur_totals(warehouse: Warehouse, period: str, path: Path, net: bool) -> pl.DataFrame:
    """Billed and effective total of one CUR 2.0 file, by payer account and currency."""
    reader, names = _cur_reader(path), _cur_names(warehouse, path)

    def amount(name: str, net_name: str = "") -> str:
        # an absent or empty amount is null, and a sum with it is unknown: its row adds nothing
        chosen = [n for n in ((net_name, name) if net else (name,)) if n in names]
        cells = [f"CAST(nullif(CAST({n} AS VARCHAR), '') AS DECIMAL(38,18))" for n in chosen]
        return (
            f"coalesce({', '.join(cells)})"
            if len(cells) > 1
            else (cells[0] if cells else "CAST(NULL AS DECIMAL(38,18))")
        )

    def summed(value: str, *kinds: str, also: str = "true") -> str:
        listed = ", ".join(f"'{kind}'" for kind in kinds)
        return f"coalesce(sum({value}) FILTER (WHERE kind IN ({listed}) AND {also}), 0)"

    cost = amount("line_item_unblended_cost", "line_item_net_unblended_cost")
    covered = amount("savings_plan_savings_plan_effective_cost", "savings_plan_net_savings_plan_effective_cost")
    unused_plan = f"{amount('savings_plan_total_commitment_to_date')} - {amount('savings_plan_used_commitment')}"
    reserved = amount("reservation_effective_cost", "reservation_net_effective_cost")
    unused_reservation = (
        amount("reservation_unused_amortized_upfront_fee_for_billing_period",
               "reservation_net_unused_amortized_upfront_fee_for_billing_period")
        + " + "
        + amount("reservation_unused_recurring_fee", "reservation_net_unused_recurring_fee")
    )  # fmt: skip
    no_reservation = (
        "coalesce(CAST(reservation_reservation_a_r_n AS VARCHAR), '') = ''"
        if "reservation_reservation_a_r_n" in names
        else "true"
    )
    is_plan_refund = (
        "coalesce(line_item_line_item_description LIKE 'Refund for one-time fee for Savings Plan ID%', false)"
        if "line_item_line_item_description" in names
        else "false"
    )
    special = ("SavingsPlanCoveredUsage", "SavingsPlanRecurringFee", "SavingsPlanNegation", "SavingsPlanUpfrontFee",
               "DiscountedUsage", "RIFee", "Fee", "Refund")  # fmt: skip
    others = ", ".join(f"'{kind}'" for kind in special)
    operation = "line_item_operation" if "line_item_operation" in names else "''"
    frame = warehouse.query(
        f"""
        SELECT coalesce(nullif(trim(CAST(bill_payer_account_id AS VARCHAR)), ''), 'unknown') AS billing_account,
            trim(CAST(line_item_currency_code AS VARCHAR)) AS currency,
            sum({cost}) AS billed,
            {summed(covered, "SavingsPlanCoveredUsage")} + {summed(unused_plan, "SavingsPlanRecurringFee")}
            + {summed(reserved, "DiscountedUsage")} + {summed(unused_reservation, "RIFee")}
            + {summed(cost, "Fee", also=no_reservation)} + {summed(cost, "Refund", also=f"NOT {is_plan_refund}")}
            + coalesce(sum({cost}) FILTER (WHERE kind NOT IN ({others})), 0) AS effective
        FROM (SELECT *, coalesce(trim(line_item_line_item_type), '') AS kind FROM {reader})
        WHERE coalesce({operation}, '') NOT IN ('EKSPod-EC2', 'ECSTask-EC2')
        GROUP BY ALL
        """,
        {"file": str(path)},
    )
    return _long(frame.with_columns(pl.lit(period).alias("billing_period"), pl.lit("aws").alias("provider")))


# --- FOCUS: row by row in Python's own decimals ----------------------------------------------------------------------
_PROVIDER_OF = {
    "aws": "aws", "amazon web services": "aws", "microsoft": "azure", "microsoft azure": "azure", "azure": "azure",
    "google": "gcp", "google cloud": "gcp", "google cloud platform": "gcp", "gcp": "gcp",
}  # fmt: skip
_Cell = tuple[str, str, str]  # provider, billing period, day


def _focus_totals(deliveries: Iterable[Received]) -> pl.DataFrame:
    """Totals of the deliveries of one scope, oldest first: a newer one stands for the days that it covers (B4)."""
    with localcontext(_EXACT):
        return _standing_totals(deliveries)


def _standing_totals(deliveries: Iterable[Received]) -> pl.DataFrame:
    standing: dict[_Cell, dict[tuple[str, str, str], Decimal]] = {}
    for delivery in deliveries:
        cells: dict[_Cell, dict[tuple[str, str, str], Decimal]] = defaultdict(lambda: defaultdict(Decimal))
        for path in delivery.files:
            for cell, account, currency, billed, effective in _focus_rows(path):
                cells[cell][account, currency, "billed"] += billed
                cells[cell][account, currency, "effective"] += effective
        for group in {(provider, period) for provider, period, _ in cells}:
            days = [day for provider, period, day in cells if (provider, period) == group]
            whole = group[1] == delivery.period and all(day[:7] == delivery.period for day in days)
            for cell in [c for c in standing if c[:2] == group and (c[2] in days or (whole and c[2][:7] == group[1]))]:
                del standing[cell]
        standing |= cells
    totals: dict[tuple[str, str, str, str, str], Decimal] = defaultdict(Decimal)
    for (provider, period, _), sums in standing.items():
        for (account, currency, measure), value in sums.items():
            totals[period, provider, account, currency, measure] += value
    rows = [(*key, value.quantize(_PLACES)) for key, value in totals.items()]
    return pl.DataFrame(rows, schema=TOTAL_SCHEMA, orient="row")


def _focus_rows(path: Path) -> Iterator[tuple[_Cell, str, str, Decimal, Decimal]]:
    """((provider, period, day), account, currency, billed, effective) of each row; an unknown effective cost adds nothing."""
    for cells in _records(path):
        row = {
            name.lower(): text.strip()
            for name, text in reversed(list(cells.items()))
            if name and text and text.strip() not in ("", "NULL")
        }
        word = row.get("providername", "unknown").lower()
        period = row["billingperiodstart"][:7]
        day = row.get("chargeperiodstart", "")[:10]
        if not _is_day(day):
            day = row["billingperiodstart"][:10]
        billed = Decimal(row["billedcost"]).quantize(_PLACES)
        effective = Decimal(row.get("effectivecost", "0")).quantize(_PLACES)
        cell = (_PROVIDER_OF.get(word, word), period, day)
        yield cell, row.get("billingaccountid", "unknown"), row["billingcurrency"], billed, effective


def _is_day(text: str) -> bool:
    return len(text) == 10 and text[4] == text[7] == "-" and text.replace("-", "").isdigit()


def _records(path: Path) -> Iterator[dict[str, str]]:
    if path.name.lower().endswith(".parquet"):
        wanted = {"billedcost", "effectivecost", "billingperiodstart", "chargeperiodstart", "providername", "billingaccountid",
                  "billingcurrency"}  # fmt: skip
        frame = pl.read_parquet(path)
        kept = [name for name in frame.columns if name.lower() in wanted]
        yield from frame.select(pl.col(name).cast(pl.String) for name in kept).iter_rows(named=True)
        return
    with path.open("rb") as handle:
        text = io.TextIOWrapper(_unpacked(handle), encoding="utf-8-sig", newline="")
        yield from csv.DictReader(text)


def _unpacked(handle: IO[bytes]) -> IO[bytes]:
    magic = handle.read(4)
    handle.seek(0)
    if magic[:2] == b"\x1f\x8b":
        return gzip.GzipFile(fileobj=handle)  # type: ignore[return-value]
    if magic == b"\x28\xb5\x2f\xfd":
        return zstandard.ZstdDecompressor().stream_reader(handle, read_across_frames=True)
    return handle


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
