"""Publication: the mart as parquet with a manifest, a read-only DuckDB snapshot, and an archive of published weeks.

    <home>/published/v1/<table>/*.parquet      what readers rely on
    <home>/published/v1/manifest.json          schema version, revision, window, files with rows and sha256, weeks
    <home>/published/v1/analytics.duckdb       the same rows as DuckDB tables, for notebooks and the report
    <home>/published/archive/<week>/r<N>/      every published revision of a week (R2)

A publication is built aside and takes the place of the last one in one step (R3). What has been published is the
only memory: revisions and restatements are found by comparing the mart with the archive, never kept in the warehouse.
The drawing of reports does not belong here; `open_published` is how they read.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from types import TracebackType
from typing import Any

import duckdb
import polars as pl

from models.contracts import TABLES, Table
from models.engine.warehouse import Warehouse, Window
from reports.parquet import PublicationError, PublishedFile, file_digest, write_table
from reports.restatements import RESTATEMENT, latest_archived, restated_rows, week_digests
from reports.swap import Step, present_folder, recover_swap, remove_folder, swap_folders, sync_folder
from reports.weeks import Week, archived_rows

__all__ = ["PublicationError", "Published", "open_published", "publish", "read_published", "verify_published"]

SCHEMA_VERSION = 1
MANIFEST = "manifest.json"
SNAPSHOT = "analytics.duckdb"
READ_ATTEMPTS = 3
# The oldest storage format that holds what the mart holds, so that notebooks with an older DuckDB open the snapshot
SNAPSHOT_STORAGE = "v1.4.0"
Manifest = dict[str, Any]


def mart_tables() -> list[Table]:
    """The contracts that are published, by name."""
    return sorted((table for table in TABLES.values() if table.schema == "mart"), key=lambda table: table.name)


@dataclass(frozen=True)
class _Folders:
    published: Path

    @property
    def current(self) -> Path:
        return self.published / f"v{SCHEMA_VERSION}"

    @property
    def new(self) -> Path:
        return self.published / f".v{SCHEMA_VERSION}-next"

    @property
    def retired(self) -> Path:
        return self.published / f".v{SCHEMA_VERSION}-retired"

    @property
    def archive(self) -> Path:
        return self.published / "archive"

    @property
    def archive_new(self) -> Path:
        return self.published / ".archive-next"


def publish(
    warehouse: Warehouse, home: Path, now: datetime, window: Window, *, at_step: Step = lambda name: None
) -> Manifest:
    """Publish the whole mart under `home`; returns the manifest.

    `now` is stamped on what changed (aware, or naive UTC). The same mart and window as last time change nothing, and
    the manifest that stands is returned (N7). Raises PublicationError, and leaves the last publication as it is, when
    the ledger does not sum to the bill (N6) or a value can't be published. `at_step` is called between steps.
    """
    folders = _Folders(home / "published")
    folders.published.mkdir(parents=True, exist_ok=True)
    _refuse_unreconciled(warehouse)
    recover_swap(folders.new, folders.current, folders.retired)
    remove_folder(folders.archive_new)
    previous = _manifest_in(folders.current)
    if previous is not None:
        _archive_weeks(folders, previous, at_step)  # a kill may have come between the last swap and its archive
    at_step("recovered")

    folders.new.mkdir()
    manifest = _build(warehouse, folders, previous, _utc(now), window, at_step)
    if previous is not None and _content(previous) == _content(manifest):
        remove_folder(folders.new)
        return previous
    swap_folders(folders.new, folders.current, folders.retired, at_step)
    _archive_weeks(folders, manifest, at_step)
    at_step("archived")
    return manifest


def _refuse_unreconciled(warehouse: Warehouse) -> None:
    broken = warehouse.query(
        "SELECT billing_period, billing_account, currency, measure, difference FROM mart.fact_reconciliation"
        " WHERE difference IS DISTINCT FROM 0 ORDER BY ALL LIMIT 1"
    ).rows()
    if broken:
        period, account, currency, measure, difference = broken[0]
        raise PublicationError(
            f"the ledger differs from the bill by {_plain(difference)} {currency}"
            f" ({measure}, {period}, account {account}); nothing was published (N6)"
        )


def _build(
    warehouse: Warehouse, folders: _Folders, previous: Manifest | None, now: datetime, window: Window, at_step: Step
) -> Manifest:
    con = warehouse.con
    weeks = _weeks(con, folders, now)
    files: dict[str, list[PublishedFile]] = {}
    for table in mart_tables():
        if table.name == RESTATEMENT:
            con.register("restated_rows", restated_rows(con, folders.archive, weeks, now).to_arrow())
            try:
                files[table.short_name] = write_table(con, table, "restated_rows", folders.new)
            finally:
                con.unregister("restated_rows")
        else:
            files[table.short_name] = write_table(con, table, table.name, folders.new)
        at_step(f"wrote_{table.short_name}")
    manifest: Manifest = {
        "schema_version": SCHEMA_VERSION,
        "revision": 1,
        "generated_at_utc": _stamp(now),
        "window": {"from": window.from_date.isoformat(), "to": window.to_date.isoformat()},
        "tables": {
            table.short_name: {
                "grain": table.grain,
                "rows": sum(file.rows for file in files[table.short_name]),
                "files": [file.entry() for file in files[table.short_name]],
            }
            for table in mart_tables()
        },
        "weeks": {week.name: week.entry() for week in weeks.values()},
        "snapshot": SNAPSHOT,
    }
    if previous is not None:
        changed = previous["tables"] != manifest["tables"]
        manifest["revision"] = previous["revision"] + 1 if changed else previous["revision"]
    _write_snapshot(folders.new, manifest)
    at_step("wrote_snapshot")
    _write_json(folders.new / MANIFEST, manifest)
    for folder in [folders.new, *(folders.new / name for name in files)]:
        sync_folder(folder)
    at_step("wrote_manifest")
    return manifest


def _content(manifest: Manifest) -> Manifest:
    """What makes two publications the same: all but when they were made."""
    return {key: manifest[key] for key in ("schema_version", "window", "tables", "weeks")}


# --- weeks and their archive -----------------------------------------------------------------------------------
def _weeks(con: duckdb.DuckDBPyConnection, folders: _Folders, now: datetime) -> dict[str, Week]:
    """Each week of the mart with its revision: that of the archive while its numbers are the same, else the next."""
    weeks: dict[str, Week] = {}
    for name, (digest, days) in week_digests(con).items():
        last = latest_archived(folders.archive, name)
        if last is None:
            weeks[name] = Week(name, 1, digest, _stamp(now), days)
        elif last.digest == digest:
            weeks[name] = last
        else:
            weeks[name] = Week(name, last.revision + 1, digest, _stamp(now), days)
    return weeks


def _archive_weeks(folders: _Folders, manifest: Manifest, at_step: Step) -> None:
    """Keep the weeks of the publication that stands, where their revision is not kept yet."""
    for name, entry in sorted(manifest["weeks"].items()):
        week = Week.from_entry(name, entry)
        target = folders.archive / name / f"r{week.revision}"
        if target.exists():
            continue
        remove_folder(folders.archive_new)
        folders.archive_new.mkdir()
        _write_archive(folders, week, manifest)
        target.parent.mkdir(parents=True, exist_ok=True)
        at_step(f"before_archive_{name}")
        folders.archive_new.rename(target)
        sync_folder(target.parent)


def _write_archive(folders: _Folders, week: Week, manifest: Manifest) -> None:
    tables: dict[str, object] = {}
    with duckdb.connect() as con:
        for table in mart_tables():
            listed = manifest["tables"].get(table.short_name)
            if listed is None:  # the table is younger than this publication
                continue
            select, parameters = archived_rows(table, week, _file_list(folders.current, listed))
            files = write_table(con, table, select, folders.archive_new, parameters)
            tables[table.short_name] = [file.entry() for file in files]
    _write_json(
        folders.archive_new / MANIFEST, {"schema_version": SCHEMA_VERSION, "week": week.entry(), "tables": tables}
    )
    for folder in [folders.archive_new, *(folders.archive_new / name for name in tables)]:
        sync_folder(folder)


# --- the snapshot ----------------------------------------------------------------------------------------------
def _write_snapshot(root: Path, manifest: Manifest) -> None:
    """`analytics.duckdb` from the parquet files just written, so that the two can't disagree (R4)."""
    path = root / SNAPSHOT
    with duckdb.connect() as con:
        con.execute(f"ATTACH {_literal(str(path))} AS snapshot (STORAGE_VERSION '{SNAPSHOT_STORAGE}')")
        con.execute("CREATE SCHEMA snapshot.mart")
        con.execute("CREATE SCHEMA snapshot.publication")
        for table in mart_tables():
            files = _file_list(root, manifest["tables"][table.short_name])
            con.execute(f"CREATE TABLE snapshot.mart.{table.short_name} AS SELECT {table.cast_list()} FROM {files}")
        con.execute("CREATE TABLE snapshot.publication.manifest AS SELECT $text AS manifest", {"text": _json(manifest)})
        con.execute("CREATE TABLE snapshot.publication.week (week VARCHAR, revision BIGINT, published_utc TIMESTAMP)")
        for name, entry in sorted(manifest["weeks"].items()):
            published = datetime.fromisoformat(entry["published_utc"]).replace(tzinfo=None)
            con.execute("INSERT INTO snapshot.publication.week VALUES (?, ?, ?)", [name, entry["revision"], published])
        con.execute("DETACH snapshot")
    path.chmod(0o444)


