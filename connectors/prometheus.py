"""GPU metrics as Prometheus keeps them: query_range answers, OpenMetrics or exposition text, promtool dumps.

Which metric means what, in which unit, is the table `METRICS`; label names differ by exporter version and are matched
without regard to case by the lists below. Sources: dcgm-exporter's render and Kubernetes attributes, its counters file,
Prometheus' HTTP API and promtool's dump (facts: GPU utilisation 3.1, 3.2).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import polars as pl
import pyarrow.parquet as pq

from connectors.documents import MAX_TIME_NS, READ_ERRORS, file_time, read_documents
from connectors.lines import LineFile
from connectors.objects import LandedObject, Source, list_objects, open_bytes, report_progress
from connectors.sink import Batch, Lake
from models.contracts import TABLES

SAMPLE = "staging.gpu_sample"
# exporter's metric, lower case -> (metric of staging, factor to its unit)
METRICS: dict[str, tuple[str, float]] = {
    "dcgm_fi_dev_gpu_util": ("gpu_util", 1.0),
    "dcgm_gpu_utilization": ("gpu_util", 1.0),
    "dcgm_fi_prof_gr_engine_active": ("engine_active", 1.0),
    "dcgm_fi_prof_pipe_tensor_active": ("tensor_active", 1.0),
    "dcgm_fi_prof_dram_active": ("dram_active", 1.0),
    "dcgm_fi_prof_sm_active": ("sm_active", 1.0),
    "dcgm_fi_dev_power_usage": ("power_watts", 1.0),
    "dcgm_power_usage": ("power_watts", 1.0),
    "dcgm_fi_dev_fb_used": ("memory_used_mib", 1.0),
    "dcgm_fb_used": ("memory_used_mib", 1.0),
    # AMD device-metrics-exporter, with and without its default prefix
    "gpu_gfx_activity": ("gpu_util", 1.0),
    "amd_gpu_gfx_activity": ("gpu_util", 1.0),
    "gpu_power_usage": ("power_watts", 1.0),
    "amd_gpu_power_usage": ("power_watts", 1.0),
    "gpu_used_vram": ("memory_used_mib", 1.0),
    "amd_gpu_used_vram": ("memory_used_mib", 1.0),
}
STAGING_METRICS = {metric for metric, _ in METRICS.values()}
# column -> label names, lower case, best first
LABELS: dict[str, tuple[str, ...]] = {
    "gpu_uuid": ("uuid", "gpu_uuid"),
    "gpu_instance": ("gpu_i_id",),
    "gpu_index": ("gpu", "gpu_id"),
    "gpu_model": ("modelname", "model_name", "card_model", "card_series"),
    "instance": ("instance",),
}
_NODE = ("node", "node_name", "nodename", "kubernetes_node", "exported_node")
_HOST = ("hostname", "exported_hostname")
_POD, _EXPORTED_POD = ("pod", "pod_name"), ("exported_pod", "exported_pod_name")
_NAMESPACE, _EXPORTED_NAMESPACE = ("namespace", "pod_namespace"), ("exported_namespace", "exported_pod_namespace")
_UID, _EXPORTED_UID = ("pod_uid", "pod_uuid"), ("exported_pod_uid",)
_CONTAINER = ("container", "container_name")
_EXPORTER = re.compile(r"dcgm-exporter|metrics-exporter|gpu-exporter|nvidia-smi-exporter")
_CONTAINER_ID = re.compile(r"^[0-9a-f]{12}([0-9a-f]{52})?$")
# "no value" of DCGM's int32, int64 and double fields (blank, not found, not supported, not permissioned)
SENTINELS = frozenset(
    float(first + n) for first in (2147483632, 9223372036854775792, 140737488355328) for n in range(4)
)
_SERIES_COLUMNS = ("metric", "gpu_uuid", "gpu_instance", "gpu_index", "gpu_model", "node_name", "instance", "namespace",
                   "pod", "pod_uid")  # fmt: skip
_SLICE = 1_000_000
# a sample line: series, value, optional time; an exemplar after ` # {...}` is taken off first
_EXEMPLAR = r" # \{[^{}]*\} \S+( \S+)?\s*$"
_LINE = r"^\s*((?:[a-zA-Z_:][a-zA-Z0-9_:]*)?\s*(?:\{.*\})?)\s*\s(\S+)(?:\s+(-?[0-9][0-9.eE+-]*))?\s*$"
_LABEL = re.compile(r'\s*(?:([a-zA-Z_:][a-zA-Z0-9_:.]*)\s*=\s*)?"((?:[^"\\]|\\.)*)"\s*(,|$)')
_ESCAPES = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


def stage(source: Source, lake: Lake, progress: Callable[[str], None]) -> None:
    """Stage every new file of the source; a bad one is kept aside with its reason and does not stop the others.

    Option `metrics` of the source names further metrics: `{ my_metric = "gpu_util" }`.
    """
    known = set(lake.loads()["object_id"])
    fresh = [landed for landed in list_objects(source) if landed.object_id not in known]
    for number, landed in enumerate(fresh, 1):
        report_progress(progress, source, number, len(fresh))
        batch = lake.batch(landed)
        stage_object(landed, batch)
        batch.commit()


def metric_table(configured: object) -> dict[str, tuple[str, float]]:
    """`METRICS` and the source's own names; a name that maps to no metric of staging is left out."""
    own = configured if isinstance(configured, dict) else {}
    return METRICS | {str(k).lower(): (str(v), 1.0) for k, v in own.items() if v in STAGING_METRICS}


