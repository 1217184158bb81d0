"""Splits and roundings lose nothing (N4): properties over random amounts and weights."""

from __future__ import annotations

from decimal import Decimal

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.engine.warehouse import Warehouse
from models.money import round_sql, split_sql

MONEY = st.decimals(min_value=-(10**7), max_value=10**7, places=12)
PARTS = st.lists(st.integers(min_value=0, max_value=10**15 - 1), min_size=1, max_size=9).filter(any)


def split(total: Decimal | None, weights: list[int]) -> list[Decimal | None]:
    with Warehouse() as warehouse:
        frame = pl.DataFrame(
            {
                "line": [1] * len(weights),
                "part": list(range(len(weights))),
                "weight": weights,
                "cost": [total] * len(weights),
            },
            schema={"line": pl.Int64, "part": pl.Int64, "weight": pl.Int64, "cost": pl.Decimal(38, 12)},
        )
        warehouse.scratch_frame("rows_in", frame)
        sql = split_sql("rows_in", group=("line",), key=("part",), weight="weight", amounts=("cost",))
        return warehouse.query(f"SELECT cost_part FROM ({sql}) ORDER BY part")["cost_part"].to_list()


def rounded(amounts: list[Decimal | None], total: Decimal | None = None) -> list[Decimal | None]:
    with Warehouse() as warehouse:
        size = len(amounts)
        frame = pl.DataFrame(
            {"line": [1] * size, "part": list(range(size)), "cost": amounts, "cost_total": [total] * size},
            schema={"line": pl.Int64, "part": pl.Int64, "cost": pl.Decimal(38, 12), "cost_total": pl.Decimal(38, 6)},
        )
        warehouse.scratch_frame("rows_in", frame)
        sql = round_sql("rows_in", group=("line",), key=("part",), amounts=("cost",), totals=total is not None)
        return warehouse.query(f"SELECT cost_6 FROM ({sql}) ORDER BY part")["cost_6"].to_list()


@settings(max_examples=60, deadline=None)
@given(total=MONEY, weights=PARTS)
def test_n4_the_parts_equal_the_whole_to_the_last_digit(total: Decimal, weights: list[int]) -> None:
    parts = split(total, weights)
    assert sum(part for part in parts if part is not None) == total
    for part, weight in zip(parts, weights, strict=True):
        assert part is not None
        assert abs(part - total * weight / sum(weights)) <= Decimal("0.000000000002")


def test_n4_left_over_units_go_to_the_largest_remainder_ties_by_key() -> None:
    assert split(Decimal("0.000000000010"), [1, 1, 1]) == [Decimal(f"0.{n:012d}") for n in (4, 3, 3)]
    assert split(Decimal("-0.000000000010"), [1, 1, 1]) == [Decimal(f"-0.{n:012d}") for n in (4, 3, 3)]


def test_n3_an_unknown_total_stays_unknown() -> None:
    assert split(None, [1, 2]) == [None, None]


@settings(max_examples=60, deadline=None)
@given(amounts=st.lists(MONEY, min_size=1, max_size=9))
def test_n4_rounded_parts_sum_to_the_rounded_total(amounts: list[Decimal]) -> None:
    parts = [part for part in rounded(list(amounts)) if part is not None]
    exact = sum(amounts)
    assert abs(sum(parts) - exact) <= Decimal("0.0000005")
    assert all(abs(part - amount) < Decimal("0.000001") for part, amount in zip(parts, amounts, strict=True))


@pytest.mark.parametrize("up", [False, True])
def test_n4_rounding_top_down_meets_the_total_that_it_is_given(up: bool) -> None:
    amounts = [Decimal("0.000000400000"), Decimal("0.000000300000")]
    total = Decimal("0.000001") if up else Decimal("0.000000")
    parts = rounded(list(amounts), total)
    assert parts == ([Decimal("0.000001"), Decimal("0.000000")] if up else [Decimal("0.000000")] * 2)


def test_n3_an_unknown_amount_takes_no_part_in_rounding() -> None:
    assert rounded([Decimal("0.0000004"), None, Decimal("0.0000004")]) == [
        Decimal("0.000001"),
        None,
        Decimal("0.000000"),
    ]
