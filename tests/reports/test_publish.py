"""Publication: the promise to readers (types, files, manifest), revisions, and what a reader can ever see."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from models.contracts import TABLES
from models.engine.warehouse import Warehouse, Window
from reports import parquet, swap
from reports.publish import (
    PublicationError,
    mart_tables,
    open_published,
    publish,
    published_days,
    read_published,
    verify_published,
)
from tests.conftest import REPOSITORY
from tests.reports import mart_sample
from tests.reports.conftest import NOW, WINDOW
from tests.reports.footers import WIDE_DECIMALS, differences, violations
from tests.reports.killed_publisher import MARKED, marked_mart
from tests.reports.killed_publisher import WINDOW as MARKED_WINDOW


def parquet_files(home: Path) -> list[Path]:
    return sorted((home / "published" / "v1").glob("*/*.parquet"))


def content(home: Path) -> dict[str, bytes]:
    """Every published byte but the snapshot's, whose pages DuckDB lays out afresh each time."""
    root = home / "published"
    return {
        str(p.relative_to(root)): p.read_bytes()
        for p in sorted(root.rglob("*"))
        if p.is_file() and p.suffix != ".duckdb"
    }


# --- files -----------------------------------------------------------------------------------------------------
def test_every_footer_keeps_the_rules_and_equals_its_contract(published_home: Path) -> None:
    files = parquet_files(published_home)
    assert {path.parent.name for path in files} == {table.short_name for table in mart_tables()}
    for path in files:
        assert violations(path, wide_decimals=path.parent.name in WIDE_DECIMALS) == set(), path
        assert differences(path, TABLES[f"mart.{path.parent.name}"]) == [], path


def test_only_reconciliation_carries_wide_decimals(published_home: Path) -> None:
    wide = {path.parent.name for path in parquet_files(published_home) if violations(path)}
    assert wide == {"fact_reconciliation"}


@pytest.mark.parametrize(
    ("rule", "array"),
    [
        ("unsigned", pa.array([1], pa.uint32())),
        ("narrow integer", pa.array([1], pa.int16())),
        ("nanoseconds", pa.array([1], pa.timestamp("ns"))),
        ("milliseconds", pa.array([1], pa.timestamp("ms"))),
        ("zoned timestamp", pa.array([1], pa.timestamp("us", tz="UTC"))),
        ("wide decimal", pa.array([Decimal(1)], pa.decimal128(38, 2))),
        ("null type", pa.array([None], pa.null())),
        ("nested", pa.array([{"a": 1}], pa.struct([("a", pa.int64())]))),
        ("repeated", pa.array([[1]], pa.list_(pa.int64()))),
        ("time of day", pa.array([1], pa.time64("us"))),
        ("day without time", pa.array([1], pa.date32())),
        ("untyped binary", pa.array([b"x"], pa.binary())),
        ("not for readers", pa.array([1.0], pa.float16())),
    ],
)
def test_a_planted_type_is_found_by_its_rule(tmp_path: Path, rule: str, array: pa.Array) -> None:
    path = tmp_path / "planted.parquet"
    pq.write_table(pa.table({"planted": array}), path, compression="snappy")
    assert rule in {found for _, found in violations(path)}


@pytest.mark.parametrize(
    ("rule", "options"),
    [
        ("encoding", {"use_dictionary": False, "column_encoding": {"n": "DELTA_BINARY_PACKED"}}),
        ("compression", {"compression": "zstd"}),
        ("row groups", {"row_group_size": 40_000}),
        ("row groups", {"row_group_size": 1_048_576}),
        ("INT96", {"use_deprecated_int96_timestamps": True}),
    ],
)
def test_a_planted_form_is_found_by_its_rule(tmp_path: Path, rule: str, options: dict[str, object]) -> None:
    path = tmp_path / "planted.parquet"
    rows = 1_100_000 if rule == "row groups" else 10
    table = pa.table({"n": pa.array(range(rows), pa.int64())})
    if rule == "INT96":
        table = table.append_column("t", pa.array([datetime(2026, 1, 1)] * rows, pa.timestamp("us")))
    pq.write_table(table, path, **{"compression": "snappy", **options})
    assert rule in {found for _, found in violations(path)}