@dataclass
class _Samples:
    """Samples of one file: times and values by series, series by what staging keeps of them."""

    landed: LandedObject
    metrics: dict[str, tuple[str, float]]
    keys: dict[tuple[str | None, ...], int] = field(default_factory=dict)
    parts: list[pl.DataFrame] = field(default_factory=list)  # key, time_ns, value

    def series(self, name: str, labels: dict[str, str]) -> tuple[int, float] | None:
        """(key, factor) of a series; None when its metric is not one that is kept. Raises ValueError without a GPU."""
        known = self.metrics.get(name.lower())
        if known is None:
            return None
        columns = series_columns(labels)
        identity = (known[0], *(columns[c] for c in _SERIES_COLUMNS[1:]))
        return self.keys.setdefault(identity, len(self.keys)), known[1]


def stage_object(landed: LandedObject, batch: Batch) -> None:
    """Parse one file into the batch."""
    samples = _Samples(landed, metric_table(landed.source.options.get("metrics")))
    try:
        if _is_json(landed.path):
            _take_json(samples, batch)
        else:
            _take_text(samples, batch)
    except READ_ERRORS as error:
        batch.count(landed, SAMPLE).read += 1
        batch.reject(landed, SAMPLE, None, f"unreadable: {type(error).__name__}: {error}", "")
    _write(samples, batch)


def _is_json(path: Path) -> bool:
    """A file of JSON starts with a bracket; promtool's `{__name__="x", ...}` and quoted names are text."""
    with open_bytes(path) as handle:
        while line := handle.readline(1 << 20):
            text = line.removeprefix(b"\xef\xbb\xbf").strip()
            if text:
                return text[:1] == b"[" or (
                    text[:1] == b"{" and not re.match(rb'^\{\s*([a-zA-Z_][\w]*\s*=|"[^"]*"\s*[,}=])', text)
                )
    return False


# --- query_range ---------------------------------------------------------------------------------------------------
def _take_json(samples: _Samples, batch: Batch) -> None:
    landed, counts = samples.landed, batch.count(samples.landed, SAMPLE)
    for line, document, problem in read_documents(landed.path):
        if problem is None:
            for entry in document if isinstance(document, list) else [document]:
                problem = _take_answer(samples, batch, entry, line)
                if problem is not None:
                    counts.read += 1
                    batch.reject(landed, SAMPLE, line, problem, _raw(entry))
        else:
            counts.read += 1
            batch.reject(landed, SAMPLE, line, problem, str(document))


def _raw(value: object) -> str:
    return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS).decode()[:2000]


def _take_answer(samples: _Samples, batch: Batch, answer: Any, line: int | None) -> str | None:
    """Take one answer of the HTTP API (or its data, or one series); returns why not."""
    if not isinstance(answer, dict):
        return "bad_value: not an object"
    if answer.get("status") == "error":
        return f"error_answer: {answer.get('errorType')}: {answer.get('error')}"
    for note in answer.get("warnings") or []:
        batch.warn(samples.landed, f"the server warned: {str(note)[:200]}")
    data = answer["data"] if isinstance(answer.get("data"), dict) else answer
    result = data.get("result")
    if result is None and isinstance(answer.get("metric"), dict):
        result = [answer]
    if not isinstance(result, list):
        return "no_samples: neither an answer of query_range nor a series with values"
    answered = _Answer(line)
    for series in result:
        _take_series(samples, batch, series, answered)
    _keep(samples, batch, answered.frame())
    return None


