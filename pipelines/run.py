"""One window from sources to readers: runs the Dagster definitions in process, in the order of the graph.

The command line and Dagster run the same assets; this module only chooses partitions and tells the outcome.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path

import dagster as dg

from models.engine.warehouse import Window
from pipelines.assets.partitions import FIRST_DAY as FIRST_KEY
from pipelines.assets.publication import publish_mart, write_weekly_report
from pipelines.checks import broken_promises
from pipelines.resources import Workspace
from pipelines.settings import SettingsError, dagster_home
from pipelines.summary import summary

Say = Callable[[str], None]
LOCKED = "Could not set lock"  # how DuckDB says that a second process would write
FIRST_DAY = date.fromisoformat(FIRST_KEY)
_RANGE_START, _RANGE_END = "dagster/asset_partition_range_start", "dagster/asset_partition_range_end"


def run_window(config: Path, home: Path | None, window: Window, say: Say) -> int:
    """Ingest, attribute, check, publish and report a window. Returns the exit code."""
    if window.from_date < FIRST_DAY:
        raise SettingsError(f"no day before {FIRST_DAY} can be run\n  fix:   --from {FIRST_DAY} or later")
    workspace = Workspace(config, home, say)
    _ = workspace.settings  # a mistake in the configuration stops the run before anything is read
    code = run_stages(workspace, window)
    if code == 0:
        print(summary(workspace, window))
    return code


def run_stages(workspace: Workspace, window: Window) -> int:
    """Materialise the graph stage by stage for a window; 0, or 1 when a stage or a blocking check failed."""
    from pipelines.definitions import STAGES, keys_for

    logging.getLogger("dagster").setLevel(logging.CRITICAL)
    with _instance() as instance:
        for stage in STAGES:
            keys = keys_for(stage, window)
            tags = {_RANGE_START: keys.start, _RANGE_END: keys.end} if keys else {}
            outcome = dg.materialize(
                [*stage.assets, *stage.checks],
                instance=instance,
                resources={"workspace": workspace},
                tags=tags,
                raise_on_error=False,
                run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
            )
            if not outcome.success:
                _tell_failure(outcome, workspace.say)
                return 1
    return 0


def _tell_failure(outcome: dg.ExecuteInProcessResult, say: Say) -> None:
    """The cause of a failed stage in plain words: the innermost error, without Dagster's frames."""
    for event in outcome.all_events:
        if event.is_step_failure:
            data = event.step_failure_data
            error = data.error
            while error is not None and error.cause is not None:
                error = error.cause
            text = data.user_failure_data.description if data.user_failure_data else None
            text = text or (error.message if error else "unknown error")
            if LOCKED in text:
                text = f"another process holds the warehouse; wait for it or end it, then run again\n  {text}"
            say(f"failed in {event.step_key}: {text}".rstrip())
        elif (
            event.event_type == dg.DagsterEventType.ASSET_CHECK_EVALUATION
            and not event.asset_check_evaluation_data.passed
        ):
            evaluation = event.asset_check_evaluation_data
            say(f"check {evaluation.check_name} failed: {evaluation.description or ''}".rstrip())
    say("nothing was published; what was published before is untouched")


def _instance() -> dg.DagsterInstance:
    """The instance that DAGSTER_HOME names, so that the UI shows the run; else one in memory."""
    return dg.DagsterInstance.get() if dagster_home() else dg.DagsterInstance.ephemeral()


def check_warehouse(config: Path, home: Path | None) -> int:
    """Run every check; print what is broken. 0 when all hold, else 1."""
    broken = broken_promises(_processed(Workspace(config, home)))
    print(
        "\n".join(broken) if broken else "every check holds: the ledger is the bill, every key resolves, totals agree"
    )
    return 1 if broken else 0


def _processed(workspace: Workspace) -> Workspace:
    """The workspace, when it has a warehouse with at least one day; checks of nothing would all hold."""
    missing = SettingsError(
        f"no day has been run into {workspace.home}\n  fix:   `zoneledger run --from DATE --to DATE` first"
    )
    if not (workspace.home / "warehouse.duckdb").is_file():
        raise missing
    with workspace.warehouse() as warehouse:
        if warehouse.query("SELECT count(*) FROM core.processed_day").item() == 0:
            raise missing
    return workspace


def publish_again(config: Path, home: Path | None, say: Say) -> int:
    """Check what the warehouse holds and publish it again (after a restore, or a change of configuration)."""
    workspace = _processed(Workspace(config, home, say))
    broken = broken_promises(workspace)
    if broken:
        print("\n".join(broken))
        say("nothing was published; what was published before is untouched")
        return 1
    manifest = publish_mart(workspace, datetime.now(UTC))
    print(f"published revision {manifest['revision']} in {workspace.home / 'published' / 'v1'}")
    return 0


def report_week(config: Path, home: Path | None, week: str, say: Say) -> int:
    """Write one week's report from what is published."""
    say(f"writing the report of {week}")
    try:
        print(write_weekly_report(Workspace(config, home, say), week))
    except FileNotFoundError as error:
        raise SettingsError(str(error)) from error
    return 0
