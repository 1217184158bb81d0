"""End to end over real files: a bill that FinOps published, real Hubble records, flow logs, pod lists and GPU activity.

One run serves the tests that read; those that run again or break something work on a copy of it.
"""

from __future__ import annotations

import shutil
from datetime import date
from decimal import Decimal
from pathlib import Path

import duckdb
import polars as pl
import pytest

from connectors.sink import Lake
from models.engine.warehouse import Window
from pipelines.run import check_warehouse, publish_again, run_window
from tests.pipelines.real_inputs import SEPTEMBER, digests, lay_out

pytestmark = pytest.mark.slow

ONE_DAY = Window(date(2024, 9, 10), date(2024, 9, 11))


def quiet(text: str) -> None:
    """Progress that nobody reads."""


@pytest.fixture(scope="module")
def whole_run(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of one run over September 2024; not to be changed."""
    folder = tmp_path_factory.mktemp("real")
    told: list[str] = []
    assert run_window(lay_out(shared_data, folder), None, SEPTEMBER, told.append) == 0, told[-2:]
    return folder


@pytest.fixture
def copied_run(whole_run: Path, tmp_path: Path) -> Path:
    """A copy of that run that a test may change."""
    return shutil.copytree(whole_run, tmp_path / "real")


def published(folder: Path, table: str) -> pl.DataFrame:
    """One published table, read as Power BI reads it: its parquet files."""
    return pl.read_parquet(folder / "home" / "published" / "v1" / table / "*.parquet")


def published_tables(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "home" / "published" / "v1").iterdir() if path.is_dir())


def core(folder: Path, sql: str) -> list[tuple[object, ...]]:
    with duckdb.connect(str(folder / "home" / "warehouse.duckdb"), read_only=True) as con:
        return con.execute(sql).fetchall()


def test_n6_the_ledger_is_the_bill_by_provider_and_category(whole_run: Path) -> None:
    """Sums of the file itself; those of effective cost are as the sample states them (it rounds AWS rows, blanks Oracle's)."""
    assert core(
        whole_run,
        "SELECT provider, charge_category, sum(billed_cost), sum(effective_cost) FROM core.bill_line GROUP BY ALL ORDER BY ALL",
    ) == [
        ("aws", "Credit", Decimal("-2.613700000000"), Decimal(-3)),
        ("aws", "Usage", Decimal("20.620338618400"), Decimal(16)),
        ("azure", "Usage", Decimal("1.976514185860"), Decimal("1.976514185860")),
        ("oracle", "Adjustment", Decimal("0.272000000000"), Decimal(0)),
        ("oracle", "Usage", Decimal("0.265073924730"), Decimal(0)),
    ]
    assert core(whole_run, "SELECT sum(billed_cost), sum(effective_cost) FROM core.ledger_line") == core(
        whole_run, "SELECT sum(billed_cost), sum(effective_cost) FROM core.bill_line"
    )


def test_n4_published_money_has_six_places_rounded_top_down(whole_run: Path) -> None:
    """Each day's total of a scope is rounded alone, so a month of them may miss the bill by 15 such roundings, no more."""
    ledger = published(whole_run, "fact_cost_ledger")
    totals = ledger.group_by("provider", "charge_category").agg(pl.col("billed_cost").sum()).sort(pl.all()).rows()
    assert totals == [
        ("aws", "Credit", Decimal("-2.613700")),
        ("aws", "Usage", Decimal("20.620336")),
        ("azure", "Usage", Decimal("1.976516")),
        ("oracle", "Adjustment", Decimal("0.272000")),
        ("oracle", "Usage", Decimal("0.265074")),
    ]


def test_n6_the_difference_to_the_received_file_is_zero(whole_run: Path) -> None:
    rows = published(whole_run, "fact_reconciliation").sort("billing_period", "provider", "measure")
    assert rows["difference"].unique().to_list() == [Decimal(0)]
    billed = rows.filter(pl.col("measure") == "billed").select("billing_period", "provider", "bill_total").rows()
    assert billed == [
        ("2024-09", "aws", Decimal("18.006638618400")),
        ("2024-09", "azure", Decimal("1.976514185860")),
        ("2024-09", "oracle", Decimal("0.297073924730")),
        ("2024-10", "oracle", Decimal("0.240000000000")),
    ]


def test_a4_regional_transfer_of_foreign_resources_reaches_no_job(whole_run: Path) -> None:
    """58 lines name resources that are no node of this cluster; where nodes are not known, that can't be said of them."""
    assert core(
        whole_run,
        "SELECT count(*), sum(quantity), sum(billed_cost) FROM core.bill_line WHERE charge_scope = 'inter_az_transfer'",
    ) == [(58, Decimal("0.6809419853"), Decimal("0.0068094198"))]
    assert core(
        whole_run,
        "SELECT bucket, reason, job_key, count(*), max(date), sum(billed_cost) FROM core.ledger_line"
        " WHERE charge_scope = 'inter_az_transfer' GROUP BY ALL ORDER BY reason",
    ) == [
        ("unattributed", "no_evidence", -1, 50, date(2024, 9, 30), Decimal("0.006004115000")),
        ("unattributed", "not_a_node", -1, 8, date(2024, 9, 10), Decimal("0.000805304800")),
    ]


def test_a4_published_transfer_is_the_ledgers_and_knows_no_bytes(whole_run: Path) -> None:
    facts = published(whole_run, "fact_transfer_cost")
    assert set(facts["reason"]) == {"no_evidence", "not_a_node"}
    assert facts["job_key"].unique().to_list() == [-1]
    assert facts["billed_gb"].sum() == pytest.approx(0.6809419853, abs=1e-12)
    assert facts["metered_bytes"].null_count() == facts.height
    ledger = published(whole_run, "fact_cost_ledger").filter(pl.col("charge_scope") == "inter_az_transfer")
    assert ledger["billed_cost"].sum() == facts["billed_cost"].sum() == Decimal("0.006806")


def test_p1_lists_of_one_namespace_end_no_pod(whole_run: Path) -> None:
    rows = core(
        whole_run,
        "SELECT count(*), count(DISTINCT pod_uid), bool_and(still_alive), list(DISTINCT to_basis)"
        " FROM core.pod_life WHERE namespace = 'kube-system' AND node_name LIKE 'aks-%'",
    )
    assert rows == [(10, 10, True, ["last_seen"])]


def test_p4_a_legacy_label_gives_the_zone(whole_run: Path) -> None:
    node = published(whole_run, "dim_node").filter(pl.col("node_key") != -1)
    zones = published(whole_run, "dim_zone")
    assert node.join(zones, on="zone_key").select("instance_id", "zone").rows() == [
        ("i-0a99d3bb7b27d62ac", "us-east-2c")
    ]


def test_b5_every_row_read_is_accounted_for(whole_run: Path) -> None:
    """Per source: read = kept + rejected + duplicate + control, as published; rejected rows are kept with a reason."""
    sums = ("rows_read", "rows_kept", "rows_rejected", "rows_duplicate", "rows_control")
    counted = published(whole_run, "fact_coverage").group_by("source").agg(pl.col(sums).sum()).sort("source")
    assert (counted["rows_read"] - counted.select(sums[1:]).sum_horizontal()).to_list() == [0] * counted.height
    of = {row["source"]: row for row in counted.iter_rows(named=True)}
    assert set(of) == {"bill", "flow-logs", "flows", "gpu", "lists"}
    assert (of["bill"]["rows_kept"], of["bill"]["rows_rejected"]) == (1004, 0)  # 1000 lines and one row a delivery
    assert (of["gpu"]["rows_read"], of["gpu"]["rows_kept"]) == (21678, 21678)
    assert (of["flow-logs"]["rows_kept"], of["flow-logs"]["rows_rejected"], of["flow-logs"]["rows_control"]) == (
        16,
        11,
        7,
    )
    assert (of["flows"]["rows_read"], of["flows"]["rows_kept"]) == (1198, 1156)
    rejected = pl.concat([pl.read_parquet(path) for path in Lake(whole_run / "home" / "lake").rejected_files()])
    assert rejected.height == int(counted["rows_rejected"].sum())
    assert rejected["reason"].null_count() == 0


def test_one_report_a_week(whole_run: Path) -> None:
    names = sorted(path.name for path in (whole_run / "home" / "reports").glob("*.html"))
    assert names == [f"2024-W{week}.html" for week in range(35, 41)]


def test_n7_running_a_day_again_changes_nothing(copied_run: Path) -> None:
    home = copied_run / "home"
    before = digests(home / "published"), digests(home / "reports")
    assert run_window(copied_run / "zoneledger.toml", None, ONE_DAY, quiet) == 0
    now = digests(home / "published"), digests(home / "reports")
    # the published window is that of all processed days, so the rest of the month stands as it was
    assert now == before


def test_n7_a_window_split_in_two_and_run_backwards_is_the_whole(whole_run: Path, tmp_path: Path) -> None:
    """What each published table says of a window, when its halves were run in reverse order, and when it was run whole."""
    first, middle, end = date(2024, 9, 10), date(2024, 9, 11), date(2024, 9, 12)
    runs = {"whole": [Window(first, end)], "halves": [Window(middle, end), Window(first, middle)]}
    for name, windows in runs.items():
        shutil.copytree(whole_run, tmp_path / name, ignore=shutil.ignore_patterns("warehouse*", "published", "reports"))
        for window in windows:
            assert run_window(tmp_path / name / "zoneledger.toml", None, window, quiet) == 0
    for table in published_tables(tmp_path / "whole"):
        if table == "fact_restatement":  # tells of the first half's publication, which the whole run never made
            continue
        whole, halves = (published(tmp_path / name, table) for name in runs)
        assert whole.sort(whole.columns).equals(halves.sort(whole.columns)), table


def test_n6_a_received_bill_that_differs_from_the_ledger_publishes_nothing(
    copied_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The bill's total comes from the landed copy, not from what was staged of it: one altered cent is seen."""
    home = copied_run / "home"
    (landed,) = (home / "landing" / "bill").iterdir()
    text = landed.read_text(encoding="utf-8-sig")
    assert ",1.62400000000," in text
    landed.chmod(0o644)
    landed.write_text(text.replace(",1.62400000000,", ",1.63400000000,", 1), encoding="utf-8")
    before = digests(home / "published"), digests(home / "reports")
    told: list[str] = []
    assert run_window(copied_run / "zoneledger.toml", None, ONE_DAY, told.append) == 1
    assert (digests(home / "published"), digests(home / "reports")) == before
    assert "nothing was published; what was published before is untouched" in told[-1]
    assert "publishing" not in told
    assert "findings" not in capsys.readouterr().out


def test_n6_a_lost_ledger_row_fails_the_check_and_is_named(
    copied_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, home = copied_run / "zoneledger.toml", copied_run / "home"
    assert check_warehouse(config, None) == 0
    assert "every check holds" in capsys.readouterr().out
    with duckdb.connect(str(home / "warehouse.duckdb")) as con:
        con.execute("DELETE FROM mart.fact_cost_ledger WHERE charge_scope = 'credit'")
    before = digests(home / "published")
    assert check_warehouse(config, None) == 1
    assert publish_again(config, None, quiet) == 1
    assert digests(home / "published") == before
    assert "published_ledger_is_the_ledger" in capsys.readouterr().out