def test_a_contract_difference_is_found(published_home: Path) -> None:
    path = published_home / "published" / "v1" / "dim_owner" / "part-0.parquet"
    assert differences(path, TABLES["mart.dim_cluster"])


def test_a_mart_without_rows_is_published_with_every_schema(tmp_path: Path) -> None:
    with Warehouse() as empty:
        manifest = publish(empty, tmp_path, NOW, WINDOW)
    assert manifest["weeks"] == {}
    for table in mart_tables():
        (path,) = (tmp_path / "published" / "v1" / table.short_name).glob("*.parquet")
        assert pq.read_metadata(path).num_rows == 0
        assert differences(path, table) == []
    with open_published(tmp_path) as published:
        assert published.table("fact_gpu_hours").schema == pl.Schema(TABLES["mart.fact_gpu_hours"].polars_schema())


@pytest.mark.parametrize(
    ("rows", "size"), [(0, 1), (1, 1), (500_000, 500_000), (500_001, 250_001), (1_500_001, 375_001)]
)
def test_row_groups_are_even(rows: int, size: int) -> None:
    assert parquet.row_group_size(rows) == size


def test_row_groups_hold_every_row_once(tmp_path: Path, mart: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "ROW_GROUP_ROWS", 500)
    table = TABLES["mart.fact_gpu_hours"]
    (file,) = parquet.write_table(mart.con, table, table.name, tmp_path)
    metadata = pq.read_metadata(tmp_path / file.path)
    assert [metadata.row_group(g).num_rows for g in range(metadata.num_row_groups)] == [384] * 4
    written = pl.read_parquet(tmp_path / file.path).with_columns(pl.col("date").cast(pl.Date))
    assert written.sort(pl.all()).equals(mart.table(table.name).sort(pl.all()))


def test_files_are_one_a_month_with_plain_names(published_home: Path) -> None:
    for path in parquet_files(published_home):
        month = path.parent.name.startswith("fact_") and path.stem.startswith("2026-")
        assert path.name == ("2026-11.parquet" if month else "part-0.parquet")
    assert (published_home / "published/v1/fact_cost_ledger/2026-11.parquet").is_file()


def test_n4_published_money_is_the_marts_to_the_last_digit(published_home: Path, mart: Warehouse) -> None:
    read = read_published(published_home, ["fact_cost_ledger", "fact_transfer_cost", "fact_reconciliation"])
    for name, frame in read.items():
        columns = [c.name for c in TABLES[f"mart.{name}"].columns if c.type in ("published", "money")]
        expected = mart.query(f"SELECT {', '.join(f'sum({c}) AS {c}' for c in columns)} FROM mart.{name}").row(0)
        assert tuple(frame.select(pl.col(columns).sum()).row(0)) == expected


def test_r4_snapshot_and_parquet_hold_the_same_rows(published_home: Path) -> None:
    with open_published(published_home) as published:
        for table in mart_tables():
            from_parquet = read_published(published_home, [table.short_name])[table.short_name]
            snapshot = published.table(table.short_name)
            assert snapshot.schema == pl.Schema(table.polars_schema())
            assert from_parquet.cast(dict(snapshot.schema)).sort(pl.all()).equals(snapshot.sort(pl.all())), table.name


def test_days_are_naive_midnights(published_home: Path) -> None:
    days = read_published(published_home, ["dim_date"])["dim_date"]["date"]
    assert days.dtype == pl.Datetime("us")
    assert days.dt.truncate("1d").equals(days)


