"""Dagster's entry point: assets, blocking checks, schedules, and the order in which a window is run.

`dagster dev` loads `defs`; nothing is read before an asset runs. The configuration is the one that ZONELEDGER_CONFIG
names, else `zoneledger.toml`.
"""

from dataclasses import dataclass

import dagster as dg

from models.engine.warehouse import Window
from pipelines.assets.models import step_assets
from pipelines.assets.partitions import daily, keys_of, monthly, weekly
from pipelines.assets.publication import publication_assets
from pipelines.assets.staging import STAGING_ASSETS
from pipelines.checks import CHECKED_ASSET, warehouse_checks
from pipelines.graph import STEPS
from pipelines.resources import Workspace
from pipelines.schedules import SCHEDULES, SENSORS, run_last_days
from pipelines.settings import config_path

PARTITIONS = {"whole": None, "daily": daily, "monthly": monthly}


@dataclass(frozen=True)
class Stage:
    """Assets of one partitioning that a window run materialises together."""

    name: str
    partitions: dg.PartitionsDefinition | None
    assets: list[dg.AssetsDefinition]
    checks: list[dg.AssetChecksDefinition]


_MODEL_ASSETS = [(step, PARTITIONS[step.partitions], step_assets(step, PARTITIONS[step.partitions])) for step in STEPS]
_MART = [
    dg.AssetKey(output.split("."))
    for step in STEPS
    for model in step.models
    for output in model.outputs
    if output.startswith("mart.")
]
_PUBLISHED, _WEEKLY = publication_assets(list(dict.fromkeys(_MART)))
_CHECKS = warehouse_checks()

STAGES = [
    Stage("staging", None, list(STAGING_ASSETS), []),
    *(
        Stage(step.name, partitions, [asset], _CHECKS if CHECKED_ASSET in asset.keys else [])
        for step, partitions, asset in _MODEL_ASSETS
    ),
    Stage("publication", None, [_PUBLISHED], []),
    Stage("weekly reports", weekly, [_WEEKLY], []),
]


def keys_for(stage: Stage, window: Window) -> dg.PartitionKeyRange | None:
    """The partition keys of a stage that a window touches; None for a stage without partitions."""
    return keys_of(window, stage.partitions) if stage.partitions is not None else None


def definitions(workspace: Workspace) -> dg.Definitions:
    """The whole graph over one workspace."""
    return dg.Definitions(
        assets=[asset for stage in STAGES for asset in stage.assets],
        asset_checks=_CHECKS,
        jobs=[run_last_days],
        schedules=SCHEDULES,
        sensors=SENSORS,
        resources={"workspace": workspace},
        executor=dg.in_process_executor,
    )


defs = definitions(Workspace(config_path(None)))