@dataclass
class _Answer:
    """The samples of one answer, column by column."""

    line: int | None
    keys: list[int] = field(default_factory=list)
    factors: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    def frame(self) -> pl.DataFrame:
        """line_number, key, factor, time_ns, text. Prometheus keeps milliseconds; a float of seconds has no more."""
        seconds = pl.col("seconds")
        return pl.DataFrame(
            {"key": self.keys, "factor": self.factors, "seconds": self.seconds, "text": self.texts},
            schema={"key": pl.Int64, "factor": pl.Float64, "seconds": pl.Float64, "text": pl.String},
        ).select(
            pl.lit(self.line, pl.Int64).alias("line_number"),
            "key",
            "factor",
            pl.when(seconds.abs() < MAX_TIME_NS / 1e9)
            .then((seconds * 1000).round().cast(pl.Int64, strict=False) * 1_000_000)
            .alias("time_ns"),
            "text",
        )


def _take_series(samples: _Samples, batch: Batch, series: Any, answered: _Answer) -> None:
    landed, counts = samples.landed, batch.count(samples.landed, SAMPLE)
    try:
        labels = {str(k): str(v) for k, v in series["metric"].items()}
        pairs = series["values"] if "values" in series else [series["value"]]
        known = samples.series(labels.get("__name__", ""), labels)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        counts.read += 1
        batch.reject(landed, SAMPLE, answered.line, f"bad_value: {type(error).__name__}: {error}", _raw(series))
        return
    pairs = pairs if isinstance(pairs, list) else []
    if known is None:
        counts.read += len(pairs)
        counts.control += len(pairs)
        return
    good = [p for p in pairs if isinstance(p, list) and len(p) == 2 and isinstance(p[0], int | float)]
    if len(good) < len(pairs):
        counts.read += len(pairs) - len(good)
        for pair in pairs:
            if not (isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], int | float)):
                batch.reject(landed, SAMPLE, answered.line, "bad_value: no pair of time and value", str(pair))
    answered.keys += [known[0]] * len(good)
    answered.factors += [known[1]] * len(good)
    answered.seconds += [float(p[0]) for p in good]
    answered.texts += [str(p[1]) for p in good]


def _keep(samples: _Samples, batch: Batch, frame: pl.DataFrame) -> None:
    """Keep samples (line_number, key, factor, time_ns, text); "no value" is control, what is no number is rejected."""
    counts = batch.count(samples.landed, SAMPLE)
    counts.read += frame.height
    valued = frame.with_columns(pl.col("text").cast(pl.Float64, strict=False).alias("value")).with_columns(
        pl.when(pl.col("time_ns").is_null() | ~pl.col("time_ns").is_between(0, MAX_TIME_NS))
        .then(pl.lit("bad_value: the time is missing or out of range"))
        .when(pl.col("value").is_null())
        .then(pl.lit("bad_value: the value is no number"))
        .when(pl.col("value").is_infinite() | (pl.col("value") < 0))
        .then(pl.lit("bad_value: a value below 0 or infinite is no measurement"))
        .alias("reason"),
        (pl.col("value").is_nan() | pl.col("value").is_in(list(SENTINELS))).fill_null(False).alias("blank"),
    )
    rejected = valued.filter(pl.col("reason").is_not_null() & ~pl.col("blank"))
    if rejected.height:
        batch.reject_frame(
            samples.landed, SAMPLE, rejected.select("line_number", "reason", pl.col("text").alias("raw"))
        )
    counts.control += valued.filter(pl.col("blank")).height
    kept = valued.filter(pl.col("reason").is_null() & ~pl.col("blank"))
    samples.parts.append(kept.select("key", "time_ns", pl.col("value") * pl.col("factor")))


