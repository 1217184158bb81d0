"""The form of a table contract, and what is derived from it: DDL, Polars schema, Arrow schema, cast list."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

import polars as pl
import pyarrow as pa

# The closed list of column types. `money18` is staging money, `money` the ledger's, `published` what readers get.
DUCKDB_TYPE = {
    "text": "VARCHAR",
    "int": "BIGINT",
    "double": "DOUBLE",
    "bool": "BOOLEAN",
    "date": "DATE",
    "ts": "TIMESTAMP",
    "ns": "BIGINT",
    "money18": "DECIMAL(38,18)",
    "money": "DECIMAL(38,12)",
    "published": "DECIMAL(18,6)",
}
POLARS_TYPE: dict[str, pl.DataType | type[pl.DataType]] = {
    "text": pl.String,
    "int": pl.Int64,
    "double": pl.Float64,
    "bool": pl.Boolean,
    "date": pl.Date,
    "ts": pl.Datetime("us"),
    "ns": pl.Int64,
    "money18": pl.Decimal(38, 18),
    "money": pl.Decimal(38, 12),
    "published": pl.Decimal(18, 6),
}
ARROW_TYPE = {
    "text": pa.string(),
    "int": pa.int64(),
    "double": pa.float64(),
    "bool": pa.bool_(),
    "date": pa.date32(),
    "ts": pa.timestamp("us"),
    "ns": pa.int64(),
    "money18": pa.decimal128(38, 18),
    "money": pa.decimal128(38, 12),
    "published": pa.decimal128(18, 6),
}
_LINE = re.compile(r"^(?P<name>[a-z][a-z0-9_]*)(?P<required>!?) (?P<type>[a-z0-9]+)(?: +-- *(?P<meaning>.*))?$")


@dataclass(frozen=True)
class Column:
    """One column: `type` is a key of `DUCKDB_TYPE`; `required` columns hold no null."""

    name: str
    type: str
    meaning: str
    required: bool = False


@dataclass(frozen=True)
class Table:
    """A table's contract.

    `partition` names the column whose days (type date) or billing periods (type text) a run replaces;
    None means that the whole table is replaced. `key` is unique and not null where it is given.
    """

    name: str
    grain: str
    columns: tuple[Column, ...]
    key: tuple[str, ...] = ()
    partition: str | None = None

    @property
    def schema(self) -> str:
        return self.name.split(".")[0]

    @property
    def short_name(self) -> str:
        return self.name.split(".")[1]

    @cached_property
    def column_names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    def ddl(self) -> str:
        """`CREATE TABLE IF NOT EXISTS` in DuckDB's dialect."""
        lines = [f'  "{c.name}" {DUCKDB_TYPE[c.type]}{" NOT NULL" if c.required else ""}' for c in self.columns]
        return f"CREATE TABLE IF NOT EXISTS {self.name} (\n" + ",\n".join(lines) + "\n)"

    def polars_schema(self) -> dict[str, pl.DataType | type[pl.DataType]]:
        return {c.name: POLARS_TYPE[c.type] for c in self.columns}

    def arrow_schema(self) -> pa.Schema:
        return pa.schema([pa.field(c.name, ARROW_TYPE[c.type], nullable=not c.required) for c in self.columns])

    def cast_list(self) -> str:
        """The select list that orders and casts a query's columns to this contract."""
        return ", ".join(f'CAST("{c.name}" AS {DUCKDB_TYPE[c.type]}) AS "{c.name}"' for c in self.columns)

    def empty(self) -> pl.DataFrame:
        return pl.DataFrame(schema=self.polars_schema())

    def frame(self, rows: list[dict[str, object]]) -> pl.DataFrame:
        """Rows (absent columns become null) as a frame of exactly this contract; an unknown column is an error."""
        unknown = {name for row in rows for name in row} - set(self.column_names)
        if unknown:
            raise KeyError(f"{self.name} has no column {', '.join(sorted(unknown))}")
        complete = [{name: row.get(name) for name in self.column_names} for row in rows]
        return pl.DataFrame(complete, schema=self.polars_schema(), orient="row")


def columns(text: str) -> tuple[Column, ...]:
    """Parse `name[!] type -- meaning` lines; `!` marks a column that holds no null."""
    parsed = []
    for line in text.strip().splitlines():
        match = _LINE.match(line.strip())
        if match is None or match["type"] not in DUCKDB_TYPE:
            raise ValueError(f"not a column line: {line.strip()!r}")
        parsed.append(Column(match["name"], match["type"], match["meaning"] or "", bool(match["required"])))
    return tuple(parsed)
