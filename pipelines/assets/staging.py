"""Staging assets: one for each family of sources. Each loads the objects that are not in the lake yet, by digest."""

from importlib import import_module

import dagster as dg

from connectors.errors import ConnectorError
from connectors.sink import Lake
from models.contracts import TABLES
from pipelines.resources import Workspace
from pipelines.settings import SOURCE_KINDS

# asset -> (kinds of source that feed it, tables that it fills)
FAMILIES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "bills": (("aws-cur2", "focus"), ("staging.bill_delivery", "staging.bill_line")),
    "placement_snapshots": (
        ("kubernetes",),
        (
            "staging.snapshot",
            "staging.pod_observation",
            "staging.node_observation",
            "staging.workload_observation",
            "staging.service_observation",
        ),
    ),
    "network_policies": (("policies",), ("staging.policy_observation",)),
    "hubble_flows": (("hubble",), ("staging.hubble_flow", "staging.hubble_control")),
    "vpc_flow_logs": (("vpc-flow-logs",), ("staging.vpc_flow", "staging.vpc_gap")),
    "gpu_samples": (("prometheus", "gpu-activity-csv"), ("staging.gpu_sample",)),
}


def table_spec(name: str, deps: tuple[str, ...] = ()) -> dg.AssetSpec:
    """The asset of one table: key, group, description and column schema from its contract."""
    table = TABLES[name]
    schema = dg.TableSchema(
        columns=[
            dg.TableColumn(
                column.name,
                column.type,
                description=column.meaning or None,
                constraints=dg.TableColumnConstraints(nullable=not column.required),
            )
            for column in table.columns
        ]
    )
    return dg.AssetSpec(
        dg.AssetKey(name.split(".")),
        deps=[dg.AssetKey(dep.split(".")) for dep in deps],
        description=f"A row is {table.grain}.",
        group_name=table.schema,
        metadata={"dagster/column_schema": schema},
        kinds={"parquet" if table.schema == "staging" else "duckdb"},
    )


def stage_kinds(workspace: Workspace, kinds: tuple[str, ...]) -> int:
    """Load every configured source of these kinds; returns how many objects are new."""
    lake: Lake = workspace.lake
    before = lake.loads().height
    for source in workspace.settings.sources:
        if source.kind in kinds:
            workspace.say(f"reading {source.kind} from {source.name}")
            connector = import_module(f"connectors.{SOURCE_KINDS[source.kind][0]}")
            connector.stage(source, lake, workspace.say)
    return lake.loads().height - before


def _family_asset(name: str, kinds: tuple[str, ...], tables: tuple[str, ...]) -> dg.AssetsDefinition:
    @dg.multi_asset(
        name=name,
        specs=[table_spec(table) for table in tables],
        pool="lake",
        can_subset=False,
        retry_policy=dg.RetryPolicy(max_retries=0),
    )
    def load(context: dg.AssetExecutionContext, workspace: dg.ResourceParam[Workspace]):  # type: ignore[no-untyped-def]
        try:
            stage_kinds(workspace, kinds)
        except ConnectorError as error:
            raise dg.Failure(description=str(error), allow_retries=error.transient) from error
        loads = workspace.lake.loads()
        for table in tables:
            rows = loads.filter(loads["table_name"] == table)
            yield dg.MaterializeResult(
                asset_key=dg.AssetKey(table.split(".")),
                metadata={
                    "objects": rows.height,
                    "rows_kept": int(rows["rows_kept"].sum()),
                    "rows_rejected": int(rows["rows_rejected"].sum()),
                    "rows_duplicate": int(rows["rows_duplicate"].sum()),
                    "rows_control": int(rows["rows_control"].sum()),
                },
            )

    return load


STAGING_ASSETS = [_family_asset(name, *family) for name, family in FAMILIES.items()]
