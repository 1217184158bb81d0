"""CUR 2.0 by manifest: what is in force, what is refused, and the amortisation of each line type (B1, B3, B4, B5)."""

from __future__ import annotations

import gzip
import json
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from connectors.aws_billing import LINE, deliveries, stage
from connectors.errors import BillUnreadable, DeliveryIncomplete, FormatUnknown, UnsafePath
from connectors.objects import Source
from connectors.sink import Lake

HOUR = (datetime(2026, 11, 23, 10), datetime(2026, 11, 23, 11))
BASE: dict[str, Any] = {
    "bill_payer_account_id": "012345678901", "line_item_usage_account_id": "012345678901", "line_item_line_item_type": "Usage",
    "line_item_currency_code": "USD", "line_item_usage_start_date": HOUR[0], "line_item_usage_end_date": HOUR[1],
    "line_item_usage_type": "BoxUsage:p4d.24xlarge", "line_item_operation": "RunInstances", "line_item_unblended_cost": 0.1,
    "line_item_usage_amount": 1.0, "line_item_resource_id": "i-1", "savings_plan_savings_plan_a_r_n": "",
    "savings_plan_savings_plan_effective_cost": 0.0, "savings_plan_total_commitment_to_date": 0.0,
    "savings_plan_used_commitment": 0.0, "reservation_reservation_a_r_n": "", "reservation_effective_cost": 0.0,
    "line_item_line_item_description": "",
}  # fmt: skip


def deliver(
    root: Path, *rows: dict[str, Any], period: str = "2026-11", names: list[str] | None = None, chunk: int = 1
) -> Source:
    """One export with one chunk of rows, as Data Exports writes it."""
    data, metadata = root / f"exp/data/BILLING_PERIOD={period}", root / f"exp/metadata/BILLING_PERIOD={period}"
    data.mkdir(parents=True, exist_ok=True)
    metadata.mkdir(parents=True, exist_ok=True)
    name = f"exp-{chunk:05d}.snappy.parquet"
    pq.write_table(pa.Table.from_pylist([{**BASE, **row} for row in rows]), data / name)
    listed = names or [f"s3://theirs/p/exp/data/BILLING_PERIOD={period}/{name}"]
    (metadata / "exp-Manifest.json").write_text(json.dumps({"dataFiles": listed}))
    return Source("bill", "aws-cur2", root)


def staged(root: Path, source: Source) -> pl.DataFrame:
    lake = Lake(root / "home" / "lake")
    stage(source, lake, lambda text: None)
    return pl.read_parquet(lake.held_files(LINE)).sort("row_number")


def costs(frame: pl.DataFrame) -> list[tuple[Decimal, Decimal | None]]:
    return frame.select("billed_cost", "effective_cost").rows()


def test_b1_a_double_becomes_the_decimal_that_it_shows(tmp_path: Path) -> None:
    frame = staged(
        tmp_path, deliver(tmp_path / "in", {"line_item_unblended_cost": 0.1}, {"line_item_unblended_cost": 1.705671e-4})
    )
    assert frame["billed_cost"].to_list() == [Decimal("0.1"), Decimal("0.0001705671")]
    assert frame["billing_account_id"].to_list() == ["012345678901"] * 2


def test_b3_covered_usage_is_billed_zero_and_its_negation_takes_the_difference(tmp_path: Path) -> None:
    plan = {"savings_plan_savings_plan_a_r_n": "arn:sp"}
    covered = {**plan, "line_item_line_item_type": "SavingsPlanCoveredUsage", "line_item_unblended_cost": 30.0,
               "savings_plan_savings_plan_effective_cost": 18.5}  # fmt: skip
    negation = {
        **plan,
        "line_item_line_item_type": "SavingsPlanNegation",
        "line_item_unblended_cost": -30.0,
        "line_item_resource_id": "",
    }
    fee = {**plan, "line_item_line_item_type": "SavingsPlanRecurringFee", "line_item_unblended_cost": 20.0,
           "savings_plan_total_commitment_to_date": 20.0, "savings_plan_used_commitment": 18.5}  # fmt: skip
    frame = staged(tmp_path, deliver(tmp_path / "in", covered, negation, fee))
    assert costs(frame) == [(0, Decimal("18.5")), (0, 0), (20, Decimal("1.5"))]
    assert frame["billed_cost"].sum() == 20


