"""The graph as a person reviews it: asset keys, dependencies, partitions and checks, beside a text that is checked in.

When the graph changes on purpose, write the text anew and review its difference:
`ZONELEDGER_WRITE_GOLDEN=1 .venv/bin/python -m pytest tests/pipelines/test_graph.py`
"""

from __future__ import annotations

import os
from collections import Counter
from datetime import date, datetime
from pathlib import Path

import dagster as dg
import pytest

from models.contracts import TABLES
from models.engine.warehouse import Window
from pipelines.assets.partitions import daily, keys_of, monthly, weekly, window_of
from pipelines.definitions import STAGES, defs, keys_for
from pipelines.graph import ALL_MODELS, STEPS
from pipelines.resources import Workspace
from pipelines.schedules import LastDays, _window, every_monday, every_morning, new_files, source_fingerprint

GOLDEN = Path(__file__).parent / "golden" / "graph.txt"
# tables that the sink keeps beside every load, and the configured clusters: no asset's output
KEPT_BY_THE_LAKE = {"staging.load", "staging.rejected_row", "staging.cluster"}


def drawn() -> str:
    """The graph as text: stage by stage, each asset with what it reads, then checks, schedules and sensors."""
    lines = []
    for stage in STAGES:
        kind = {None: "whole", daily: "daily", monthly: "monthly", weekly: "weekly"}[stage.partitions]
        lines.append(f"stage {stage.name} ({kind})")
        for asset in stage.assets:
            lines.append(f"  step {asset.op.name}" + (f", pool {asset.op.pool}" if asset.op.pool else ""))
            reads = {tuple(sorted(".".join(dep.asset_key.path) for dep in spec.deps)) for spec in asset.specs}
            assert len(reads) == 1, f"{asset.op.name}: all tables of a step have the same dependencies"
            lines += [f"    reads {table}" for table in reads.pop()]
            lines += sorted(f"    makes {'.'.join(spec.key.path)}" for spec in asset.specs)
        for check in stage.checks:
            for spec in check.check_specs:
                blocking = "blocking " if spec.blocking else ""
                lines.append(f"  {blocking}check {spec.name} on {'.'.join(spec.asset_key.path)}")
    for schedule in defs.schedules or []:
        lines.append(f"schedule {schedule.name}: {schedule.cron_schedule} {schedule.execution_timezone}")
    lines += [f"sensor {sensor.name}" for sensor in defs.sensors or []]
    return "\n".join(lines) + "\n"


def test_the_graph_is_the_reviewed_one() -> None:
    if os.environ.get("ZONELEDGER_WRITE_GOLDEN"):
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text(drawn(), encoding="utf-8")
    assert drawn() == GOLDEN.read_text(encoding="utf-8"), "the graph changed: see this file's first lines"


def test_definitions_load_and_resolve() -> None:
    dg.Definitions.validate_loadable(defs)


def test_every_contract_table_is_made_by_exactly_one_asset() -> None:
    made = Counter(".".join(key.path) for stage in STAGES for asset in stage.assets for key in asset.keys)
    assert {name for name, times in made.items() if times > 1} == set()
    promised = {name for name in TABLES if name not in KEPT_BY_THE_LAKE}
    assert promised <= set(made)
    assert set(made) - promised == {"published.v1", "reports.weekly"}


def test_every_model_runs_in_exactly_one_step() -> None:
    used = Counter(model.name for step in STEPS for model in step.models)
    assert used == Counter(list(ALL_MODELS))


def test_no_step_reads_a_table_that_a_later_step_makes() -> None:
    """What a step reads of other steps is there before it: else the first run over new data differs from the second (N7)."""
    made: set[str] = {name for name in TABLES if name.startswith("staging.")}
    for step in STEPS:
        outputs = {output for model in step.models for output in model.outputs}
        for model in step.models:
            assert set(model.inputs) <= made | outputs, f"{model.name} reads {set(model.inputs) - made - outputs}"
        made |= outputs


def test_readers_come_after_the_blocking_check() -> None:
    names = [stage.name for stage in STAGES]
    checked = [stage.name for stage in STAGES if stage.checks]
    assert checked == ["dimensions"]
    assert names.index("dimensions") < names.index("publication") < names.index("weekly reports")
    assert all(spec.blocking for stage in STAGES for check in stage.checks for spec in check.check_specs)


