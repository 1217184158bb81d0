"""Small worlds for tests of GPU states: nodes, pods and samples, a row a call; times are minutes after ten."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date, datetime, timedelta
from typing import Any

import polars as pl

from models.contracts import TABLES
from models.engine.warehouse import Warehouse, Window, utc_ns
from models.gpu_states import build_gpu_states
from models.parameters import Parameters

SECOND, MINUTE, HOUR = 10**9, 60 * 10**9, 3600 * 10**9
DAY = date(2026, 11, 23)
WINDOW = Window(DAY, DAY + timedelta(days=1))
TEN = utc_ns("2026-11-23T10:00:00Z")
NODE, JOB = 11, 77
Row = dict[str, Any]


def at(minutes: float) -> int:
    return TEN + round(minutes * MINUTE)


def node(key: int = NODE, gpus: float = 1.0, start: float = 0, end: float = 120, **changes: Any) -> Row:
    return {
        "node_key": key, "cluster": "c", "node_uid": f"n{key}", "name": f"n{key}", "lifecycle": "on_demand", "zone_key": 1,
        "gpu_model": "NVIDIA-H100-80GB-HBM3", "gpus": gpus, "gpus_allocatable": gpus, "valid_from_ns": at(start),
        "valid_to_ns": at(end), "from_basis": "created", "to_basis": "deleted",
    } | changes  # fmt: skip


def pod(
    uid: str = "w0", start: float = 0, end: float = 120, started: float | None = 0, gpus: float = 1.0, **changes: Any
) -> Row:
    return {
        "cluster": "c", "pod_uid": uid, "namespace": "ml", "name": uid, "node_key": NODE, "node_name": f"n{NODE}", "zone_key": 1,
        "host_network": False, "daemon": False, "job_key": JOB, "role": "worker", "resolved_by": "label", "gpus": gpus,
        "gpu_resource": "nvidia.com/gpu", "bypasses_kernel": False, "created_ns": at(start), "held_from_ns": at(start),
        "held_to_ns": at(end), "main_started_ns": None if started is None else at(started), "succeeded": False,
        "last_seen_ns": at(end), "still_alive": False, "attempt": 1,
    } | changes  # fmt: skip


def job(**changes: Any) -> Row:
    return {
        "job_key": JOB, "cluster": "c", "namespace": "ml", "kind": "PyTorchJob", "name": "train", "run": "u", "resolved_by": "label",
        "declared_size": 1, "gang": True, "first_seen_ns": at(0), "last_seen_ns": at(120), "gpus": 1.0,
    } | changes  # fmt: skip


def samples(start: float, end: float, value: float, metric: str = "gpu_util", uid: str | None = "w0", gpu: str = "GPU-0",
            step: float = 0.5, **changes: Any) -> list[Row]:  # fmt: skip
    """One value a step from minute `start` up to, not including, `end`."""
    row = {
        "object_id": "o", "cluster": "c", "metric": metric, "value": value, "gpu_uuid": gpu, "gpu_model": "NVIDIA H100 80GB HBM3",
        "node_name": f"n{NODE}", "instance": "10.0.0.1:9400", "namespace": "ml" if uid else None, "pod": uid,
    } | changes  # fmt: skip
    count = round((end - start) / step)
    return [row | {"time_ns": at(start + number * step)} for number in range(count)]


def covered(start: float = -600, end: float = 840) -> Row:
    return {"cluster": "c", "from_ns": at(start), "to_ns": at(end), "basis": "list"}


def billed(minutes: float, instance_hours: float, key: int = NODE, scope: str = "gpu_compute") -> Row:
    hour = datetime(1970, 1, 1) + timedelta(hours=at(minutes) // HOUR)
    return {
        "date": hour.date(), "hour_utc": hour, "node_key": key, "instance_hours": instance_hours, "delivery_id": "d", "object_id": "o",
        "row_number": 1, "part": 1, "share_billed": None, "charge_scope": scope, "currency": "USD", "cost_basis": "billed",
    } | {"share_billed": 1}  # fmt: skip


def fill(warehouse: Warehouse, **tables: Iterable[Row]) -> None:
    """Rows by table; `core__pod_life=[...]` is `core.pod_life`. One GPU node for two hours, placement known, by default."""
    rows = {"core__node_life": [node()], "core__placement_coverage": [covered()], "core__job_run": [job()]} | tables
    for name, content in rows.items():
        table = name.replace("__", ".")
        warehouse.append(table, TABLES[table].frame(list(content)))


def states(warehouse: Warehouse, window: Window = WINDOW, parameters: Parameters | None = None) -> pl.DataFrame:
    """Build and return the segments, in order."""
    build_gpu_states(warehouse, window, parameters or Parameters())
    return segments(warehouse)


def segments(warehouse: Warehouse) -> pl.DataFrame:
    frame = warehouse.query("SELECT * FROM core.gpu_state_segment ORDER BY node_key, gpu_uuid, from_ns, to_ns, state")
    return frame.with_columns(
        start=((pl.col("from_ns") - TEN) / MINUTE).round(6), end=((pl.col("to_ns") - TEN) / MINUTE).round(6)
    )


def minutes_by(frame: pl.DataFrame, *names: str) -> dict[Any, float]:
    """GPU-minutes of segments by these columns."""
    grouped = frame.group_by(names).agg(((pl.col("to_ns") - pl.col("from_ns")) * pl.col("weight")).sum() / MINUTE)
    return {row[0] if len(names) == 1 else row[:-1]: round(row[-1], 6) for row in grouped.iter_rows()}


def hours_by(warehouse: Warehouse, *names: str) -> dict[Any, float]:
    """GPU-hours of the hourly table by these columns."""
    grouped = warehouse.table("core.gpu_state_hourly").group_by(names).agg(pl.col("gpu_hours").sum())
    return {row[0] if len(names) == 1 else row[:-1]: round(row[-1], 9) for row in grouped.iter_rows()}