def test_manifest_names_every_file_with_rows_and_digest(published_home: Path) -> None:
    manifest = json.loads((published_home / "published/v1/manifest.json").read_text(encoding="utf-8"))
    assert manifest["schema_version"] == 1 and manifest["revision"] == 1
    assert manifest["generated_at_utc"] == "2026-11-25T06:00:00Z"
    assert manifest["window"] == {"from": "2026-11-09", "to": "2026-11-25"}
    listed = {entry["path"]: entry["rows"] for table in manifest["tables"].values() for entry in table["files"]}
    root = published_home / "published/v1"
    assert listed == {str(p.relative_to(root)): pq.read_metadata(p).num_rows for p in parquet_files(published_home)}
    assert verify_published(published_home) == []
    assert published_days(manifest)[0] == date(2026, 11, 9)


def test_snapshot_is_read_only_and_opens_where_the_file_may_not_be_written(published_home: Path) -> None:
    path = published_home / "published/v1/analytics.duckdb"
    assert path.stat().st_mode & 0o222 == 0
    with open_published(published_home) as published, pytest.raises(duckdb.InvalidInputException):
        published.connection.execute("DELETE FROM mart.dim_job")


# --- refusals --------------------------------------------------------------------------------------------------
def test_n6_an_unreconciled_ledger_publishes_nothing(tmp_path: Path, mart: Warehouse) -> None:
    publish(mart, tmp_path, NOW, WINDOW)
    before = content(tmp_path)
    mart.con.execute("UPDATE mart.fact_reconciliation SET difference = 0.000000000001 WHERE currency = 'EUR'")
    with pytest.raises(PublicationError, match=r"differs from the bill by 0\.000000000001 EUR"):
        publish(mart, tmp_path, NOW, WINDOW)
    assert content(tmp_path) == before


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("gpu_hours", "'NaN'::DOUBLE", "fact_gpu_hours.gpu_hours holds NaN"),
        ("gpu_hours", "'inf'::DOUBLE", "fact_gpu_hours.gpu_hours holds NaN or infinity"),
        ("job_key", "9007199254740992", "fact_gpu_hours.job_key holds integers beyond"),
        ("gpu_model", "repeat('x', 32001)", "fact_gpu_hours.gpu_model holds text"),
        ("hour_utc", "TIMESTAMP '1899-12-31'", "fact_gpu_hours.hour_utc holds times"),
    ],
)
def test_values_that_readers_would_change_are_refused(
    tmp_path: Path, mart: Warehouse, column: str, value: str, message: str
) -> None:
    publish(mart, tmp_path, NOW, WINDOW)
    before = content(tmp_path)
    mart.con.execute(f"UPDATE mart.fact_gpu_hours SET {column} = {value} WHERE job_key = 102")
    with pytest.raises(PublicationError, match=message):
        publish(mart, tmp_path, NOW, WINDOW)
    after = {name: data for name, data in content(tmp_path).items() if not name.startswith(".v1-next/")}
    assert after == before


def test_a_period_that_would_leave_its_folder_is_refused(tmp_path: Path, mart: Warehouse) -> None:
    mart.con.execute("UPDATE mart.fact_cost_ledger SET billing_period = '../../2026-11'")
    with pytest.raises(PublicationError, match="is not a month"):
        publish(mart, tmp_path, NOW, WINDOW)


def test_a_manifest_path_that_leaves_its_folder_is_refused(tmp_path: Path, mart: Warehouse) -> None:
    publish(mart, tmp_path, NOW, WINDOW)
    path = tmp_path / "published/v1/manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    manifest["tables"]["dim_job"]["files"][0]["path"] = "../../secret.parquet"
    path.write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.raises(PublicationError, match="leaves its folder"):
        read_published(tmp_path, ["dim_job"])