@pytest.mark.parametrize(
    ("partitions", "window", "keys", "covered"),
    [
        (daily, ("2026-11-23", "2026-11-24"), ("2026-11-23", "2026-11-23"), ("2026-11-23", "2026-11-24")),
        (daily, ("2026-11-29", "2026-12-02"), ("2026-11-29", "2026-12-01"), ("2026-11-29", "2026-12-02")),
        (monthly, ("2026-11-23", "2026-11-24"), ("2026-11-01", "2026-11-01"), ("2026-11-01", "2026-12-01")),
        (monthly, ("2026-11-30", "2026-12-02"), ("2026-11-01", "2026-12-01"), ("2026-11-01", "2027-01-01")),
        (monthly, ("2026-11-01", "2026-12-01"), ("2026-11-01", "2026-11-01"), ("2026-11-01", "2026-12-01")),
        (weekly, ("2026-11-29", "2026-12-01"), ("2026-11-23", "2026-11-30"), ("2026-11-23", "2026-12-07")),
        (weekly, ("2024-12-30", "2025-01-02"), ("2024-12-30", "2024-12-30"), ("2024-12-30", "2025-01-06")),
    ],
)
def test_n1_windows_and_partition_keys(
    partitions: dg.PartitionsDefinition,
    window: tuple[str, str],
    keys: tuple[str, str],
    covered: tuple[str, str],
) -> None:
    """A window touches whole days, months or ISO weeks; each key exists in Dagster's own definition."""
    asked = Window(*(date.fromisoformat(day) for day in window))
    found = keys_of(asked, partitions)
    assert (found.start, found.end) == keys
    assert set(keys) <= set(partitions.get_partition_keys(current_time=datetime(2027, 2, 1)))
    assert window_of(found, partitions) == Window(*(date.fromisoformat(day) for day in covered))


def test_a_stage_without_partitions_has_no_keys() -> None:
    window = Window(date(2026, 11, 23), date(2026, 11, 24))
    assert [keys_for(stage, window) is None for stage in STAGES] == [stage.partitions is None for stage in STAGES]


def test_every_morning_asks_for_the_last_three_days() -> None:
    with dg.build_schedule_context(scheduled_execution_time=datetime(2026, 12, 1, 6)) as context:
        request = every_morning(context)
    assert request.run_config == {"ops": {"run_days": {"config": {"last_day": "2026-11-30", "days": 3}}}}
    assert request.run_key == "morning-2026-11-30"
    assert _window(LastDays(last_day="2026-11-30", days=3)) == Window(date(2026, 11, 28), date(2026, 12, 1))


def test_r1_every_monday_asks_for_the_iso_week_before() -> None:
    with dg.build_schedule_context(scheduled_execution_time=datetime(2026, 11, 30, 7)) as context:
        request = every_monday(context)
    asked = request.run_config["ops"]["run_days"]["config"]
    assert _window(LastDays(**asked)) == Window(date(2026, 11, 23), date(2026, 11, 30))


def test_schedules_and_sensors_wait_for_a_person() -> None:
    assert {s.default_status for s in defs.schedules or []} == {dg.DefaultScheduleStatus.STOPPED}
    assert {s.default_status for s in defs.sensors or []} == {dg.DefaultSensorStatus.STOPPED}


def sourced(folder: Path) -> Workspace:
    (folder / "bill").mkdir()
    config = folder / "zoneledger.toml"
    config.write_text('[[source]]\nkind = "focus"\nlocation = "bill"\n', encoding="utf-8")
    return Workspace(config)


def test_a_new_or_grown_file_changes_the_fingerprint_and_asks_for_a_run_once(tmp_path: Path) -> None:
    workspace = sourced(tmp_path)
    empty = source_fingerprint(workspace)
    (tmp_path / "bill" / "a.csv").write_text("1", encoding="utf-8")
    grown = source_fingerprint(workspace)
    assert source_fingerprint(workspace) == grown != empty

    with dg.build_sensor_context(cursor=empty, resources={"workspace": workspace}) as context:
        asked = new_files(context)
    assert isinstance(asked, dg.SensorResult) and len(asked.run_requests or []) == 1 and asked.cursor == grown
    with dg.build_sensor_context(cursor=grown, resources={"workspace": workspace}) as context:
        assert isinstance(new_files(context), dg.SkipReason)


def test_a_broken_configuration_skips_with_its_reason(tmp_path: Path) -> None:
    with dg.build_sensor_context(resources={"workspace": Workspace(tmp_path / "absent.toml")}) as context:
        skipped = new_files(context)
    assert isinstance(skipped, dg.SkipReason) and "absent.toml" in str(skipped.skip_message)