# --- text ----------------------------------------------------------------------------------------------------------
def _take_text(samples: _Samples, batch: Batch) -> None:
    """Exposition text, OpenMetrics and promtool dumps, line by line, in bounded memory.

    Times are seconds when they have a fraction or are below 1e11, else milliseconds; a dump (`{__name__="x"} 5 60000`)
    is always in milliseconds. A line without a time has the file's.
    """
    landed, counts = samples.landed, batch.count(samples.landed, SAMPLE)
    fallback_ns, basis = file_time(landed)
    lines, undated = LineFile(landed.path), False
    seen: dict[str, tuple[int, float] | str | None] = {}
    for block in lines.batches():
        frame = pl.DataFrame(block)
        broken = frame.filter(pl.col("problem").is_not_null())
        if broken.height:
            counts.read += broken.height
            batch.reject_frame(landed, SAMPLE, broken.select("line_number", pl.col("problem").alias("reason"), "raw"))
        stripped = pl.col("line").str.strip_chars()
        frame = frame.filter(pl.col("problem").is_null()).filter(stripped != "")
        comments = frame.filter(stripped.str.starts_with("#")).height
        counts.read += comments
        counts.control += comments
        parsed = (
            frame.filter(~stripped.str.starts_with("#"))
            .with_columns(pl.col("line").str.replace(_EXEMPLAR, "").alias("sample"))
            .with_columns(
                pl.col("sample").str.extract_groups(_LINE).struct.rename_fields(["series", "text", "stamp"]).alias("g")
            )
            .unnest("g")
        )
        unread = parsed.filter(pl.col("series").is_null() | (pl.col("series") == ""))
        if unread.height:
            counts.read += unread.height
            batch.reject_frame(
                landed,
                SAMPLE,
                unread.select(
                    "line_number", pl.lit("bad_line: no sample").alias("reason"), pl.col("line").alias("raw")
                ),
            )
        good = parsed.filter(pl.col("series").is_not_null() & (pl.col("series") != ""))
        undated |= _take_samples(samples, batch, good, seen, fallback_ns)
    if lines.broken:
        batch.warn(landed, f"the file ends early, what could be read was kept ({lines.broken})")
    if undated and basis == "modified":
        batch.warn(landed, "time of undated samples taken from the file's modification time: put it in the name")


def _take_samples(
    samples: _Samples,
    batch: Batch,
    good: pl.DataFrame,
    seen: dict[str, tuple[int, float] | str | None],
    fallback_ns: int,
) -> bool:
    """Resolve the series of a block and keep its samples; returns whether any had no time of its own."""
    landed, counts = samples.landed, batch.count(samples.landed, SAMPLE)
    for text in good["series"].unique().to_list():
        if text not in seen:
            try:
                name, labels = parse_series(text)
                seen[text] = samples.series(name, labels)
            except ValueError as error:
                seen[text] = f"bad_value: {error}"
    resolved = pl.DataFrame(
        {
            "series": pl.Series(list(seen), dtype=pl.String),
            "key": pl.Series([k[0] if isinstance(k, tuple) else None for k in seen.values()], dtype=pl.Int64),
            "factor": pl.Series([k[1] if isinstance(k, tuple) else None for k in seen.values()], dtype=pl.Float64),
            "problem_of_series": pl.Series([k if isinstance(k, str) else None for k in seen.values()], dtype=pl.String),
        }
    )
    joined = good.join(resolved, on="series", how="left", maintain_order="left")
    bad = joined.filter(pl.col("problem_of_series").is_not_null())
    if bad.height:
        counts.read += bad.height
        batch.reject_frame(
            landed,
            SAMPLE,
            bad.select("line_number", pl.col("problem_of_series").alias("reason"), pl.col("line").alias("raw")),
        )
    others = joined.filter(pl.col("key").is_null() & pl.col("problem_of_series").is_null()).height
    counts.read += others
    counts.control += others
    used = joined.filter(pl.col("key").is_not_null())
    stamp = pl.col("stamp").cast(pl.Float64, strict=False)
    in_milliseconds = pl.col("series").str.contains(r"^\s*\{\s*__name__\s*=") | (
        ~pl.col("stamp").str.contains(".", literal=True) & (stamp.abs() >= 1e11)
    )
    milliseconds = pl.when(in_milliseconds).then(stamp).otherwise(stamp * 1000).round()
    stamped = used.with_columns(
        pl.when(pl.col("stamp").is_null())
        .then(pl.lit(fallback_ns))
        .when(milliseconds.abs() <= MAX_TIME_NS / 1e6)
        .then(milliseconds.cast(pl.Int64, strict=False) * 1_000_000)
        .alias("time_ns")
    )
    _keep(samples, batch, stamped.select("line_number", "key", "factor", "time_ns", "text"))
    return used["stamp"].null_count() > 0