def _file_list(root: Path, listed: Manifest) -> str:
    """`read_parquet([...])` over a manifest's files of one table."""
    paths = ", ".join(_literal(str(root / _inside(entry["path"]))) for entry in listed["files"])
    return f"read_parquet([{paths}])"


# --- reading ---------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Published:
    """The publication that stood when it was opened: a read-only connection (`mart.<table>`) and its manifest.

    It stays as it is while newer ones are published. Use it as a context manager, or call `close`.
    """

    connection: duckdb.DuckDBPyConnection
    manifest: Manifest

    def query(self, sql: str, parameters: dict[str, object] | None = None) -> pl.DataFrame:
        return self.connection.sql(sql, params=parameters or None).pl()

    def table(self, name: str) -> pl.DataFrame:
        """One published table by its short name, such as `fact_gpu_hours`."""
        if f"mart.{name}" not in TABLES:
            raise KeyError(f"no published table {name!r}")
        return self.query(f"SELECT * FROM mart.{name}")

    def close(self) -> None:
        self.connection.close()

    def __enter__(self) -> Published:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_published(home: Path) -> Published:
    """Open the published snapshot under `home`, read-only. Raises FileNotFoundError when nothing is published."""
    folders = _Folders(home / "published")
    for _ in range(READ_ATTEMPTS):
        path = present_folder(folders.current, folders.retired) / SNAPSHOT
        try:
            connection = _attach(path)
        except duckdb.IOException:
            if path.exists():
                raise
            continue  # a publication took place between the look and the opening
        text = connection.sql("SELECT manifest FROM publication.manifest").fetchall()[0][0]
        return Published(connection, json.loads(text))
    raise FileNotFoundError(f"nothing is published under {home}: run `zoneledger run` or `zoneledger demo` first")