def test_a_damaged_file_is_not_read(tmp_path: Path, mart: Warehouse) -> None:
    publish(mart, tmp_path, NOW, WINDOW)
    path = tmp_path / "published/v1/dim_job/part-0.parquet"
    shutil.copyfile(tmp_path / "published/v1/dim_owner/part-0.parquet", path)
    assert verify_published(tmp_path) == ["dim_job/part-0.parquet is not the file that was published"]
    with pytest.raises(PublicationError, match="do not match their manifest"):
        read_published(tmp_path, ["dim_job"])


def test_reading_before_any_publication_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="zoneledger run"):
        open_published(tmp_path)


# --- revisions -------------------------------------------------------------------------------------------------
def test_n7_the_same_input_gives_the_same_bytes(tmp_path: Path, mart: Warehouse) -> None:
    publish(mart, tmp_path / "a", NOW, WINDOW)
    with Warehouse() as shuffled:
        for name, frame in mart_sample.frames().items():
            shuffled.append(name, frame.sample(fraction=1.0, shuffle=True, seed=7))
        publish(shuffled, tmp_path / "b with spaces, ü", NOW, WINDOW)
    assert content(tmp_path / "a") == content(tmp_path / "b with spaces, ü")


def test_n7_publishing_again_changes_nothing(tmp_path: Path, mart: Warehouse) -> None:
    first = publish(mart, tmp_path, NOW, WINDOW)
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "published").rglob("*")}
    assert publish(mart, tmp_path, NOW + timedelta(days=1), WINDOW) == first
    assert {
        path: path.stat().st_mtime_ns for path in (tmp_path / "published").rglob("*") if path.name != "published"
    } == {path: time for path, time in times.items() if path.name != "published"}


def test_a_new_window_over_the_same_numbers_keeps_the_revision(tmp_path: Path, mart: Warehouse) -> None:
    publish(mart, tmp_path, NOW, WINDOW)
    again = publish(mart, tmp_path, NOW, Window(date(2026, 11, 23), date(2026, 11, 25)))
    assert again["revision"] == 1
    assert again["window"]["from"] == "2026-11-23"


def test_r2_a_changed_number_raises_the_revision_of_its_week_only(tmp_path: Path, mart: Warehouse) -> None:
    publish(mart, tmp_path, NOW, WINDOW)
    mart.con.execute(
        "UPDATE mart.fact_gpu_hours SET effective_cost = effective_cost + 1.5"
        " WHERE job_key = 102 AND state = 'idle' AND date = '2026-11-18'"
    )
    manifest = publish(mart, tmp_path, NOW + timedelta(days=3), WINDOW)
    assert manifest["revision"] == 2
    assert {week: entry["revision"] for week, entry in manifest["weeks"].items()} == {
        "2026-W46": 1, "2026-W47": 2, "2026-W48": 1,
    }  # fmt: skip
    with open_published(tmp_path) as published:
        (row,) = published.table("fact_restatement").to_dicts()
    assert (row["week"], row["revision"], row["table"], row["job_key"]) == ("2026-W47", 2, "fact_gpu_hours", 102)
    assert (row["measure"], row["delta"], row["currency"]) == ("effective_cost", Decimal("6"), "USD")
    assert row["after"] - row["before"] == row["delta"]
    assert row["cause"] == "late or corrected data"
    archive = tmp_path / "published/archive/2026-W47"
    assert sorted(path.name for path in archive.iterdir()) == ["r1", "r2"]


def test_r2_every_restatement_stays_published(tmp_path: Path, mart: Warehouse) -> None:
    publish(mart, tmp_path, NOW, WINDOW)
    for day in (1, 2):
        mart.con.execute("UPDATE mart.fact_transfer_cost SET billed_cost = billed_cost + 1 WHERE reason = 'no_evidence'"
                         " AND date = '2026-11-12'")  # fmt: skip
        publish(mart, tmp_path, NOW + timedelta(days=day), WINDOW)
    with open_published(tmp_path) as published:
        rows = published.query("SELECT revision, delta FROM mart.fact_restatement ORDER BY revision").rows()
    assert rows == [(2, Decimal(1)), (3, Decimal(1))]


