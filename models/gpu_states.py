"""What each GPU did, in stretches of time and by hour, and why it did nothing (G1-G4, P6, N3, N8).

What is here: the order of the steps, their bounds, and the table of GPU models. What a step does stands in
`sql/core/gpu_state_*.sql`. Each day is computed from the same bounded surroundings, whatever the window of the run,
so that a window split in two gives the same rows (N7):

- readings from `MARGIN` before the day to `MARGIN` after it. An episode needs 300 s of measured time, a reading
  followed by a gap stands for at least 20 s, and a gap within an episode is at most 300 s, so every episode that
  touches the day has shown what it is within 15 * 320 s, and every pause (30 min) has shown both its ends;
- the spacing of samples in the day, the day before and the day after;
- whether a series goes on after a reading: within `SILENCE`. A series that is silent for longer has ended.

Causes look at the whole life of the pods of a run (`gpu_state_segment__activity.sql`), never at the window.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path

import polars as pl

from models.engine.run import Model
from models.engine.warehouse import Warehouse, Window, load_sql
from models.parameters import DAY_NS, HOUR_NS, MINUTE_NS, SECOND_NS, Parameters

MARGIN_NS = 3 * HOUR_NS + 10 * MINUTE_NS
SILENCE_NS = 12 * HOUR_NS
BUCKET_NS = 10 * SECOND_NS
CELL_NS = (
    5 * MINUTE_NS
)  # active time is kept in means over cells of this length: F4 needs work by the minute, not by the sample
FOREVER_NS = 2**62
CHUNK_ROWS = 10_000_000  # samples that are laid out at once
MODELS_CSV = Path(__file__).resolve().parent / "gpu_models.csv"
_STEP = "core.gpu_state_segment__{}"
_SCRATCH = (
    "gpu_model", "gpu_holder", "gpu_owner", "gpu_activity", "gpu_interval", "gpu_reading", "gpu_later", "gpu_hold",
    "gpu_measured", "gpu_grant", "gpu_piece", "gpu_cause_span", "gpu_caused",
)  # fmt: skip


# --- models of GPUs ------------------------------------------------------------------------------------------------
def canonical_model(raw: str) -> str:
    """The form in which names are looked up: `NVIDIA-A100-SXM4-40GB-SHARED` and `A100-SXM4-40GB` are one."""
    text = re.sub(r"-(SHARED|MIG-.*)$", "", raw.strip(), flags=re.IGNORECASE).upper()
    text = re.sub(r"[\s_-]+", " ", text)
    return re.sub(r"\b(NVIDIA|TESLA|AMD|INSTINCT|GRAPHICS|AMPERE|OAM)\b ?", "", text).strip()


def gpu_models() -> dict[str, dict[str, object]]:
    """Lookup form of a name to canonical model, idle and limit watts, memory.

    Limits and memory are those of the vendors' data sheets (TDP of the board). Idle watts are not on data sheets: they
    are what an idle board of the model usually draws, good enough for a threshold at a quarter of the way to the limit.
    """
    with MODELS_CSV.open(encoding="utf-8", newline="") as lines:
        return {
            canonical_model(row["alias"]): {
                "model": row["model"],
                "idle_watts": float(row["idle_watts"]),
                "limit_watts": float(row["limit_watts"]),
                "memory_gib": float(row["memory_gib"]),
            }
            for row in csv.DictReader(lines)
        }


def model_of(raw: str, models: dict[str, dict[str, object]]) -> dict[str, object] | None:
    """The row of a name as an exporter or a node writes it; the longest alias that begins it, else None."""
    name = canonical_model(raw)
    fits = [alias for alias in models if name == alias or name.startswith(alias + " ")]
    return models[max(fits, key=len)] if fits else None


def _scratch_models(warehouse: Warehouse, window: Window, samples: bool = True) -> None:
    names = "SELECT DISTINCT gpu_model AS raw FROM core.node_life WHERE gpu_model IS NOT NULL"
    if samples:
        names += (
            " UNION SELECT DISTINCT gpu_model FROM staging.gpu_sample"
            " WHERE gpu_model IS NOT NULL AND time_ns >= $low AND time_ns < $high"
        )
    raw = warehouse.query(names, {"low": window.from_ns - MARGIN_NS, "high": window.to_ns + MARGIN_NS})["raw"]
    models = gpu_models()
    found = {name: model_of(name, models) for name in raw.sort().to_list()}
    known = [(name, row["model"], row["idle_watts"], row["limit_watts"]) for name, row in found.items() if row]
    schema = {"raw": pl.String, "model": pl.String, "idle_watts": pl.Float64, "limit_watts": pl.Float64}
    warehouse.scratch_frame("gpu_model", pl.DataFrame(known, schema=schema, orient="row"))


# --- steps ---------------------------------------------------------------------------------------------------------
def build_gpu_states(warehouse: Warehouse, window: Window, parameters: Parameters) -> None:
    """Fill core.gpu_state_segment and core.gpu_state_hourly, with every cause that needs no finding."""
    try:
        _scratch_pods(warehouse, window, parameters)
        spacing = _Spacing(warehouse, parameters)
        for day in _days(window):
            bound = _bound(day, parameters)
            _scratch_measured(warehouse, day, parameters, spacing)
            for table, step in (
                ("gpu_grant", "grant"),
                ("gpu_piece", "piece"),
                ("gpu_cause_span", "cause_span"),
                ("gpu_caused", "caused"),
            ):
                warehouse.scratch_sql(table, load_sql(_STEP.format(step)), bound)
            warehouse.run_sql_model("core.gpu_state_segment", bound, window=day)
            warehouse.run_sql_model("core.gpu_state_hourly", bound, window=day)
    finally:
        warehouse.drop_scratch(*_SCRATCH)


def build_gpu_causes(warehouse: Warehouse, window: Window, parameters: Parameters) -> None:
    """Relabel what rests on findings (`blocked_by_policy`, `cross_zone_sync`); the sums of states do not change."""
    try:
        _scratch_models(warehouse, window, samples=False)
        for day in _days(window):
            bound = _bound(day, parameters)
            warehouse.replace_sql("core.gpu_state_segment", load_sql(_STEP.format("relabelled")), bound, window=day)
            warehouse.run_sql_model("core.gpu_state_hourly", bound, window=day)
    finally:
        warehouse.drop_scratch("gpu_model")


def unrequested_use(warehouse: Warehouse, window: Window, parameters: Parameters) -> pl.DataFrame:
    """GPUs that were active while nobody who requested GPUs could account for it: one row a device and hour (G1)."""
    try:
        _scratch_pods(warehouse, window, parameters, activity=False)
        return warehouse.query(load_sql(_STEP.format("unrequested")), _bound(window, parameters))
    finally:
        warehouse.drop_scratch(*_SCRATCH)


def readings(warehouse: Warehouse, day: Window, parameters: Parameters) -> pl.DataFrame:
    """Every reading that touches a day, how long it stands and the state of its episode: what the states rest on."""
    try:
        _scratch_pods(warehouse, day, parameters, activity=False)
        _scratch_measured(warehouse, day, parameters, _Spacing(warehouse, parameters), whole=True)
        return warehouse.query(
            "SELECT * FROM gpu_hold WHERE to_ns > $from_ns AND time_ns < $to_ns ORDER BY ALL", day.parameters()
        )
    finally:
        warehouse.drop_scratch(*_SCRATCH)


def _days(window: Window) -> Iterator[Window]:
    for day in window.days:
        yield Window(day, day + timedelta(days=1))


def _bound(window: Window, parameters: Parameters) -> dict[str, object]:
    return window.parameters() | {
        "load_from_ns": window.from_ns - MARGIN_NS,
        "load_to_ns": window.to_ns + MARGIN_NS,
        "silence_ns": SILENCE_NS,
        "bucket_ns": BUCKET_NS,
        "cell_ns": CELL_NS,
        "forever_ns": FOREVER_NS,
        "day_length_ns": DAY_NS,
        "idle_threshold": parameters.idle_threshold,
        "idle_min_ns": parameters.idle_min_seconds * SECOND_NS,
        "idle_gap_ns": parameters.idle_gap_seconds * SECOND_NS,
        "interval_min_ns": parameters.sample_interval_min_seconds * SECOND_NS,
        "interval_max_ns": parameters.sample_interval_max_seconds * SECOND_NS,
        "pause_max_ns": parameters.pause_max_seconds * SECOND_NS,
        "release_min_ns": parameters.release_min_seconds * SECOND_NS,
    }


def _scratch_pods(warehouse: Warehouse, window: Window, parameters: Parameters, activity: bool = True) -> None:
    bound = _bound(window, parameters)
    _scratch_models(warehouse, window)
    for step in ("holder", "owner", *(["activity"] if activity else [])):
        warehouse.scratch_sql(f"gpu_{step}", load_sql(_STEP.format(step)), bound)


def _scratch_measured(
    warehouse: Warehouse, day: Window, parameters: Parameters, spacing: _Spacing, whole: bool = False
) -> None:
    """`gpu_measured` of one day, a chunk of GPUs at a time, so that memory does not grow with the fleet."""
    bound = _bound(day, parameters)
    warehouse.scratch_frame("gpu_interval", spacing.around(day))
    warehouse.scratch_sql("gpu_later", load_sql(_STEP.format("later")), bound)
    rows = warehouse.query(
        "SELECT count(*) AS n FROM staging.gpu_sample WHERE time_ns >= $load_from_ns AND time_ns < $load_to_ns", bound
    )["n"][0]
    chunks = 1 if whole else 1 + int(rows) // CHUNK_ROWS
    for chunk in range(chunks):
        bound |= {"chunk": chunk, "chunks": chunks}
        warehouse.scratch_sql("gpu_reading", load_sql(_STEP.format("reading")), bound)
        warehouse.scratch_sql("gpu_hold", load_sql(_STEP.format("hold")), bound)
        measured = load_sql(_STEP.format("measured"))
        if chunk:
            measured = f"SELECT * FROM gpu_measured UNION ALL ({measured})"
        warehouse.scratch_sql("gpu_measured", measured, bound)


class _Spacing:
    """The spacing of samples by day, each day computed once a build."""

    def __init__(self, warehouse: Warehouse, parameters: Parameters) -> None:
        self._warehouse, self._parameters = warehouse, parameters
        self._days: dict[date, pl.DataFrame] = {}

    def around(self, day: Window) -> pl.DataFrame:
        """Rows of the day before, the day and the day after; days before these are forgotten."""
        wanted = [day.from_date + timedelta(days=offset) for offset in (-1, 0, 1)]
        self._days = {one: self._days[one] if one in self._days else self._of(one) for one in wanted}
        return pl.concat(self._days.values())

    def _of(self, one: date) -> pl.DataFrame:
        window = Window(one, one + timedelta(days=1))
        return self._warehouse.query(load_sql(_STEP.format("interval")), _bound(window, self._parameters))


_INPUTS = (
    "core.job_run",
    "core.node_bill_hourly",
    "core.node_life",
    "core.placement_coverage",
    "core.pod_life",
)
MODELS: tuple[Model, ...] = (
    Model(
        "gpu_states",
        ("core.gpu_state_segment", "core.gpu_state_hourly"),
        (*_INPUTS, "staging.gpu_sample", "staging.node_observation", "staging.pod_observation"),
        build_gpu_states,
        "what each GPU did, and why it did nothing, as far as no finding is needed",
    ),
    Model(
        "gpu_causes",
        ("core.gpu_state_segment", "core.gpu_state_hourly"),
        (
            "core.finding",
            "core.gpu_state_segment",
            "core.node_bill_hourly",
            "core.node_life",
            "core.placement_coverage",
            "core.pod_life",
        ),
        build_gpu_causes,
        "the causes that rest on findings: blocked_by_policy, cross_zone_sync",
    ),
)
