"""Model assets: each step of the graph is one multi-asset that fills its tables for the window of its partitions."""

from datetime import date

import dagster as dg

from models.engine.run import Model
from models.engine.warehouse import Window
from pipelines.assets.partitions import window_of
from pipelines.assets.staging import table_spec
from pipelines.graph import STEPS, Step
from pipelines.resources import Workspace

# what a step without partitions is given: its models rebuild their tables whole
EVERYTHING = Window(date(1970, 1, 1), date(2200, 1, 1))


def _dependencies(models: tuple[Model, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(outputs, inputs from other steps) of a step's models."""
    outputs = tuple(dict.fromkeys(output for model in models for output in model.outputs))
    inputs = tuple(dict.fromkeys(name for model in models for name in model.inputs if name not in outputs))
    return outputs, inputs


def step_assets(step: Step, partitions: dg.PartitionsDefinition | None) -> dg.AssetsDefinition:
    """One multi-asset for a step: its tables, depending on the tables that its models read."""
    models = step.models
    outputs, inputs = _dependencies(models)
    known = {output for step in STEPS for model in step.models for output in model.outputs}
    deps = tuple(dep for dep in inputs if dep in known or dep.startswith("staging."))
    deps = tuple(dep for dep in deps if dep not in ("staging.load", "staging.rejected_row", "staging.cluster"))

    @dg.multi_asset(
        name=step.name,
        specs=[table_spec(output, deps) for output in outputs],
        partitions_def=partitions,
        backfill_policy=dg.BackfillPolicy.single_run() if partitions else None,
        pool="warehouse",
        can_subset=False,
    )
    def build(context: dg.AssetExecutionContext, workspace: dg.ResourceParam[Workspace]):  # type: ignore[no-untyped-def]
        window = window_of(context.partition_key_range, partitions) if partitions else None
        run_models(workspace, models, window)
        for output in outputs:
            yield dg.MaterializeResult(asset_key=dg.AssetKey(output.split(".")))

    return build


def run_models(workspace: Workspace, models: tuple[Model, ...], window: Window | None) -> None:
    """Run models in order over one opened warehouse. A step without window gets the span of what is known."""
    with workspace.warehouse(window) as warehouse:
        for model in models:
            workspace.say(f"building {model.name.replace('_', ' ')}")
            model.build(warehouse, window or EVERYTHING, workspace.settings.parameters)
