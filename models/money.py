"""Splitting and rounding of money: decimal, largest remainder, to the last digit (N4). No floating point.

Both building blocks are SQL text over a table of rows, so that they run inside the warehouse.
"""

from __future__ import annotations

LEDGER_PLACES = 12
PUBLISHED_PLACES = 6
# An amount in units of 10^-12 times a weight must stay below 1.7e38: weights are kept below 10^15.
WEIGHT_SCALE = 1_000_000_000


def split_sql(
    source: str, *, group: tuple[str, ...], key: tuple[str, ...], weight: str, amounts: tuple[str, ...]
) -> str:
    """SELECT of `source` with `<amount>_part` for each amount: the group's amount split by `weight`.

    `source` has one row a part; an amount repeats the group's total on each of its parts; `weight` is a non-negative
    whole number, at least one of the group above 0. Whole units of 10^-12 go by weight, the units left over to the
    largest remainders, ties by `key`. A null total stays null. Parts of a group sum to its total exactly.
    """
    partition = ", ".join(group)
    order = ", ".join(key)
    units = {name: f"CAST(abs({name}) * 1000000000000 AS HUGEINT)" for name in amounts}
    floors = ",\n        ".join(
        f"{units[name]} * CAST({weight} AS HUGEINT) // total_weight AS {name}_whole,\n"
        f"        {units[name]} * CAST({weight} AS HUGEINT) % total_weight AS {name}_rest,\n"
        f"        {units[name]} AS {name}_units"
        for name in amounts
    )
    ranks = ",\n        ".join(
        f"row_number() OVER (PARTITION BY {partition} ORDER BY {name}_rest DESC, {order}) AS {name}_rank,\n"
        f"        {name}_units - CAST(sum({name}_whole) OVER (PARTITION BY {partition}) AS HUGEINT) AS {name}_left"
        for name in amounts
    )
    parts = ",\n        ".join(
        f"CAST(sign({name}) * ({name}_whole + CASE WHEN {name}_rank <= {name}_left THEN 1 ELSE 0 END) AS DECIMAL(38,0))"
        f" * CAST('0.000000000001' AS DECIMAL(12,12)) AS {name}_part"
        for name in amounts
    )
    hidden = ", ".join(f"{name}_{part}" for name in amounts for part in ("whole", "rest", "units", "rank", "left"))
    return f"""
    WITH weighed AS (
        SELECT *, CAST(sum(CAST({weight} AS HUGEINT)) OVER (PARTITION BY {partition}) AS HUGEINT) AS total_weight FROM {source}
    ),
    floored AS (
        SELECT *, {floors} FROM weighed WHERE total_weight > 0
    ),
    ranked AS (
        SELECT *, {ranks} FROM floored
    ),
    parted AS (
        SELECT *, {parts} FROM ranked
    )
    SELECT * EXCLUDE ({hidden}, total_weight) FROM parted"""


def round_sql(
    source: str, *, group: tuple[str, ...], key: tuple[str, ...], amounts: tuple[str, ...], totals: bool
) -> str:
    """SELECT of `source` with `<amount>_6`: 12-place amounts rounded to 6 so that a group's parts sum to its total.

    With `totals` the group's total is column `<amount>_total` (already 6 places); else, or where that is null, it is the
    group's own sum, rounded half away from zero. Each row is cut towards minus infinity, and the millionths left over go to the largest
    remainders, ties by `key`. A null amount stays null and takes no part. (N4, top-down)
    """
    partition = ", ".join(group)
    order = ", ".join(key)
    million = "CAST(1000000 AS DECIMAL(18,0))"
    given = {name: f"CAST({name}_total * {million} AS DECIMAL(38,0))" if totals else "NULL" for name in amounts}
    floors = ",\n        ".join(
        f"CAST(floor({name} * {million}) AS DECIMAL(38,0)) AS {name}_floor,\n"
        f"        {name} * {million} - CAST(floor({name} * {million}) AS DECIMAL(38,0)) AS {name}_rest,\n"
        + f"        coalesce({given[name]}, CAST(round(sum({name}) OVER (PARTITION BY {partition}) * {million}, 0) AS DECIMAL(38,0)))"
        f" AS {name}_whole"
        for name in amounts
    )
    ranks = ",\n        ".join(
        f"row_number() OVER (PARTITION BY {partition} ORDER BY {name} IS NULL, {name}_rest DESC, {order}) AS {name}_rank,\n"
        f"        {name}_whole - sum({name}_floor) OVER (PARTITION BY {partition}) AS {name}_left"
        for name in amounts
    )
    rounded = ",\n        ".join(
        f"CAST(({name}_floor + CASE WHEN {name}_rank <= {name}_left THEN 1 ELSE 0 END) * CAST('0.000001' AS DECIMAL(6,6))"
        f" AS DECIMAL(18,6)) AS {name}_6"
        for name in amounts
    )
    hidden = ", ".join(f"{name}_{part}" for name in amounts for part in ("floor", "rest", "whole", "rank", "left"))
    return f"""
    WITH floored AS (
        SELECT *, {floors} FROM {source}
    ),
    ranked AS (
        SELECT *, {ranks} FROM floored
    ),
    done AS (
        SELECT *, {rounded} FROM ranked
    )
    SELECT * EXCLUDE ({hidden}) FROM done"""
