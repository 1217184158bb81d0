"""What a published parquet footer may hold: an implementation of the rules apart from the writer's.

`violations(path)` reads the file alone; `differences(path, table)` compares it with a contract.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq

from models.contracts import Table

SAFE_ENCODINGS = {"PLAIN", "PLAIN_DICTIONARY", "RLE_DICTIONARY", "RLE"}
# The one promise of 12 decimals: totals that must be equal to the last digit of the ledger
WIDE_DECIMALS = {"fact_reconciliation"}
EXPECTED = {
    "text": ("BYTE_ARRAY", "String"),
    "int": ("INT64", "None"),
    "double": ("DOUBLE", "None"),
    "bool": ("BOOLEAN", "None"),
    "date": ("INT64", "Timestamp(isAdjustedToUTC=false, timeUnit=microseconds"),
    "ts": ("INT64", "Timestamp(isAdjustedToUTC=false, timeUnit=microseconds"),
    "published": ("INT64", "Decimal(precision=18, scale=6)"),
    "money": ("FIXED_LEN_BYTE_ARRAY", "Decimal(precision=38, scale=12)"),
}


def violations(path: Path, *, wide_decimals: bool = False) -> set[tuple[str, str]]:
    """(column, rule) for each broken rule; the column is `*` where the rule is about the file."""
    metadata = pq.ParquetFile(path).metadata
    found = set()
    for index in range(metadata.num_columns):
        column = metadata.schema.column(index)
        kind = str(column.logical_type)
        name = column.path
        rules = {
            "repeated": column.max_repetition_level > 0,
            "nested": "." in name,
            "unsigned": kind.startswith("Int(") and "isSigned=false" in kind,
            "narrow integer": kind.startswith("Int(") and "isSigned=true" in kind and "bitWidth=64" not in kind,
            "nanoseconds": "nanoseconds" in kind,
            "milliseconds": kind.startswith("Timestamp") and "milliseconds" in kind,
            "null type": kind == "Null",
            "time of day": kind.startswith("Time("),
            "day without time": kind == "Date",
            "not for readers": kind in ("UUID", "JSON", "BSON", "Interval") or "Float16" in kind,
            "wide decimal": kind.startswith("Decimal") and _precision(kind) > 18 and not wide_decimals,
            "zoned timestamp": "isAdjustedToUTC=true" in kind,
            "INT96": column.physical_type == "INT96",
            "untyped binary": column.physical_type in ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY") and kind == "None",
        }
        found |= {(name, rule) for rule, broken in rules.items() if broken}
        for group in range(metadata.num_row_groups):
            chunk = metadata.row_group(group).column(index)
            if set(chunk.encodings) - SAFE_ENCODINGS:
                found.add((name, "encoding"))
            if column.physical_type == "BOOLEAN" and "PLAIN" not in chunk.encodings:
                found.add((name, "boolean RLE"))
            if chunk.compression != "SNAPPY":
                found.add((name, "compression"))
    sizes = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    if any(size > 1_000_000 for size in sizes) or (len(sizes) > 1 and min(sizes) < 50_000):
        found.add(("*", "row groups"))
    return found


def differences(path: Path, table: Table) -> list[str]:
    """Where the footer is not the contract: names, order, physical and logical types, nullability."""
    schema = pq.ParquetFile(path).metadata.schema
    columns = [schema.column(index) for index in range(len(schema))]
    if [column.path for column in columns] != list(table.column_names):
        return [f"columns {[column.path for column in columns]}"]
    wrong = []
    for column, declared in zip(columns, table.columns, strict=True):
        physical, logical = EXPECTED[declared.type]
        if column.physical_type != physical or not str(column.logical_type).startswith(logical):
            wrong.append(f"{declared.name} is {column.physical_type} {column.logical_type}")
        if (column.max_definition_level == 0) != declared.required:
            wrong.append(f"{declared.name} nullability")
    return wrong


def _precision(kind: str) -> int:
    return int(kind.split("precision=")[1].split(",")[0])
