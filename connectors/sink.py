"""Where connectors put what they read: parquet files of the lake, rejected rows, and counts that close.

One batch (usually one object; a bill's delivery is one batch of several) is committed by one rename of its load
record, written last: a kill in the middle leaves data files that no load record names, and they are ignored.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq

from connectors.objects import LandedObject
from models.contracts import TABLES, Table

MAX_RAW = 2000
DELIVERIES = ".deliveries"  # in landing, beside a folder for each source
# event-time column of each staging table, for the pruning of files by window
TIME_COLUMN = {
    "staging.hubble_flow": "time_ns",
    "staging.hubble_control": "time_ns",
    "staging.vpc_flow": "start_ns",
    "staging.vpc_gap": "start_ns",
    "staging.gpu_sample": "time_ns",
    "staging.pod_observation": "observed_ns",
    "staging.node_observation": "observed_ns",
    "staging.workload_observation": "observed_ns",
    "staging.service_observation": "observed_ns",
    "staging.policy_observation": "observed_ns",
    "staging.snapshot": "observed_ns",
}


@dataclass
class Counts:
    """What became of an object's records, for one table: read = kept + rejected + duplicate + control."""

    read: int = 0
    kept: int = 0
    rejected: int = 0
    duplicate: int = 0
    control: int = 0

    def close(self) -> bool:
        return self.read == self.kept + self.rejected + self.duplicate + self.control


@dataclass
class Batch:
    """Collects one batch. Create it through `Lake.batch`, fill it, then `commit`."""

    lake: Lake
    objects: tuple[LandedObject, ...]
    counts: dict[tuple[str, str], Counts] = field(default_factory=dict)
    warnings: dict[str, str] = field(default_factory=dict)
    _rejected: list[dict[str, object]] = field(default_factory=list)
    _rejected_frames: list[pl.DataFrame] = field(default_factory=list)
    _files: dict[tuple[str, str], Path] = field(default_factory=dict)

    def count(self, landed: LandedObject, table: str) -> Counts:
        return self.counts.setdefault((landed.object_id, table), Counts())

    def write(self, landed: LandedObject, table: str, frame: pl.DataFrame) -> None:
        """Keep a frame (whole, once for each object and table) in contract order and types; counts `kept`."""
        contract = TABLES[table]
        ordered = frame.select([pl.col(c).cast(t) for c, t in contract.polars_schema().items()])
        self.count(landed, table).kept += ordered.height
        if ordered.height:
            target = self.scratch(landed, table)
            ordered.write_parquet(target, compression="zstd")

    def scratch(self, landed: LandedObject, table: str) -> Path:
        """The file to write parquet of `table` to (for DuckDB's COPY); it becomes visible at `commit`.

        Whoever writes it adds to `count(...).kept`. A file without rows must not be left: call `discard`.
        """
        target = self.lake.data_file(landed.object_id, table)
        target.parent.mkdir(parents=True, exist_ok=True)
        self._files[(landed.object_id, table)] = target
        return target

    def discard(self, landed: LandedObject, table: str) -> None:
        self._files.pop((landed.object_id, table)).unlink(missing_ok=True)

    def reject(
        self,
        landed: LandedObject,
        table: str,
        line_number: int | None,
        reason: str,
        raw: str,
        *,
        cost_readable: bool | None = None,
    ) -> None:
        """Keep one unreadable record with where and why; counts `rejected`."""
        self.count(landed, table).rejected += 1
        self._rejected.append(
            {
                "object_id": landed.object_id,
                "table_name": table,
                "line_number": line_number,
                "reason": reason,
                "raw": raw[:MAX_RAW],
                "cost_readable": cost_readable,
            }
        )

    def reject_frame(self, landed: LandedObject, table: str, frame: pl.DataFrame) -> None:
        """Many at once: columns line_number, reason, raw."""
        self.count(landed, table).rejected += frame.height
        self._rejected_frames.append(
            frame.select(
                pl.lit(landed.object_id).alias("object_id"),
                pl.lit(table).alias("table_name"),
                pl.col("line_number").cast(pl.Int64),
                pl.col("reason").cast(pl.String),
                pl.col("raw").cast(pl.String).str.slice(0, MAX_RAW),
                pl.lit(None, dtype=pl.Boolean).alias("cost_readable"),
            )
        )

    def warn(self, landed: LandedObject, text: str) -> None:
        self.warnings[landed.object_id] = "; ".join(filter(None, (self.warnings.get(landed.object_id), text)))

    def commit(self) -> list[dict[str, object]]:
        """Make the batch visible; returns its load rows. Counts that do not close are a defect and raise."""
        now = datetime.now(UTC).replace(tzinfo=None)
        rows: list[dict[str, object]] = []
        by_id = {landed.object_id: landed for landed in self.objects}
        for (object_id, table), counts in sorted(self.counts.items()):
            landed = by_id[object_id]
            if not counts.close():
                raise AssertionError(f"counts of {landed.location} for {table} do not close: {counts}")
            file = self._files.get((object_id, table))
            low, high = _time_range(file, TABLES[table]) if file else (None, None)
            rows.append(
                {
                    "object_id": object_id,
                    "source": landed.source.name,
                    "kind": landed.source.kind,
                    "cluster": landed.source.cluster,
                    "location": landed.location,
                    "digest": landed.digest,
                    "size_bytes": landed.size_bytes,
                    "table_name": table,
                    "lake_file": file.relative_to(self.lake.root).as_posix() if file else None,
                    "rows_read": counts.read,
                    "rows_kept": counts.kept,
                    "rows_rejected": counts.rejected,
                    "rows_duplicate": counts.duplicate,
                    "rows_control": counts.control,
                    "min_time_utc": low,
                    "max_time_utc": high,
                    "loaded_utc": now,
                    "warning": self.warnings.get(object_id),
                }
            )
        rejected = pl.concat([TABLES["staging.rejected_row"].frame(self._rejected), *self._rejected_frames])
        name = (
            self.objects[0].object_id if len(self.objects) == 1 else f"{self.objects[0].object_id}-{len(self.objects)}"
        )
        if rejected.height:
            _write_whole(rejected, self.lake.root / "rejected_row" / f"{name}.parquet")
        _write_whole(TABLES["staging.load"].frame(rows), self.lake.root / "load" / f"{name}.parquet")
        return rows


