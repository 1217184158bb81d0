"""The warehouse: one DuckDB file with the core and mart tables, and views of staging over the lake.

A write replaces its window in one transaction, so a kill leaves the old rows or the new ones. One process writes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from pathlib import Path

import duckdb
import polars as pl

from models.contracts import TABLES, Table

_PARAMETER = re.compile(r"\$([a-z_][a-z0-9_]*)")
_SQL_ROOT = Path(__file__).resolve().parent.parent / "sql"
MACROS = (
    # 52 bits of md5: the same key in every run, exact in a double, so that every reader can hold it
    "CREATE OR REPLACE MACRO stable_key(s) AS CAST(('0x' || substr(md5(s), 1, 13)) AS BIGINT)",
    "CREATE OR REPLACE MACRO ns_to_ts(ns) AS make_timestamp(CAST(ns // 1000 AS BIGINT))",
    "CREATE OR REPLACE MACRO ts_to_ns(t) AS epoch_us(t) * 1000",
    "CREATE OR REPLACE MACRO ns_hour(ns) AS make_timestamp(CAST(ns // 3600000000000 * 3600000000 AS BIGINT))",
    "CREATE OR REPLACE MACRO ns_date(ns) AS CAST(make_timestamp(CAST(ns // 86400000000000 * 86400000000 AS BIGINT)) AS DATE)",
)


class WarehouseError(Exception):
    """A model broke its contract. The message names table, rule and an example."""


@dataclass(frozen=True)
class Window:
    """Whole UTC days, half open (N1)."""

    from_date: date
    to_date: date

    def __post_init__(self) -> None:
        if self.to_date <= self.from_date:
            raise ValueError(f"an empty window: {self.from_date} to {self.to_date} (the end is exclusive)")

    @property
    def days(self) -> list[date]:
        return [self.from_date + timedelta(days=n) for n in range((self.to_date - self.from_date).days)]

    @property
    def from_ns(self) -> int:
        return _day_ns(self.from_date)

    @property
    def to_ns(self) -> int:
        return _day_ns(self.to_date)

    @property
    def periods(self) -> list[str]:
        return sorted({f"{day:%Y-%m}" for day in self.days})

    def parameters(self) -> dict[str, object]:
        """What SQL models may bind: `$from_date $to_date $from_ns $to_ns`."""
        return {"from_date": self.from_date, "to_date": self.to_date, "from_ns": self.from_ns, "to_ns": self.to_ns}


def _day_ns(day: date) -> int:
    return (day - date(1970, 1, 1)).days * 86_400_000_000_000


def load_sql(name: str) -> str:
    """The text of `models/sql/<schema>/<table>.sql` for `schema.table`."""
    schema, table = name.split(".")
    return (_SQL_ROOT / schema / f"{table}.sql").read_text(encoding="utf-8")


class Warehouse:
    """A DuckDB connection with the contract tables. `path=None` is in memory (tests)."""

    def __init__(
        self,
        path: Path | None = None,
        *,
        memory_limit: str | None = None,
        threads: int | None = None,
        read_only: bool = False,
    ) -> None:
        config: dict[str, str | bool | int | float | list[str]] = {}
        if memory_limit:
            config["memory_limit"] = memory_limit
        if threads:
            config["threads"] = str(threads)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            config["temp_directory"] = str(path.parent / "spill")
        self.con = duckdb.connect(str(path) if path else ":memory:", read_only=read_only, config=config)
        self.home = path.parent if path is not None else None  # landing and lake lie beside the warehouse
        self.con.execute("SET TimeZone = 'UTC'")
        if not read_only:
            for schema in ("staging", "core", "mart"):
                self.con.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
            for macro in MACROS:
                self.con.execute(macro)
            for table in TABLES.values():
                if table.schema != "staging":
                    self.con.execute(table.ddl())

    def close(self) -> None:
        self.con.close()

    def __enter__(self) -> Warehouse:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # --- staging -----------------------------------------------------------------------------------------------
    def stage_frames(self, frames: Mapping[str, pl.DataFrame] | None = None) -> None:
        """Create every staging table as a real, empty table and fill those given (tests, notebooks)."""
        for table in TABLES.values():
            if table.schema == "staging":
                self.con.execute(table.ddl())
        for name, frame in (frames or {}).items():
            self.append(name, frame)

    def stage_lake(self, files: Mapping[str, Sequence[Path]]) -> None:
        """Point the views `staging.<table>` at these parquet files; a table without files is an empty view."""
        for table in TABLES.values():
            if table.schema != "staging":
                continue
            paths = [str(path) for path in files.get(table.name, ())]
            if paths:
                listed = ", ".join("'" + path.replace("'", "''") + "'" for path in paths)
                source = f"SELECT {table.cast_list()} FROM read_parquet([{listed}], union_by_name => true)"
            else:
                nulls = ", ".join(
                    f'CAST(NULL AS {_duckdb_type(table, name)}) AS "{name}"' for name in table.column_names
                )
                source = f"SELECT {nulls} WHERE false"
            self.con.execute(f"CREATE OR REPLACE VIEW {table.name} AS {source}")

    # --- read --------------------------------------------------------------------------------------------------
    def query(self, sql: str, parameters: Mapping[str, object] | None = None) -> pl.DataFrame:
        """Run a SELECT; of `parameters` only those that the text names are bound."""
        bound = _bound(sql, parameters)
        return self.con.sql(sql, params=bound).pl() if bound else self.con.sql(sql).pl()

    def table(self, name: str) -> pl.DataFrame:
        return self.query(f"SELECT * FROM {_known(name).name}")

    def scratch_sql(self, name: str, select: str, parameters: Mapping[str, object] | None = None) -> None:
        """Keep a SELECT's rows as temp table `name` for the steps that follow; drop it with `drop_scratch`."""
        self.con.execute(f"CREATE OR REPLACE TEMP TABLE {name} AS {select}", _bound(select, parameters) or None)

    def scratch_frame(self, name: str, frame: pl.DataFrame) -> None:
        """`scratch_sql` from a frame."""
        self.con.register("incoming_rows", frame.to_arrow())
        try:
            self.con.execute(f"CREATE OR REPLACE TEMP TABLE {name} AS SELECT * FROM incoming_rows")
        finally:
            self.con.unregister("incoming_rows")

    def drop_scratch(self, *names: str) -> None:
        for name in names:
            self.con.execute(f"DROP TABLE IF EXISTS temp.{name}")

    # --- write -------------------------------------------------------------------------------------------------
    @contextmanager
    def transaction(self) -> Iterator[None]:
        self.con.execute("BEGIN")
        try:
            yield
        except BaseException:
            self.con.execute("ROLLBACK")
            raise
        self.con.execute("COMMIT")

    def append(self, name: str, frame: pl.DataFrame) -> None:
        """Add rows to a table; columns that the frame lacks become null, unknown ones are an error."""
        table = _known(name)
        unknown = set(frame.columns) - set(table.column_names)
        if unknown:
            raise WarehouseError(f"{name} has no column {', '.join(sorted(unknown))}")
        incoming = frame.to_arrow()
        self.con.register("incoming_rows", incoming)
        try:
            selected = ", ".join(
                f'CAST({_quoted(c.name) if c.name in frame.columns else "NULL"} AS {_duckdb_type(table, c.name)}) AS "{c.name}"'
                for c in table.columns
            )
            self.con.execute(f"INSERT INTO {name} SELECT {selected} FROM incoming_rows")
        finally:
            self.con.unregister("incoming_rows")

    def replace_sql(
        self,
        name: str,
        select: str,
        parameters: Mapping[str, object] | None = None,
        *,
        window: Window | None = None,
        periods: Iterable[str] | None = None,
    ) -> int:
        """Replace a table's window by a SELECT's rows, in one transaction, and check the contract. Returns rows written.

        Tables partitioned by `date` need `window`, by `billing_period` need `periods`; the rest are replaced whole.
        """
        table = _known(name)
        scratch = f'"new_{table.schema}_{table.short_name}"'
        self.con.execute(
            f"CREATE OR REPLACE TEMP TABLE {scratch} AS SELECT {table.cast_list()} FROM ({select}) AS model_rows",
            _bound(select, parameters) or None,
        )
        try:
            self._check(table, scratch, window, periods)
            where, bound = _partition_filter(table, window, periods)
            with self.transaction():
                self.con.execute(f"DELETE FROM {name} WHERE {where}", bound or None)
                written = self.con.execute(f"INSERT INTO {name} SELECT * FROM {scratch}").fetchall()
            return int(written[0][0]) if written else 0
        finally:
            self.con.execute(f"DROP TABLE IF EXISTS {scratch}")

    def replace(
        self, name: str, frame: pl.DataFrame, *, window: Window | None = None, periods: Iterable[str] | None = None
    ) -> int:
        """`replace_sql` from a frame (algorithms in Polars)."""
        missing = set(_known(name).column_names) - set(frame.columns)
        if missing:
            raise WarehouseError(f"rows for {name} lack {', '.join(sorted(missing))}")
        self.con.register("replacement_rows", frame.to_arrow())
        try:
            return self.replace_sql(name, "SELECT * FROM replacement_rows", window=window, periods=periods)
        finally:
            self.con.unregister("replacement_rows")

    def run_sql_model(
        self,
        name: str,
        parameters: Mapping[str, object],
        *,
        window: Window | None = None,
        periods: Iterable[str] | None = None,
    ) -> int:
        """Run `models/sql/<schema>/<table>.sql` into its table."""
        return self.replace_sql(name, load_sql(name), parameters, window=window, periods=periods)

    def _check(self, table: Table, scratch: str, window: Window | None, periods: Iterable[str] | None) -> None:
        required = [c.name for c in table.columns if c.required]
        if required:
            tests = ", ".join(f'count(*) FILTER (WHERE "{name}" IS NULL)' for name in required)
            counts = self.con.execute(f"SELECT {tests} FROM {scratch}").fetchall()[0]
            bad = [f"{name} ({count} rows)" for name, count in zip(required, counts, strict=True) if count]
            if bad:
                raise WarehouseError(f"{table.name}: null in {', '.join(bad)}")
        if table.key:
            keys = ", ".join(f'"{name}"' for name in table.key)
            twice = self.con.execute(
                f"SELECT {keys}, count(*) FROM {scratch} GROUP BY ALL HAVING count(*) > 1 LIMIT 1"
            ).fetchall()
            if twice:
                raise WarehouseError(f"{table.name}: the key ({keys}) is not unique, for example {twice[0]}")
        where, bound = _partition_filter(table, window, periods)
        outside = self.con.execute(f"SELECT count(*) FROM {scratch} WHERE NOT ({where})", bound or None).fetchall()[0][
            0
        ]
        if outside:
            raise WarehouseError(f"{table.name}: {outside} rows lie outside the window that is being replaced")