def test_b3_a_negation_that_does_not_net_in_full_loses_nothing(tmp_path: Path) -> None:
    plan = {"savings_plan_savings_plan_a_r_n": "arn:sp"}
    covered = {**plan, "line_item_line_item_type": "SavingsPlanCoveredUsage", "line_item_unblended_cost": 30.0}
    negation = {**plan, "line_item_line_item_type": "SavingsPlanNegation", "line_item_unblended_cost": -29.0}
    assert staged(tmp_path, deliver(tmp_path / "in", covered, negation))["billed_cost"].to_list() == [0, 1]


@pytest.mark.parametrize(
    ("row", "effective"),
    [
        ({"line_item_line_item_type": "DiscountedUsage", "reservation_effective_cost": 0.7}, Decimal("0.7")),
        (
            {
                "line_item_line_item_type": "Fee",
                "reservation_reservation_a_r_n": "arn:ri",
                "line_item_unblended_cost": 500.0,
            },
            0,
        ),
        ({"line_item_line_item_type": "Fee", "line_item_unblended_cost": 500.0}, 500),
        ({"line_item_line_item_type": "Credit", "line_item_unblended_cost": -35.576771}, Decimal("-35.576771")),
        ({"line_item_line_item_type": "SavingsPlanUpfrontFee", "line_item_unblended_cost": 900.0}, 0),
    ],
)
def test_b3_effective_cost_by_line_type(tmp_path: Path, row: dict[str, Any], effective: Decimal) -> None:
    assert staged(tmp_path, deliver(tmp_path / "in", row))["effective_cost"].to_list() == [effective]


def test_b3_net_columns_are_used_on_every_row_or_on_none(tmp_path: Path) -> None:
    rows = [
        {"line_item_net_unblended_cost": 0.08},
        {"line_item_net_unblended_cost": 0.0},
        {"line_item_net_unblended_cost": None},
    ]
    assert staged(tmp_path, deliver(tmp_path / "in", *rows))["billed_cost"].to_list() == [
        Decimal("0.08"),
        0,
        Decimal("0.1"),
    ]


def test_split_cost_rows_are_no_money(tmp_path: Path) -> None:
    source = deliver(tmp_path / "in", {}, {"line_item_operation": "EKSPod-EC2", "line_item_unblended_cost": 0.06})
    assert staged(tmp_path, source)["billed_cost"].sum() == Decimal("0.1")
    load = Lake(tmp_path / "home" / "lake").loads().filter(pl.col("table_name") == LINE).row(0, named=True)
    assert (load["rows_read"], load["rows_kept"], load["rows_control"]) == (2, 1, 1)


def test_b4_a_second_delivery_of_a_period_is_another_delivery(tmp_path: Path) -> None:
    source = deliver(tmp_path / "in", {"line_item_unblended_cost": 100.0})
    lake = Lake(tmp_path / "home" / "lake")
    stage(source, lake, lambda text: None)
    stage(source, lake, lambda text: None)
    assert lake.loads().height == 2  # the manifest's delivery and its data file, once
    deliver(tmp_path / "in", {"line_item_unblended_cost": 93.0})
    stage(source, lake, lambda text: None)
    assert len(lake.held_files("staging.bill_delivery")) == 2


def test_b5_a_missing_part_is_an_error_not_a_small_bill(tmp_path: Path) -> None:
    names = [f"s3://b/p/exp/data/BILLING_PERIOD=2026-11/exp-0000{n}.snappy.parquet" for n in (1, 2)]
    with pytest.raises(DeliveryIncomplete, match=r"exp-00002.snappy.parquet is missing"):
        deliveries(deliver(tmp_path, {}, names=names))


def test_b5_a_blanked_chunk_that_no_manifest_names_is_ignored(tmp_path: Path) -> None:
    source = deliver(tmp_path / "in", {})
    (tmp_path / "in/exp/data/BILLING_PERIOD=2026-11/exp-00009.snappy.parquet").write_bytes(b"")
    (tmp_path / "in/exp/metadata/BILLING_PERIOD=2026-11/exp-Manifest-FOCUS.json").write_text("{}")
    orphan = tmp_path / "in/exp/data/billing_period=2026-10"
    orphan.mkdir()
    assert staged(tmp_path, source).height == 1


