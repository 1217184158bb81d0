"""GPU activity as a plain CSV: one row a time and pod address, as public traces have it.

Options of the source name the columns: `time_column` (RFC 3339, or seconds or milliseconds since 1970), `gpu_column`
(also the pod unless `pod_column` is given), `value_column` (0 to 100), and where they exist `memory_column` (bytes),
`node_column`, `namespace_column`. Without options the columns are told by their usual names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import polars as pl

from connectors.documents import MAX_TIME_NS, READ_ERRORS
from connectors.objects import LandedObject, Source, list_objects, open_bytes
from connectors.sink import Batch, Lake
from models.contracts import TABLES

SAMPLE = "staging.gpu_sample"
MIB = 1 << 20
# option -> usual names of the column
COLUMNS: dict[str, tuple[str, ...]] = {
    "time_column": ("timestamp", "timestamp_anon", "time"),
    "gpu_column": ("gpu_uuid", "uuid", "container_ip"),
    "value_column": ("gpu_duty_cycle_pct", "gpu_util", "gpu_utilization"),
    "memory_column": ("gpu_mem_used_bytes",),
    "pod_column": ("pod", "pod_name", "container_ip"),
    "node_column": ("node", "node_name"),
    "namespace_column": ("namespace",),
}
_NEEDED = ("time_column", "gpu_column", "value_column")
_OPTIONAL = ("pod_column", "node_column", "namespace_column")


def stage(source: Source, lake: Lake, progress: Callable[[str], None]) -> None:
    """Stage every new file of the source; a bad one is kept aside with its reason and does not stop the others."""
    known = set(lake.loads()["object_id"])
    fresh = [landed for landed in list_objects(source) if landed.object_id not in known]
    for landed in fresh:
        batch = lake.batch(landed)
        stage_object(landed, batch)
        batch.commit()
    if fresh:
        progress(f"{source.name}: {len(fresh)} new files of GPU activity")


def stage_object(landed: LandedObject, batch: Batch) -> None:
    """Parse one file into the batch."""
    counts = batch.count(landed, SAMPLE)
    try:
        with open_bytes(landed.path) as handle:
            raw = pl.read_csv(handle.read(), infer_schema=False, encoding="utf8-lossy", truncate_ragged_lines=False)
    except (*READ_ERRORS, pl.exceptions.PolarsError) as error:
        counts.read += 1
        batch.reject(landed, SAMPLE, None, f"bad_csv: {str(error).splitlines()[0][:300]}", "")
        return
    names = _columns(landed, raw.columns)
    missing = [option for option in _NEEDED if names[option] is None]
    if missing:
        counts.read += 1
        header = ",".join(raw.columns)
        batch.reject(landed, SAMPLE, 1, f"bad_csv: no column for {', '.join(missing)}: name it in the source", header)
        return
    typed = _typed(raw.with_row_index("line_number", offset=2), names)
    rejected = typed.filter(pl.col("reason").is_not_null())
    counts.read += typed.height
    if rejected.height:
        batch.reject_frame(landed, SAMPLE, rejected.select("line_number", "reason", "raw"))
    good = typed.filter(pl.col("reason").is_null())
    counts.control += good.filter(pl.col("value").is_null()).height
    good = good.filter(pl.col("value").is_not_null())
    rows = good.unique(["time_ns", "gpu_uuid", "pod", "value"], maintain_order=True)
    counts.duplicate += good.height - rows.height
    memory = rows.filter(pl.col("memory_mib").is_not_null())
    counts.read += memory.height  # a second sample of the same line
    frame = pl.concat(
        [
            rows.with_columns(pl.lit("gpu_util").alias("metric")),
            memory.with_columns(pl.lit("memory_used_mib").alias("metric"), pl.col("memory_mib").alias("value")),
        ]
    ).with_columns(
        pl.lit(landed.object_id).alias("object_id"), pl.lit(landed.source.cluster or "default").alias("cluster")
    )
    contract = TABLES[SAMPLE]
    absent = [pl.lit(None, pl.String).alias(c) for c in contract.column_names if c not in frame.columns]
    batch.write(landed, SAMPLE, frame.with_columns(absent).sort("time_ns", "gpu_uuid", "metric"))


def _columns(landed: LandedObject, present: Iterable[str]) -> dict[str, str | None]:
    """Option -> column of the file: the configured one, else the first usual name that exists."""
    there = set(present)
    named = {option: landed.source.options.get(option) for option in COLUMNS}
    return {
        option: next((str(name) for name in ([named[option]] if named[option] else usual) if name in there), None)
        for option, usual in COLUMNS.items()
    }


def _typed(raw: pl.DataFrame, names: dict[str, str | None]) -> pl.DataFrame:
    """line_number, time_ns, gpu_uuid, pod, node_name, namespace, value, memory_mib, reason, raw."""
    time, gpu, value = (str(names[option]) for option in _NEEDED)

    def text(option: str) -> pl.Expr:
        column = names[option]
        return pl.lit(None, pl.String) if column is None else pl.col(column).replace("", None)

    number = pl.col(time).cast(pl.Float64, strict=False)
    seconds = pl.when(number.abs() >= 1e11).then(number / 1000).otherwise(number)
    written = pl.col(time).str.to_datetime(time_unit="us", time_zone="UTC", strict=False).dt.timestamp("us") * 1000
    memory = text("memory_column").cast(pl.Float64, strict=False)
    blank = pl.col(value).is_null() | pl.col(value).str.to_lowercase().is_in(["", "nan", "na", "null"])
    return raw.select(
        pl.col("line_number").cast(pl.Int64),
        pl.when(number.is_not_null() & (seconds.abs() < MAX_TIME_NS / 1e9))
        .then((seconds * 1000).round().cast(pl.Int64, strict=False) * 1_000_000)
        .otherwise(written)
        .alias("time_ns"),
        pl.col(gpu).replace("", None).alias("gpu_uuid"),
        pl.coalesce(text("pod_column"), pl.col(gpu)).alias("pod"),
        text("node_column").alias("node_name"),
        text("namespace_column").alias("namespace"),
        pl.when(~blank).then(pl.col(value).cast(pl.Float64, strict=False)).alias("value"),
        pl.when(memory >= 0).then(memory / MIB).alias("memory_mib"),
        blank.alias("blank"),
        pl.concat_str(pl.all().exclude("line_number"), separator=",", ignore_nulls=False).alias("raw"),
    ).with_columns(
        pl.when(pl.col("time_ns").is_null() | ~pl.col("time_ns").is_between(0, MAX_TIME_NS))
        .then(pl.lit("bad_value: the time is no time"))
        .when(pl.col("gpu_uuid").is_null())
        .then(pl.lit("bad_value: the GPU is missing"))
        .when(~pl.col("blank") & (pl.col("value").is_null() | ~pl.col("value").is_between(0, 100)))
        .then(pl.lit("bad_value: the activity is no number from 0 to 100"))
        .alias("reason")
    )