def _known(name: str) -> Table:
    if name not in TABLES:
        raise WarehouseError(f"no table {name} in the contracts")
    return TABLES[name]


def _quoted(name: str) -> str:
    return f'"{name}"'


def _duckdb_type(table: Table, column: str) -> str:
    from models.contracts.table import DUCKDB_TYPE

    return next(DUCKDB_TYPE[c.type] for c in table.columns if c.name == column)


def _bound(sql: str, parameters: Mapping[str, object] | None) -> dict[str, object]:
    named = set(_PARAMETER.findall(sql))
    return {name: value for name, value in (parameters or {}).items() if name in named}


def _partition_filter(
    table: Table, window: Window | None, periods: Iterable[str] | None
) -> tuple[str, dict[str, object]]:
    if table.partition is None:
        return "true", {}
    if table.partition == "billing_period":
        if periods is None:
            raise WarehouseError(f"{table.name} is replaced by billing period: name the periods")
        return "list_contains($periods, billing_period)", {"periods": list(periods)}
    if window is None:
        raise WarehouseError(f"{table.name} is replaced by day: name the window")
    return f'"{table.partition}" >= $from_date AND "{table.partition}" < $to_date', {
        "from_date": window.from_date,
        "to_date": window.to_date,
    }


def utc_ns(text: str) -> int:
    """`2026-11-23T10:00:00Z` (fraction up to nine digits) as nanoseconds since 1970."""
    stem, _, fraction = text.rstrip("Z").partition(".")
    seconds = int((datetime.fromisoformat(stem) - datetime(1970, 1, 1)).total_seconds())
    return seconds * 1_000_000_000 + (int(fraction.ljust(9, "0")) if fraction else 0)