@pytest.mark.parametrize(
    ("row", "what"), [({"line_item_unblended_cost": None}, "cost"), ({"line_item_currency_code": ""}, "currency")]
)
def test_b5_an_unreadable_cost_or_currency_refuses_the_delivery(tmp_path: Path, row: dict[str, Any], what: str) -> None:
    with pytest.raises(BillUnreadable, match=f"row 2 has no readable {what}"):
        staged(tmp_path, deliver(tmp_path / "in", {}, row))
    assert Lake(tmp_path / "home" / "lake").loads().height == 0


def test_b5_a_collapsed_bill_is_an_error(tmp_path: Path) -> None:
    source = deliver(tmp_path / "in", *[{"line_item_resource_id": f"i-{n}"} for n in range(10)])
    staged(tmp_path, source)
    deliver(tmp_path / "in", {})
    with pytest.raises(BillUnreadable, match="has 1 rows, the one before had 10"):
        stage(source, Lake(tmp_path / "home" / "lake"), lambda text: None)


def test_b5_a_truncated_file_refuses_the_delivery(tmp_path: Path) -> None:
    source = deliver(tmp_path / "in", {})
    file = tmp_path / "in/exp/data/BILLING_PERIOD=2026-11/exp-00001.snappy.parquet"
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(BillUnreadable, match="can't be read"):
        staged(tmp_path, source)


def test_a_manifest_that_leads_out_of_its_folder_is_refused(tmp_path: Path) -> None:
    names = ["s3://b/p/exp/data/BILLING_PERIOD=2026-11/../../../etc/passwd"]
    with pytest.raises(UnsafePath):
        deliveries(deliver(tmp_path, {}, names=names))


def test_a_folder_without_manifest_says_which_folder_is_wanted(tmp_path: Path) -> None:
    with pytest.raises(FormatUnknown, match="metadata/BILLING_PERIOD"):
        deliveries(Source("bill", "aws-cur2", tmp_path))


def test_a_spot_instance_type_is_read_from_its_description(tmp_path: Path) -> None:
    row = {
        "line_item_usage_type": "USW2-SpotUsage:p4d.24xlarge",
        "line_item_line_item_description": "p4d.24xlarge Linux/UNIX Spot",
    }
    frame = staged(tmp_path, deliver(tmp_path / "in", row))
    assert frame.select("x_instance_type", "pricing_category").rows() == [("p4d.24xlarge", "Dynamic")]


# --- CSV exports, rows kept aside, hostile layouts --------------------------------------------------------------------
CSV_HEADER = (
    "bill_payer_account_id,line_item_usage_account_id,line_item_line_item_type,line_item_currency_code,line_item_usage_start_date,"
    "line_item_usage_end_date,line_item_usage_type,line_item_operation,line_item_unblended_cost,line_item_usage_amount,"
    "line_item_resource_id,line_item_line_item_description,product,resource_tags"
)


def csv_row(cost: str = "0.1", amount: str = "1", start: str = "2026-11-23T10:00:00.000Z", text: str = "x") -> str:
    return (
        f'"012","013",Usage,USD,{start},2026-11-23T11:00:00Z,BoxUsage:p4d.24xlarge,RunInstances,{cost},{amount},i-1,"{text}",'
        '"{""instance_type"":""p4d.24xlarge""}","{""aws_eks_cluster_name"":""c1""}"'
    )


def deliver_csv(root: Path, *rows: str) -> Source:
    source = deliver(root, {}, names=["s3://b/exp/data/BILLING_PERIOD=2026-11/exp-00001.csv.gz"])
    body = "\n".join([CSV_HEADER, *rows]) + "\n"
    (root / "exp/data/BILLING_PERIOD=2026-11/exp-00001.csv.gz").write_bytes(gzip.compress(body.encode("utf-8-sig")))
    return source


def test_b1_a_csv_export_reads_as_its_maps_are_json(tmp_path: Path) -> None:
    frame = staged(
        tmp_path, deliver_csv(tmp_path / "in", csv_row(), csv_row("1.705671E-4", text='two\nlines, ""quoted""'))
    )
    assert frame.select("billed_cost", "x_instance_type", "tags", "billing_account_id").rows() == [
        (Decimal("0.1"), "p4d.24xlarge", '{"aws_eks_cluster_name":"c1"}', "012"),
        (Decimal("0.0001705671"), "p4d.24xlarge", '{"aws_eks_cluster_name":"c1"}', "012"),
    ]
    assert frame["charge_period_start"].to_list() == [HOUR[0]] * 2


