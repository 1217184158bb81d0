"""The engine: contracts are enforced at every write, and a write replaces its window and nothing else."""

from __future__ import annotations

from datetime import date

import polars as pl
import pytest

from models.contracts import TABLES
from models.engine.warehouse import Warehouse, WarehouseError, Window, utc_ns

DAYS = Window(date(2026, 11, 23), date(2026, 11, 25))


def processed(*days: date) -> pl.DataFrame:
    return TABLES["core.processed_day"].frame([{"date": day, "input_digest": "x"} for day in days])


def test_n7_a_window_replaces_itself_and_nothing_else(warehouse: Warehouse) -> None:
    warehouse.replace("core.processed_day", processed(*DAYS.days), window=DAYS)
    before = Window(date(2026, 11, 20), date(2026, 11, 21))
    warehouse.replace("core.processed_day", processed(*before.days), window=before)
    warehouse.replace("core.processed_day", processed(DAYS.days[0]), window=DAYS)
    assert warehouse.table("core.processed_day")["date"].sort().to_list() == [before.days[0], DAYS.days[0]]


def test_n1_a_row_outside_the_window_is_refused_and_the_old_rows_stay(warehouse: Warehouse) -> None:
    warehouse.replace("core.processed_day", processed(*DAYS.days), window=DAYS)
    with pytest.raises(WarehouseError, match="outside the window"):
        warehouse.replace("core.processed_day", processed(DAYS.to_date), window=DAYS)
    assert warehouse.table("core.processed_day").height == 2


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([{"zone_key": 1, "provider": "aws", "zone": None}], "null in zone"),
        (
            [{"zone_key": 1, "provider": "aws", "zone": "a"}, {"zone_key": 1, "provider": "aws", "zone": "b"}],
            "not unique",
        ),
    ],
)
def test_a_broken_contract_is_refused_by_name(warehouse: Warehouse, rows: list[dict[str, object]], said: str) -> None:
    with pytest.raises(WarehouseError, match=f"core.zone: .*{said}"):
        warehouse.replace("core.zone", TABLES["core.zone"].frame(rows))


def test_n2_stable_key_is_the_same_in_every_run_and_exact_in_a_double(warehouse: Warehouse) -> None:
    keys = warehouse.query("SELECT stable_key('train-1' || chr(31) || i::VARCHAR) AS k FROM range(10000) AS t(i)")["k"]
    assert keys.n_unique() == 10000
    assert warehouse.query("SELECT stable_key('abc') AS k")["k"][0] == 0x900150983CD24
    assert keys.max() < 2**53


@pytest.mark.parametrize(
    ("text", "fraction"),
    [
        ("2026-11-23T10:00:00Z", 0),
        ("2026-11-23T10:00:00.5Z", 500_000_000),
        ("2026-11-23T10:00:00.302406001Z", 302_406_001),
    ],
)
def test_n1_times_are_exact_nanoseconds(warehouse: Warehouse, text: str, fraction: int) -> None:
    ns = utc_ns(text)
    assert ns == 1_795_428_000 * 1_000_000_000 + fraction
    row = warehouse.query("SELECT ns_hour($ns::BIGINT) AS h, ns_date($ns::BIGINT) AS d", {"ns": ns}).row(0)
    assert (row[0].hour, row[1]) == (10, date(2026, 11, 23))


def test_every_contract_makes_its_table_and_its_empty_frame(warehouse: Warehouse) -> None:
    for table in TABLES.values():
        assert warehouse.table(table.name).schema == table.empty().schema, table.name


def test_an_empty_window_is_refused() -> None:
    with pytest.raises(ValueError, match="exclusive"):
        Window(date(2026, 11, 23), date(2026, 11, 23))