@dataclass(frozen=True)
class Lake:
    """The parquet lake below `root`. `staging.load` is the union of `load/*.parquet`: what is not in it does not exist."""

    root: Path

    def batch(self, *objects: LandedObject) -> Batch:
        return Batch(self, objects)

    def data_file(self, object_id: str, table: str) -> Path:
        return self.root / table.split(".")[1] / f"{object_id}.parquet"

    def loads(self) -> pl.DataFrame:
        """All load rows so far (empty frame of the contract when nothing is loaded)."""
        files = sorted((self.root / "load").glob("*.parquet"))
        if not files:
            return TABLES["staging.load"].empty()
        return pl.read_parquet(files)

    def held_files(self, table: str, *, from_utc: datetime | None = None, to_utc: datetime | None = None) -> list[Path]:
        """Lake files of a table whose event times touch [from, to)."""
        loads = self.loads().filter((pl.col("table_name") == table) & pl.col("lake_file").is_not_null())
        if from_utc is not None:
            loads = loads.filter(pl.col("max_time_utc").is_null() | (pl.col("max_time_utc") >= from_utc))
        if to_utc is not None:
            loads = loads.filter(pl.col("min_time_utc").is_null() | (pl.col("min_time_utc") < to_utc))
        return [self.root / name for name in loads["lake_file"].unique().sort()]

    def rejected_files(self) -> list[Path]:
        return sorted((self.root / "rejected_row").glob("*.parquet"))

    def load_files(self) -> list[Path]:
        return sorted((self.root / "load").glob("*.parquet"))


def keep_as_received(lake: Lake, landed: LandedObject) -> Path:
    """Copy a bill's object to landing, immutable: the independent total is computed from it (N6)."""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", landed.location.rsplit("/", 1)[-1])
    folder = re.sub(r"[^A-Za-z0-9._-]", "_", landed.source.name)
    target = lake.root.parent / "landing" / folder / f"{landed.object_id}-{name}"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_suffix(".partial")
        shutil.copyfile(landed.path, partial)
        partial.rename(target)
    return target


def keep_delivery(lake: Lake, source: str, record: Mapping[str, object]) -> Path:
    """Note in landing which received objects are one delivery. `record` has `objects`, a list of object ids of the source."""
    folder = re.sub(r"[^A-Za-z0-9._-]", "_", source)
    text = json.dumps({**record, "folder": folder}, indent=1, sort_keys=True)
    target = lake.root.parent / "landing" / DELIVERIES / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_suffix(".partial")
    partial.write_text(text, encoding="utf-8")
    partial.rename(target)
    return target


def _write_whole(frame: pl.DataFrame, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_suffix(f".partial-{os.getpid()}")
    frame.write_parquet(partial, compression="zstd")
    with partial.open("rb+") as handle:
        os.fsync(handle.fileno())
    partial.rename(target)


def _time_range(file: Path, table: Table) -> tuple[datetime | None, datetime | None]:
    """Earliest and latest event time of a lake file, from its footer or, without statistics, from its column."""
    column = TIME_COLUMN.get(table.name)
    if column is None:
        return None, None
    metadata = pq.read_metadata(file)
    index = metadata.schema.names.index(column)
    groups: Iterable[int] = range(metadata.num_row_groups)
    statistics = [metadata.row_group(group).column(index).statistics for group in groups]
    if all(s is not None and s.has_min_max for s in statistics) and statistics:
        low, high = min(s.min for s in statistics), max(s.max for s in statistics)
    else:
        low, high = pl.read_parquet(file, columns=[column]).select(pl.min(column), pl.max(column).alias("high")).row(0)
    if low is None:
        return None, None
    return _from_ns(low), _from_ns(high)


def _from_ns(ns: int) -> datetime:
    return datetime.fromtimestamp(ns // 1_000_000_000, UTC).replace(tzinfo=None, microsecond=ns % 1_000_000_000 // 1000)