def test_r2_a_newer_delivery_is_named_as_the_cause(tmp_path: Path, mart: Warehouse) -> None:
    publish(mart, tmp_path, NOW, WINDOW)
    mart.con.execute("UPDATE mart.fact_cost_ledger SET billed_cost = billed_cost * 2 WHERE charge_scope = 'tax'")
    mart.con.execute("UPDATE mart.fact_bill_status SET delivery_id = 'd-8' WHERE date = '2026-11-16'")
    publish(mart, tmp_path, NOW, WINDOW)
    with open_published(tmp_path) as published:
        (row,) = published.table("fact_restatement").to_dicts()
    assert (row["charge_scope"], row["cause"], row["delivery_id"]) == ("tax", "newer bill delivery", "d-8")


def test_r2_a_day_that_is_added_is_growth_and_no_restatement(tmp_path: Path, mart: Warehouse) -> None:
    dated = [table for table in mart_tables() if table.short_name.startswith("fact_") and "date" in table.column_names]
    later = {table.name: mart.query(f"SELECT * FROM {table.name} WHERE date >= '2026-11-24'") for table in dated}
    for table in dated:
        mart.con.execute(f"DELETE FROM {table.name} WHERE date >= '2026-11-24'")
    publish(mart, tmp_path, NOW, WINDOW)
    for name, frame in later.items():
        mart.append(name, frame)
    manifest = publish(mart, tmp_path, NOW, WINDOW)
    assert manifest["weeks"]["2026-W48"]["revision"] == 2
    with open_published(tmp_path) as published:
        assert published.table("fact_restatement").height == 0


def test_n3_a_price_that_becomes_known_is_not_restated_from_zero(tmp_path: Path, mart: Warehouse) -> None:
    mart.con.execute("UPDATE mart.fact_gpu_hours SET billed_cost = NULL, effective_cost = NULL, currency = 'USD'"
                     " WHERE job_key = 104 AND date BETWEEN '2026-11-16' AND '2026-11-22'")  # fmt: skip
    publish(mart, tmp_path, NOW, WINDOW)
    mart.con.execute("UPDATE mart.fact_gpu_hours SET effective_cost = 5"
                     " WHERE job_key = 104 AND date BETWEEN '2026-11-16' AND '2026-11-22'")  # fmt: skip
    publish(mart, tmp_path, NOW, WINDOW)
    with open_published(tmp_path) as published:
        (row,) = published.table("fact_restatement").to_dicts()
    assert (row["before"], row["delta"]) == (None, None)
    assert row["after"] is not None


def test_a_week_of_days_that_were_not_run_is_not_published(tmp_path: Path, mart: Warehouse) -> None:
    mart.con.execute("UPDATE mart.fact_cost_ledger SET date = '2026-11-30' WHERE reason = 'not_run'")
    assert "2026-W49" not in publish(mart, tmp_path, NOW, WINDOW)["weeks"]


def test_an_archived_revision_holds_its_week_alone(published_home: Path) -> None:
    folder = published_home / "published/archive/2026-W47/r1"
    gpu = pl.read_parquet(folder / "fact_gpu_hours/2026-11.parquet")
    assert (gpu["date"].min(), gpu["date"].max()) == (datetime(2026, 11, 16), datetime(2026, 11, 22))
    assert pl.read_parquet(folder / "fact_finding/part-0.parquet").height == 5
    earlier = published_home / "published/archive/2026-W46/r1"
    assert pl.read_parquet(earlier / "fact_finding/part-0.parquet").height == 0


# --- atomicity -------------------------------------------------------------------------------------------------
def seen_marks(home: Path) -> set[int]:
    """The marks that a reader finds in the four marked tables, through the snapshot and through parquet."""
    with open_published(home) as published:
        marks = {mark for name, column in MARKED.items() for mark in published.table(name)[column]}
    for name, frame in read_published(home, list(MARKED)).items():
        marks |= set(frame[MARKED[name]])
    return marks