def parse_series(text: str) -> tuple[str, dict[str, str]]:
    """(metric, labels) of `name{a="b", ...}`, `{__name__="name", ...}` or `{"name", ...}`. Raises ValueError."""
    name, brace, rest = text.strip().partition("{")
    name = name.strip()
    labels: dict[str, str] = {}
    if brace:
        inside = rest.rstrip().removesuffix("}")
        position = 0
        while inside[position:].strip():
            match = _LABEL.match(inside, position)
            if match is None:
                raise ValueError(f"labels can't be read at {inside[position : position + 40]!r}")
            value = re.sub(r"\\.", lambda m: _ESCAPES.get(m[0], m[0]), match[2])
            if match[1] is None:
                name = name or value
            else:
                labels[match[1]] = value
            position = match.end()
    return name or labels.get("__name__", ""), labels


# --- labels --------------------------------------------------------------------------------------------------------
def series_columns(labels: dict[str, str]) -> dict[str, str | None]:
    """What staging keeps of a series' labels. Raises ValueError when nothing tells which GPU it is.

    `exported_*` is the exporter's own word where Prometheus put the scrape target's labels over it (honorLabels: false);
    without it, a pod that is the exporter itself is no holder of the GPU.
    """
    lowered = {key.lower(): value for key, value in labels.items() if value != ""}

    def first(names: tuple[str, ...]) -> str | None:
        return next((lowered[name] for name in names if name in lowered), None)

    columns = {column: first(names) for column, names in LABELS.items()}
    pod, namespace, uid = first(_POD), first(_NAMESPACE), first(_UID)
    target = pod
    if first(_EXPORTED_POD) is not None:
        pod, namespace, uid = first(_EXPORTED_POD), first(_EXPORTED_NAMESPACE), first(_EXPORTED_UID)
    elif pod is None or _EXPORTER.search(pod) or _EXPORTER.search(first(_CONTAINER) or ""):
        pod = namespace = uid = None
    columns |= {"pod": pod, "namespace": namespace if pod else None, "pod_uid": uid}
    host = first(_HOST)
    trusted = host is not None and host != target and not _EXPORTER.search(host) and not _CONTAINER_ID.match(host)
    columns["node_name"] = first(_NODE) or (host if trusted else None)
    if columns["gpu_uuid"] is None:
        columns["gpu_uuid"] = _stand_in(columns, host)
    return columns


def _stand_in(columns: dict[str, str | None], host: str | None) -> str:
    """An identity for a GPU whose series has no UUID: its host (else pod) and index."""
    place = columns["node_name"] or columns["instance"] or host or columns["pod"]
    if place is None or columns["gpu_index"] is None:
        raise ValueError("no GPU: neither a UUID nor a host (or pod) and an index")
    return f"no-uuid/{place}/{columns['gpu_index']}"


# --- staging -------------------------------------------------------------------------------------------------------
def _write(samples: _Samples, batch: Batch) -> None:
    """Write the file's samples by time; replicas of one series that agree are duplicates (G2)."""
    landed, counts = samples.landed, batch.count(samples.landed, SAMPLE)
    if not samples.parts:
        return
    every = pl.concat(samples.parts)
    samples.parts = []
    rows = every.unique(maintain_order=False).sort("time_ns", "key", "value")
    counts.duplicate += every.height - rows.height
    if not rows.height:
        return
    contract = TABLES[SAMPLE]
    series = pl.DataFrame(
        list(samples.keys), schema=dict.fromkeys(_SERIES_COLUMNS, pl.String), orient="row"
    ).with_row_index("key")
    series = series.with_columns(
        pl.col("key").cast(pl.Int64),
        pl.lit(landed.object_id).alias("object_id"),
        pl.lit(landed.source.cluster or "default").alias("cluster"),
    )
    with pq.ParquetWriter(batch.scratch(landed, SAMPLE), contract.arrow_schema(), compression="zstd") as writer:
        for part in rows.iter_slices(_SLICE):
            joined = part.join(series, on="key", how="left", maintain_order="left").select(contract.column_names)
            writer.write_table(joined.to_arrow().cast(contract.arrow_schema()))
    counts.kept += rows.height
