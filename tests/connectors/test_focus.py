"""FOCUS files: the official sample to the last digit, and what is refused (B1, B5)."""

from __future__ import annotations

import json
from datetime import datetime
from decimal import Decimal
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from connectors.errors import BillUnreadable, DeliveryIncomplete, FormatUnknown
from connectors.focus import LINE, stage
from connectors.objects import Source
from connectors.sink import Lake

HEADER = "BilledCost,EffectiveCost,BillingCurrency,BillingPeriodStart,BillingPeriodEnd,ChargePeriodStart,ChargePeriodEnd,ChargeCategory,BillingAccountId,ProviderName,ChargeDescription"
ROW = "{cost},0.5,USD,2026-11-01T00:00:00Z,2026-12-01T00:00:00Z,{start},2026-11-23T11:00:00Z,Usage,0123,AWS,{text}"


def write(folder: Path, *rows: str, header: str = HEADER) -> Source:
    folder.mkdir(exist_ok=True)
    (folder / "bill.csv").write_text("\n".join([header, *rows]) + "\n", encoding="utf-8-sig")
    return Source("focus", "focus", folder)


def row(cost: str = "1.5", start: str = "2026-11-23T10:00:00Z", text: str = "x") -> str:
    return ROW.format(cost=cost, start=start, text=text)


def staged(home: Path, source: Source) -> pl.DataFrame:
    lake = Lake(home / "lake")
    stage(source, lake, lambda text: None)
    return pl.read_parquet(lake.held_files(LINE)).sort("row_number")


def test_b1_the_official_sample_sums_to_the_last_digit(shared_data: Path, tmp_path: Path) -> None:
    source = Source("focus", "focus", shared_data / "billing" / "focus" / "FOCUS-1.0_focus_sample_1000.csv")
    frame = staged(tmp_path, source)
    sums = {
        (provider, category): cost
        for provider, category, cost in frame.group_by("provider", "charge_category")
        .agg(pl.col("billed_cost").sum())
        .rows()
    }
    assert sums == {
        ("aws", "Usage"): Decimal("20.6203386184"),
        ("aws", "Credit"): Decimal("-2.6137"),
        ("azure", "Usage"): Decimal("1.97651418586"),
        ("oracle", "Usage"): Decimal("0.26507392473"),
        ("oracle", "Adjustment"): Decimal("0.272"),
    }
    regional = frame.filter(pl.col("charge_description").str.contains("regional data transfer"))
    assert regional.select(pl.len(), pl.col("consumed_quantity").sum(), pl.col("billed_cost").sum()).row(0) == (
        58, Decimal("0.6809419853"), Decimal("0.0068094198"),
    )  # fmt: skip
    gpu = frame.filter(pl.col("x_instance_type") == "g5.4xlarge")
    assert gpu.select(pl.len(), pl.col("consumed_quantity").sum(), pl.col("billed_cost").sum()).row(0) == (
        8, Decimal("6.283056"), Decimal("10.203682944"),
    )  # fmt: skip


def test_b1_null_text_bom_e_notation_and_leading_zeros(tmp_path: Path) -> None:
    frame = staged(tmp_path, write(tmp_path / "in", row("1.705671E-4", text="NULL")))
    assert frame.select("billed_cost", "charge_description", "billing_account_id").rows() == [
        (Decimal("0.0001705671"), None, "0123")
    ]


def test_b5_a_row_whose_money_is_readable_is_rejected_but_its_money_kept(tmp_path: Path) -> None:
    frame = staged(tmp_path, write(tmp_path / "in", row(), row("2.25", start="yesterday")))
    assert frame["billed_cost"].sum() == Decimal("3.75")
    assert frame["x_source_changes"].to_list()[1].startswith("rejected: bad_value: ChargePeriodStart")
    load = Lake(tmp_path / "lake").loads().filter(pl.col("table_name") == LINE).row(0, named=True)
    assert (load["rows_read"], load["rows_kept"], load["rows_rejected"]) == (2, 1, 1)
    rejected = pl.read_parquet(Lake(tmp_path / "lake").rejected_files()).row(0, named=True)
    assert (rejected["line_number"], rejected["cost_readable"]) == (3, True)


@pytest.mark.parametrize("cost", ["", "n/a", "1,5x"])
def test_b5_an_unreadable_cost_refuses_the_file(tmp_path: Path, cost: str) -> None:
    with pytest.raises(BillUnreadable, match="row 2 has no readable cost"):
        staged(tmp_path, write(tmp_path / "in", row(), row(f'"{cost}"')))
    assert Lake(tmp_path / "lake").loads().height == 0


def test_b5_an_empty_bill_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BillUnreadable, match="no rows"):
        staged(tmp_path, write(tmp_path / "in"))