def killed_at(home: Path, mark: int, step: str, way: str) -> subprocess.CompletedProcess[str]:
    script = Path(__file__).with_name("killed_publisher.py")
    return subprocess.run(
        [sys.executable, str(script), str(home), str(mark), step, way],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, capture_output=True, text=True, check=False,
    )  # fmt: skip


OLD, NEW = 1, 2


@pytest.mark.parametrize(
    ("way", "step", "seen"),
    [
        ("exchange", "wrote_fact_gpu_hours", OLD),
        ("exchange", "wrote_manifest", OLD),
        ("exchange", "before_swap", OLD),
        ("exchange", "after_exchange", NEW),
        ("exchange", "before_archive_2026-W47", NEW),
        ("rename", "between_renames", OLD),
        ("rename", "after_renames", NEW),
        ("rename", "after_swap", NEW),
    ],
)
def test_r3_a_kill_at_any_step_leaves_the_old_or_the_new(tmp_path: Path, way: str, step: str, seen: int) -> None:
    with marked_mart(OLD) as mart:
        publish(mart, tmp_path, datetime(2026, 11, 17), MARKED_WINDOW)
    killed = killed_at(tmp_path, NEW, step, way)
    assert killed.returncode == -9, killed.stderr
    assert killed.stdout.split()[-1] == step
    assert seen_marks(tmp_path) == {seen}
    with marked_mart(NEW) as mart:
        manifest = publish(mart, tmp_path, datetime(2026, 11, 19), MARKED_WINDOW)
    assert seen_marks(tmp_path) == {NEW}
    assert manifest["weeks"]["2026-W47"]["revision"] == 2
    assert verify_published(tmp_path) == []
    assert sorted(path.name for path in (tmp_path / "published").iterdir()) == ["archive", "v1"]
    assert sorted(path.name for path in (tmp_path / "published/archive/2026-W47").iterdir()) == ["r1", "r2"]


@pytest.mark.parametrize("exchange", [True, False])
def test_r3_a_reader_never_sees_a_mix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchange: bool) -> None:
    if not exchange:
        monkeypatch.setattr(swap, "_exchange", lambda first, second: False)
    with marked_mart(1) as mart:
        publish(mart, tmp_path, NOW, MARKED_WINDOW)
    done = threading.Event()

    def publish_ever_new_marks() -> None:
        try:
            for mark in range(2, 5):
                with marked_mart(mark) as mart:
                    publish(mart, tmp_path, NOW, MARKED_WINDOW)
        finally:
            done.set()

    writer = threading.Thread(target=publish_ever_new_marks)
    writer.start()
    last = 1
    try:
        while not done.is_set():
            with open_published(tmp_path) as published:
                marks = {mark for name, column in MARKED.items() for mark in published.table(name)[column]}
                assert len(marks) == 1
                assert published.manifest["revision"] == max(marks)
                assert max(marks) >= last
                last = max(marks)
    finally:
        writer.join()
    assert seen_marks(tmp_path) == {4}


def test_an_open_reader_keeps_the_publication_that_it_opened(tmp_path: Path) -> None:
    with marked_mart(1) as mart:
        publish(mart, tmp_path, NOW, MARKED_WINDOW)
    with open_published(tmp_path) as before:
        with marked_mart(2) as mart:
            publish(mart, tmp_path, NOW, MARKED_WINDOW)
        with open_published(tmp_path) as after:
            assert after.table("dim_owner")["owner_key"].to_list() == [2]
        assert before.table("dim_owner")["owner_key"].to_list() == [1]


def test_a_failed_exchange_is_an_error_and_not_a_half_swap(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    with pytest.raises(OSError, match="No such file"):
        swap._exchange(tmp_path / "new", tmp_path / "absent")
