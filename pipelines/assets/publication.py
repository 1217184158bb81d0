"""Publication assets: the mart as parquet with its manifest, and one report for each week. Blocked by failing checks."""

from datetime import UTC, date, datetime
from pathlib import Path

import dagster as dg

from models.engine.warehouse import Window
from pipelines.assets.partitions import weekly, window_of
from pipelines.resources import Workspace
from reports.publish import Manifest, open_published, publish
from reports.weekly import weekly_report

PUBLISHED = dg.AssetKey(["published", "v1"])
WEEKLY_REPORT = dg.AssetKey(["reports", "weekly"])


def publish_mart(workspace: Workspace, now: datetime) -> Manifest:
    """Publish what the warehouse holds of all processed days; returns the manifest."""
    with workspace.warehouse() as warehouse:
        days = warehouse.query("SELECT min(date) AS first, max(date) AS last FROM core.processed_day").row(0)
        if days[0] is None:
            raise dg.Failure("no day has been processed yet: run `zoneledger run` first", allow_retries=False)
        return publish(warehouse, workspace.home, now, Window(days[0], days[1] + date.resolution))


def write_weekly_report(workspace: Workspace, week: str) -> Path:
    """`<home>/reports/<week>.html` from what is published (R4: the same tables as every reader)."""
    target = workspace.home / "reports" / f"{week}.html"
    target.parent.mkdir(parents=True, exist_ok=True)
    with open_published(workspace.home) as published:
        weekly_report(published.connection, week, target)
    return target


def iso_week(day: date) -> str:
    year, week, _ = day.isocalendar()
    return f"{year:04d}-W{week:02d}"


def publication_assets(mart_tables: list[dg.AssetKey]) -> list[dg.AssetsDefinition]:
    """The two assets that readers see, behind every mart table."""

    @dg.asset(
        key=PUBLISHED,
        deps=mart_tables,
        group_name="published",
        pool="warehouse",
        kinds={"parquet"},
        description="Every mart table as parquet, a manifest, and a read-only DuckDB snapshot; swapped in one step (R3).",
    )
    def published(workspace: dg.ResourceParam[Workspace]) -> dg.MaterializeResult:
        workspace.say("publishing")
        manifest = publish_mart(workspace, datetime.now(UTC))
        tables = manifest["tables"]
        return dg.MaterializeResult(
            metadata={"revision": manifest["revision"], "rows": sum(table["rows"] for table in tables.values())}
        )

    @dg.asset(
        key=WEEKLY_REPORT,
        deps=[PUBLISHED],
        group_name="published",
        partitions_def=weekly,
        backfill_policy=dg.BackfillPolicy.single_run(),
        kinds={"html"},
        description="One self-contained page for each ISO week.",
    )
    def weekly_reports(
        context: dg.AssetExecutionContext, workspace: dg.ResourceParam[Workspace]
    ) -> dg.MaterializeResult:
        window = window_of(context.partition_key_range, weekly)
        paths = []
        for monday in window.days[::7]:
            workspace.say(f"writing the report of {iso_week(monday)}")
            paths.append(write_weekly_report(workspace, iso_week(monday)))
        return dg.MaterializeResult(metadata={"reports": [str(path) for path in paths]})

    return [published, weekly_reports]
