"""How a published parquet file looks: types, encodings, row groups, names. Power BI's readers set the limits.

Format: Snappy, V1 data pages, plain and dictionary encodings only, no statistics beyond the defaults, no bloom
filters; days as naive midnight timestamps, all times naive UTC microseconds, money as DECIMAL(18,6).
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from models.contracts import Table
from models.contracts.table import ARROW_TYPE, DUCKDB_TYPE

ROW_GROUP_ROWS = 500_000  # groups of an evenly split file then hold 250,000 to 500,000 rows
LARGEST_EXACT_INTEGER = 2**53 - 1
LONGEST_TEXT = 32_000
_PERIOD = re.compile(r"[0-9]{4}-(0[1-9]|1[0-2])")


class PublicationError(Exception):
    """What was to be published breaks a promise to readers. The message names table, column and rule."""


@dataclass(frozen=True)
class PublishedFile:
    """One parquet file; `path` is relative to the version folder, with forward slashes."""

    path: str
    rows: int
    bytes: int
    sha256: str

    def entry(self) -> dict[str, object]:
        return {"path": self.path, "rows": self.rows, "bytes": self.bytes, "sha256": self.sha256}


def published_schema(table: Table) -> pa.Schema:
    """The arrow schema of a table's files: the contract's, with days as midnight timestamps."""
    return pa.schema(
        [
            pa.field(c.name, pa.timestamp("us") if c.type == "date" else ARROW_TYPE[c.type], nullable=not c.required)
            for c in table.columns
        ]
    )


def write_table(
    con: duckdb.DuckDBPyConnection,
    table: Table,
    source: str,
    root: Path,
    parameters: Mapping[str, object] | None = None,
) -> list[PublishedFile]:
    """Write the rows of `source` (a table or a parenthesised SELECT) to `root/<table>/`, one file a month where dated.

    Rows are sorted by every column, so the same rows always give the same bytes. A table without rows gets one file
    with its schema and no rows.
    """
    folder = root / table.short_name
    folder.mkdir(parents=True)
    month = _month_of(table)
    bound = dict(parameters or {})
    if month is None:
        return [_write_file(con, table, source, folder / "part-0.parquet", bound)]
    months = con.sql(
        f"SELECT DISTINCT {month} AS month FROM {source} AS rows ORDER BY ALL", params=bound or None
    ).fetchall()
    files = []
    for (value,) in months:
        if value is None or not _PERIOD.fullmatch(value):
            raise PublicationError(f"{table.name}: {value!r} is not a month (YYYY-MM), so its rows have no file")
        part = f"(SELECT * FROM {source} AS rows WHERE {month} = $published_month)"
        files.append(_write_file(con, table, part, folder / f"{value}.parquet", {**bound, "published_month": value}))
    return files or [_write_file(con, table, source, folder / "part-0.parquet", bound)]


def _month_of(table: Table) -> str | None:
    """The SQL of the month that a row is filed under; None for tables that are one file."""
    if table.partition == "billing_period":
        return "billing_period"
    if table.short_name.startswith("fact_") and any(c.name == "date" for c in table.columns):
        return "strftime(\"date\", '%Y-%m')"
    return None


def _write_file(
    con: duckdb.DuckDBPyConnection, table: Table, source: str, path: Path, parameters: dict[str, object]
) -> PublishedFile:
    schema = published_schema(table)
    bound = parameters or None
    rows = con.sql(f"SELECT count(*) FROM {source} AS rows", params=bound).fetchall()[0][0]
    columns = ", ".join(f'{_published_cast(c.name, c.type)} AS "{c.name}"' for c in table.columns)
    ordered = con.sql(f"SELECT {columns} FROM {source} AS rows ORDER BY ALL", params=bound)
    with pq.ParquetWriter(
        path, schema, version="2.6", data_page_version="1.0", compression="snappy", use_dictionary=True,
        store_schema=False, store_decimal_as_integer=True, write_page_index=False,
    ) as writer:  # fmt: skip
        for group in _row_groups(ordered, schema, rows):
            _check_values(table, group)
            writer.write_table(group, row_group_size=group.num_rows)
    return PublishedFile(f"{table.short_name}/{path.name}", rows, path.stat().st_size, file_digest(path))


def _published_cast(name: str, kind: str) -> str:
    if kind == "date":
        return f'CAST(CAST("{name}" AS DATE) AS TIMESTAMP)'
    return f'CAST("{name}" AS {DUCKDB_TYPE[kind]})'


def row_group_size(rows: int) -> int:
    """Rows in each group when a file of `rows` is split evenly."""
    return math.ceil(rows / math.ceil(rows / ROW_GROUP_ROWS)) if rows else 1


def _row_groups(relation: duckdb.DuckDBPyRelation, schema: pa.Schema, rows: int) -> Iterator[pa.Table]:
    """The relation in equal groups of at most ROW_GROUP_ROWS."""
    size = row_group_size(rows)
    waiting: list[pa.RecordBatch] = []
    held = 0
    for batch in relation.to_arrow_reader(min(size, 100_000)):
        waiting.append(batch)
        held += batch.num_rows
        while held >= size:
            joined = pa.Table.from_batches(waiting)
            yield joined.slice(0, size).cast(schema).combine_chunks()
            waiting, held = joined.slice(size).to_batches(), held - size
    if held:
        yield pa.Table.from_batches(waiting).cast(schema).combine_chunks()


def _check_values(table: Table, group: pa.Table) -> None:
    """Values that a reader would refuse or silently change."""
    for column in table.columns:
        values = group[column.name]
        problem = None
        if column.type == "double" and pc.any(pc.invert(pc.is_finite(values))).as_py():
            problem = "holds NaN or infinity; unknown is null (N3)"
        elif column.type in ("int", "ns") and _beyond(values, -LARGEST_EXACT_INTEGER, LARGEST_EXACT_INTEGER):
            problem = "holds integers beyond 2^53, which readers round"
        elif column.type == "text" and _beyond(pc.utf8_length(values), 0, LONGEST_TEXT):
            problem = f"holds text of more than {LONGEST_TEXT} characters, which readers cut"
        elif column.type in ("date", "ts") and _beyond(pc.year(values), 1900, 9999):
            problem = "holds times outside the years 1900 to 9999"
        if problem:
            raise PublicationError(f"{table.name}.{column.name} {problem}")


def _beyond(values: pa.ChunkedArray, lowest: int, highest: int) -> bool:
    bounds = pc.min_max(values).as_py()
    return bounds["min"] is not None and (bounds["min"] < lowest or bounds["max"] > highest)


def file_digest(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