def test_b5_a_row_whose_money_is_readable_is_kept_aside_with_its_money(tmp_path: Path) -> None:
    rows = csv_row(), csv_row(start="yesterday"), csv_row(amount="lots")
    frame = staged(tmp_path, deliver_csv(tmp_path / "in", *rows))
    assert frame["billed_cost"].to_list() == [Decimal("0.1")] * 3
    assert [text and text.split(":")[0] for text in frame["x_source_changes"]] == [None, "rejected", "rejected"]
    lake = Lake(tmp_path / "home" / "lake")
    load = lake.loads().filter(pl.col("table_name") == LINE).row(0, named=True)
    assert (load["rows_read"], load["rows_kept"], load["rows_rejected"]) == (3, 1, 2)
    assert pl.read_parquet(lake.rejected_files())["line_number"].to_list() == [2, 3]


def test_b5_an_amortised_cost_that_is_no_number_refuses_the_delivery(tmp_path: Path) -> None:
    source = deliver(tmp_path / "in", {"reservation_effective_cost": "7"}, {"reservation_effective_cost": "seven"})
    with pytest.raises(BillUnreadable, match="row 2 has no readable cost"):
        staged(tmp_path, source)


def test_b4_an_orphan_partition_in_the_other_case_is_not_the_one_that_the_manifest_names(tmp_path: Path) -> None:
    """AWS has changed the case of the partition's name and left the old one behind."""
    source = deliver(tmp_path / "in", {"line_item_unblended_cost": 5.0})
    orphan = tmp_path / "in/exp/data/billing_period=2026-11"
    orphan.mkdir()
    pq.write_table(
        pa.Table.from_pylist([{**BASE, "line_item_unblended_cost": 99.0}]), orphan / "exp-00001.snappy.parquet"
    )
    assert staged(tmp_path, source)["billed_cost"].to_list() == [5]


def test_b4_a_file_that_is_named_twice_counts_once(tmp_path: Path) -> None:
    names = ["s3://b/exp/data/BILLING_PERIOD=2026-11/exp-00001.snappy.parquet"] * 2
    assert staged(tmp_path, deliver(tmp_path / "in", {}, names=names)).height == 1


def test_b4_only_the_manifest_of_the_period_is_in_force(tmp_path: Path) -> None:
    """Create-new mode keeps each execution below the period; their manifests are history."""
    source = deliver(
        tmp_path / "in", {}, names=["s3://b/exp/data/BILLING_PERIOD=2026-11/run-2/exp-00001.snappy.parquet"]
    )
    base = tmp_path / "in/exp"
    for run, cost in (("run-1", 7.0), ("run-2", 8.0)):
        folder = base / "data/BILLING_PERIOD=2026-11" / run
        folder.mkdir()
        pq.write_table(
            pa.Table.from_pylist([{**BASE, "line_item_unblended_cost": cost}]), folder / "exp-00001.snappy.parquet"
        )
        past = base / "metadata/BILLING_PERIOD=2026-11" / run
        past.mkdir()
        (past / "exp-Manifest.json").write_text(
            json.dumps({"dataFiles": [f"s3://b/exp/data/BILLING_PERIOD=2026-11/{run}/exp-00001.snappy.parquet"]})
        )
    assert staged(tmp_path, source)["billed_cost"].to_list() == [8]


@pytest.mark.parametrize("manifest", ["[]", "{", '{"dataFiles": "s3://b/x"}', "{}"])
def test_b5_a_manifest_of_another_shape_is_an_incomplete_delivery(tmp_path: Path, manifest: str) -> None:
    source = deliver(tmp_path, {})
    (tmp_path / "exp/metadata/BILLING_PERIOD=2026-11/exp-Manifest.json").write_text(manifest)
    with pytest.raises(DeliveryIncomplete):
        deliveries(source)


def test_a_month_that_does_not_exist_is_no_period(tmp_path: Path) -> None:
    with pytest.raises(FormatUnknown):
        deliveries(deliver(tmp_path, {}, period="2026-13"))
