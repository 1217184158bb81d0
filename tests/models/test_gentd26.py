"""Real GPU activity (GenTD26): the hold rule reproduces observed, unknown and low seconds of eleven real series exactly."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import polars as pl
import pytest

from models.contracts import TABLES
from models.engine.warehouse import Warehouse, Window
from models.gpu_states import build_gpu_states, readings
from models.parameters import Parameters

SECOND = 10**9
WINDOW = Window(date(2022, 9, 11), date(2022, 9, 13))


@pytest.fixture(scope="module")
def built(shared_data: Path) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """(oracle, segments, readings): each real series is the one GPU of a pod that lived from its first to its last sample."""
    oracle = pl.read_csv(shared_data / "gpu" / "gentd26_expected.csv")
    activity = pl.read_csv(shared_data / "gpu" / "gentd26_pod_gpu_duty_cycle_trim.csv")
    samples = [
        {
            "object_id": "gentd26", "cluster": "c", "time_ns": row["timestamp_anon"] * SECOND, "metric": "gpu_util",
            "value": row["gpu_duty_cycle_pct"], "gpu_uuid": f"GPU-{row['container_ip']}", "namespace": "ml",
            "pod": row["container_ip"],
        }
        for row in activity.iter_rows(named=True)
    ]  # fmt: skip
    pods, nodes = [], []
    for key, row in enumerate(oracle.iter_rows(named=True)):
        start, end = row["first_ts"] * SECOND, (row["first_ts"] + row["span_s"]) * SECOND
        pods.append({
            "cluster": "c", "pod_uid": row["container_ip"], "namespace": "ml", "name": row["container_ip"], "node_key": key,
            "zone_key": -1, "host_network": False, "daemon": False, "job_key": key, "role": "worker", "resolved_by": "pod",
            "gpus": 1.0, "bypasses_kernel": False, "held_from_ns": start, "held_to_ns": end, "main_started_ns": start,
            "succeeded": False, "last_seen_ns": end, "still_alive": False,
        })  # fmt: skip
        nodes.append({
            "node_key": key, "cluster": "c", "node_uid": f"n{key}", "name": f"n{key}", "lifecycle": "unknown", "zone_key": -1,
            "gpus": 1.0, "valid_from_ns": start, "valid_to_ns": end, "from_basis": "created", "to_basis": "deleted",
        })  # fmt: skip
    coverage = [{"cluster": "c", "from_ns": WINDOW.from_ns, "to_ns": WINDOW.to_ns, "basis": "list"}]
    with Warehouse() as warehouse:
        warehouse.stage_frames({"staging.gpu_sample": TABLES["staging.gpu_sample"].frame(samples)})
        for name, rows in (("pod_life", pods), ("node_life", nodes), ("placement_coverage", coverage)):
            warehouse.append(f"core.{name}", TABLES[f"core.{name}"].frame(rows))
        build_gpu_states(warehouse, WINDOW, Parameters())
        holds = pl.concat(
            readings(warehouse, Window(day, date(2022, 9, day.day + 1)), Parameters()) for day in WINDOW.days
        )
        return oracle, warehouse.table("core.gpu_state_segment"), holds.unique(["pod_uid", "time_ns"])


def seconds(frame: pl.DataFrame, start: str, condition: pl.Expr) -> dict[str, int]:
    spent = frame.filter(condition).group_by("pod_uid").agg(((pl.col("to_ns") - pl.col(start)) // SECOND).sum())
    return dict(spent.iter_rows())


def test_g2_g3_observed_unknown_and_low_seconds_are_the_oracles(
    built: tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame],
) -> None:
    oracle, segments, holds = built
    observed = seconds(segments, "from_ns", pl.col("state") != "unmeasured")
    unknown = seconds(segments, "from_ns", pl.col("state") == "unmeasured")
    low = seconds(holds, "time_ns", pl.col("low"))
    zero = seconds(holds, "time_ns", pl.col("activity") == 0)
    assert oracle.height == 11
    for row in oracle.iter_rows(named=True):
        name = row["container_ip"]
        assert observed[name] == row["observed_s"], name
        assert unknown.get(name, 0) == row["unknown_s"], name
        assert low[name] == row["idle_s_lt5pct"], name
        assert zero[name] == row["idle_s_eq0"], name
        assert row["observed_s"] - low[name] == row["active_s"], name


def test_g3_mean_activity_survives_the_cells(built: tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]) -> None:
    """Time-weighted mean activity of all readings is the oracle's, to its four decimals."""
    oracle, _, holds = built
    length = pl.col("to_ns") - pl.col("time_ns")
    means = dict(holds.group_by("pod_uid").agg((pl.col("activity") * length).sum() / length.sum() * 100).iter_rows())
    for row in oracle.iter_rows(named=True):
        assert means[row["container_ip"]] == pytest.approx(row["mean_pct_time_weighted"], abs=1e-4)


def test_g3_only_episodes_of_five_minutes_are_idle(built: tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]) -> None:
    _, segments, holds = built
    idle = seconds(segments, "from_ns", pl.col("state") == "idle")
    low = seconds(holds, "time_ns", pl.col("low"))
    assert all(idle.get(name, 0) <= low[name] for name in low)
    assert sum(idle.values()) < sum(low.values())
    assert idle["529efd455681cf512dbb5b4656cf9ec0"] == 1710  # low throughout