def test_a_file_that_is_no_focus_export_is_refused_with_its_missing_columns(tmp_path: Path) -> None:
    with pytest.raises(FormatUnknown, match="BilledCost, BillingCurrency"):
        staged(tmp_path, write(tmp_path / "in", "1,2", header="lineItem/UnblendedCost,x"))


def test_b1_parquet_reads_like_csv(tmp_path: Path) -> None:
    source = write(tmp_path / "csv", row(), row("2.5"))
    (tmp_path / "pq").mkdir()
    pl.read_csv(tmp_path / "csv" / "bill.csv", infer_schema=False).write_parquet(tmp_path / "pq" / "bill.parquet")
    same = [c for c in staged(tmp_path / "a", source).columns if c not in ("object_id", "delivery_id")]
    other = staged(tmp_path / "b", Source("focus", "focus", tmp_path / "pq"))
    assert staged(tmp_path / "c", source).select(same).equals(other.select(same))


def test_b1_a_line_end_inside_quotes_and_blank_lines_at_the_end(tmp_path: Path) -> None:
    frame = staged(tmp_path, write(tmp_path / "in", row(text='"two\nlines"'), row("2"), "", ""))
    assert frame["charge_description"].to_list() == ["two\nlines", "x"]


def test_b5_an_effective_cost_that_is_no_number_refuses_the_file(tmp_path: Path) -> None:
    with pytest.raises(BillUnreadable, match="row 1 has no readable cost"):
        staged(tmp_path, write(tmp_path / "in", row().replace(",0.5,", ",half,")))


def test_b5_a_collapse_on_the_same_days_is_an_error_and_fewer_days_are_not(tmp_path: Path) -> None:
    days = [row(start=f"2026-11-{day}T10:00:00Z") for day in (20, 21, 22) for _ in range(4)]
    staged(tmp_path, write(tmp_path / "in", *days))
    staged(tmp_path, write(tmp_path / "in", *days[:4]))
    with pytest.raises(BillUnreadable, match="has 1 rows where the one before had 4, on the same days"):
        staged(tmp_path, write(tmp_path / "in", days[0]))


def test_b4_with_a_manifest_its_files_alone_are_one_delivery_of_the_period(tmp_path: Path) -> None:
    data, metadata = (tmp_path / "in/exp" / part / "BILLING_PERIOD=2026-11" for part in ("data", "metadata"))
    data.mkdir(parents=True)
    metadata.mkdir(parents=True)
    for name, rows in (("1.csv", [row()]), ("2.csv", [row("2")]), ("orphan.csv", [row("99")])):
        (data / name).write_text("\n".join([HEADER, *rows]) + "\n")
    (data / "blank.csv").write_bytes(b"")
    (metadata / "exp-Manifest-FOCUS.json").write_text("{}")
    names = [f"s3://b/exp/data/billing_period=2026-11/{name}" for name in ("1.csv", "2.csv")]
    (metadata / "exp-Manifest.json").write_text(json.dumps({"dataFiles": names}))
    frame = staged(tmp_path, Source("focus", "focus", tmp_path / "in"))
    assert frame["billed_cost"].sum() == Decimal("3.5")
    delivery = pl.read_parquet(Lake(tmp_path / "lake").held_files("staging.bill_delivery")).row(0, named=True)
    assert (delivery["files"], delivery["covers_range"], delivery["covers_to"]) == (2, True, datetime(2026, 12, 1))
    (data / "2.csv").unlink()
    with pytest.raises(DeliveryIncomplete, match=r"2\.csv is missing"):
        staged(tmp_path, Source("focus", "focus", tmp_path / "in"))


def test_b1_parquet_doubles_maps_and_times_are_read_as_they_show(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    values = {"BilledCost": 0.1, "EffectiveCost": 1e-7, "BillingCurrency": "USD", "BillingPeriodStart": datetime(2026, 11, 1),
              "BillingPeriodEnd": datetime(2026, 12, 1), "ChargePeriodStart": datetime(2026, 11, 23, 10),
              "ChargePeriodEnd": datetime(2026, 11, 23, 11), "ChargeCategory": "Usage", "BillingAccountId": "012", "ProviderName": "AWS",
              "Tags": [("team", "a")]}  # fmt: skip
    kinds = {"Tags": pa.map_(pa.string(), pa.string())}
    schema = pa.schema(
        [
            pa.field(name, kinds.get(name, pa.scalar(value if name != "Tags" else "x").type))
            for name, value in values.items()
        ]
    )
    pq.write_table(pa.Table.from_pylist([values], schema=schema), tmp_path / "in" / "bill.parquet")
    frame = staged(tmp_path, Source("focus", "focus", tmp_path / "in"))
    assert frame.select(
        "billed_cost", "effective_cost", "billing_account_id", "tags", "charge_period_start"
    ).rows() == [(Decimal("0.1"), Decimal("0.0000001"), "012", '{"team":"a"}', datetime(2026, 11, 23, 10))]