def _attach(path: Path) -> duckdb.DuckDBPyConnection:
    """A connection of its own to the file at `path` now: one by path would be shared, and stale after a swap."""
    connection = duckdb.connect()
    try:
        connection.execute(f"ATTACH {_literal(str(path))} AS published (READ_ONLY)")
        connection.execute("USE published")
        connection.execute("SET TimeZone = 'UTC'")
    except duckdb.Error:
        connection.close()
        raise
    return connection


def read_published(home: Path, tables: list[str]) -> dict[str, pl.DataFrame]:
    """Tables from the parquet files, all of one publication: every file must match the manifest that was read first.

    A publication that takes place meanwhile makes the read start again, READ_ATTEMPTS times at most.
    """
    folders = _Folders(home / "published")
    for _ in range(READ_ATTEMPTS):
        root = present_folder(folders.current, folders.retired)
        try:
            manifest = _read_json(root / MANIFEST)
            return {name: _read_verified(root, manifest, name) for name in tables}
        except (FileNotFoundError, _ChangedMeanwhileError):
            continue
    raise PublicationError(f"the files under {folders.current} do not match their manifest: {verify_published(home)}")


class _ChangedMeanwhileError(Exception):
    """A file is not the one that the manifest lists."""


def _read_verified(root: Path, manifest: Manifest, name: str) -> pl.DataFrame:
    parts = []
    for entry in manifest["tables"][name]["files"]:
        content = (root / _inside(entry["path"])).read_bytes()
        if hashlib.sha256(content).hexdigest() != entry["sha256"]:
            raise _ChangedMeanwhileError(entry["path"])
        parts.append(pl.read_parquet(content))
    return pl.concat(parts)


def verify_published(home: Path) -> list[str]:
    """What is wrong with the published files, one sentence each; empty when every file matches the manifest."""
    folders = _Folders(home / "published")
    root = present_folder(folders.current, folders.retired)
    manifest = _manifest_in(root)
    if manifest is None:
        return [f"{root} has no {MANIFEST}"]
    listed = {entry["path"]: entry for table in manifest["tables"].values() for entry in table["files"]}
    problems = []
    for relative, entry in sorted(listed.items()):
        path = root / _inside(relative)
        if not path.is_file():
            problems.append(f"{relative} is missing")
        elif file_digest(path) != entry["sha256"]:
            problems.append(f"{relative} is not the file that was published")
    stray = {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()} - set(listed)
    problems += [f"{name} is not in the manifest" for name in sorted(stray - {MANIFEST, SNAPSHOT})]
    return problems


# --- small things ----------------------------------------------------------------------------------------------
def _plain(amount: Decimal | None) -> str:
    return "an unknown amount of" if amount is None else f"{amount:f}"


def _manifest_in(folder: Path) -> Manifest | None:
    return _read_json(folder / MANIFEST) if folder.exists() else None


def _read_json(path: Path) -> Manifest:
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise PublicationError(f"{path} can't be read ({error}); move its folder away to publish afresh") from error
    if not isinstance(read, dict):
        raise PublicationError(f"{path} is not a manifest; move its folder away to publish afresh")
    return read


def _write_json(path: Path, content: Manifest) -> None:
    path.write_text(_json(content), encoding="utf-8")


def _json(content: Manifest) -> str:
    return json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _inside(relative: str) -> Path:
    """A manifest's path, refused if it would leave its folder."""
    path = Path(relative)
    if path.is_absolute() or ".." in path.parts or "\\" in relative:
        raise PublicationError(f"a manifest names the path {relative!r}, which leaves its folder")
    return path


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _utc(now: datetime) -> datetime:
    return now.astimezone(UTC).replace(tzinfo=None) if now.tzinfo else now


def _stamp(now: datetime) -> str:
    return now.replace(microsecond=0).isoformat() + "Z"


def published_days(manifest: Manifest) -> list[date]:
    """Every day whose numbers the publication holds."""
    return sorted(date.fromisoformat(day) for entry in manifest["weeks"].values() for day in entry["days"])
