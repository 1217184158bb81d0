"""When things run by themselves: every morning the last days, every Monday the week before, and when new files arrive.

All are stopped until a person starts them in Dagster's UI.
"""

import hashlib
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg

from connectors.errors import ConnectorError
from models.engine.warehouse import Window
from pipelines.assets.partitions import monday_of
from pipelines.resources import Workspace
from pipelines.settings import SettingsError

# Flows and restated bills come late, so each morning does the last days again; N7 makes that safe.
DAYS_AGAIN = 3


class LastDays(dg.Config):
    """Which days to run: `days` up to and including `last_day` (ISO date)."""

    last_day: str
    days: int = DAYS_AGAIN


@dg.op
def run_days(context: dg.OpExecutionContext, config: LastDays, workspace: dg.ResourceParam[Workspace]) -> None:
    """Sources to report for a window of days, exactly as `zoneledger run` does it."""
    from pipelines.run import run_stages

    workspace.say = context.log.info
    if run_stages(workspace, _window(config)) != 0:
        raise dg.Failure("a stage failed: see the log above; nothing was published", allow_retries=False)


@dg.job(description="A window of days from sources to report, as `zoneledger run` does it.")
def run_last_days() -> None:
    run_days()


def _window(config: LastDays) -> Window:
    end = datetime.fromisoformat(config.last_day).date() + timedelta(days=1)
    return Window(end - timedelta(days=config.days), end)


def _request(last_day: str, days: int) -> dict[str, object]:
    return {"ops": {"run_days": {"config": {"last_day": last_day, "days": days}}}}


@dg.schedule(job=run_last_days, cron_schedule="0 6 * * *", execution_timezone="UTC")
def every_morning(context: dg.ScheduleEvaluationContext) -> dg.RunRequest:
    """The last three days, when most of yesterday's bill and flow logs are there."""
    yesterday = (context.scheduled_execution_time - timedelta(days=1)).date().isoformat()
    return dg.RunRequest(run_key=f"morning-{yesterday}", run_config=_request(yesterday, DAYS_AGAIN))


@dg.schedule(job=run_last_days, cron_schedule="0 7 * * 1", execution_timezone="UTC")
def every_monday(context: dg.ScheduleEvaluationContext) -> dg.RunRequest:
    """The whole week before, for the weekly report."""
    sunday = monday_of(context.scheduled_execution_time.date()) - timedelta(days=1)
    return dg.RunRequest(run_key=f"week-{sunday}", run_config=_request(sunday.isoformat(), 7))


def source_fingerprint(workspace: Workspace) -> str:
    """Changes when a file of a source appears, grows or goes; reads no contents."""
    digest = hashlib.sha256()
    for source in workspace.settings.sources:
        root: Path = source.location
        for path in sorted(root.rglob("*")) if root.is_dir() else [root]:
            if path.is_file():
                status = path.stat()
                digest.update(f"{source.name}\x1f{path}\x1f{status.st_size}\x1f{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()


@dg.sensor(job=run_last_days, minimum_interval_seconds=300)
def new_files(
    context: dg.SensorEvaluationContext, workspace: dg.ResourceParam[Workspace]
) -> dg.SensorResult | dg.SkipReason:
    """A run of the last days whenever a source's files have changed."""
    try:
        fingerprint = source_fingerprint(workspace)
    except (SettingsError, ConnectorError, OSError) as error:
        return dg.SkipReason(f"the sources can't be listed: {error}")
    if fingerprint == context.cursor:
        return dg.SkipReason("no file has changed")
    today = datetime.now(UTC).date().isoformat()
    request = dg.RunRequest(run_key=f"files-{fingerprint[:16]}", run_config=_request(today, DAYS_AGAIN))
    return dg.SensorResult(run_requests=[request], cursor=fingerprint)


SCHEDULES = [every_morning, every_monday]
SENSORS = [new_files]
