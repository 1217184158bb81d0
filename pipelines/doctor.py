"""`zoneledger doctor`: what is configured, found, fresh and missing, and what each gap costs in the numbers."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import polars as pl

from connectors.errors import ConnectorError
from connectors.objects import Source, list_objects
from connectors.sink import Lake
from pipelines.settings import Settings, load_settings

# family -> what the numbers lack without it
WITHOUT = {
    ("aws-cur2", "focus"): "no money at all: GPU-hours and traffic only",
    ("kubernetes",): "no placement: all GPU time is unmeasured, nothing reaches a job",
    ("prometheus", "gpu-activity-csv"): "no GPU activity: held GPU time is unmeasured, never idle",
    ("vpc-flow-logs",): "no bytes: inter-AZ cost is shared by flow counts, confidence partial",
    ("hubble",): "no connections and no drops: `blocked` can't be seen",
    ("policies",): "remedies can't say whether a policy keys on a label",
}


def examine(config: Path, home: Path | None) -> int:
    """Print one line a source and one a gap; exit code 1 when a source can't be read."""
    settings = load_settings(config, home)
    print(f"configuration {settings.path}")
    print(f"home          {settings.home}")
    failed = [not _source(source, Lake(settings.home / "lake")) for source in settings.sources]
    _gaps(settings)
    return 1 if any(failed) else 0


def _source(source: Source, lake: Lake) -> bool:
    try:
        objects = list_objects(source)
    except (ConnectorError, OSError) as error:
        print(f"BAD   {source.name} ({source.kind}): {error}")
        return False
    if not objects:
        print(
            f"BAD   {source.name} ({source.kind}): no files in {source.location}\n  fix:   put them there, or correct `location`"
        )
        return False
    newest = datetime.fromtimestamp(max(landed.modified_ns for landed in objects) / 1e9, UTC)
    loads = lake.loads().filter(pl.col("source") == source.name)
    staged = set(loads["object_id"])
    waiting = sum(landed.object_id not in staged for landed in objects)
    print(
        f"ok    {source.name} ({source.kind}): {len(objects)} files, newest {newest:%Y-%m-%d %H:%M} UTC,"
        f" {waiting} not loaded yet, {int(loads['rows_rejected'].sum())} rows rejected so far"
    )
    for warning in loads["warning"].drop_nulls().unique().sort():
        print(f"      note: {warning}")
    return True


def _gaps(settings: Settings) -> None:
    kinds = {source.kind for source in settings.sources}
    for family, cost in WITHOUT.items():
        if kinds.isdisjoint(family):
            print(f"gap   no source of kind {' or '.join(family)}: {cost}")
