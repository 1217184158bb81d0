"""The order of the models: steps of one partitioning each, in the order in which they must run. One list, run by Dagster.

A step's window is its partitions: whole days, or whole months for what belongs to a billing period.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

from models import attribution, bill, coverage, findings, gpu_states, placement, traffic
from models.engine.run import Model

ALL_MODELS: dict[str, Model] = {
    model.name: model
    for model in chain(
        placement.MODELS,
        bill.MODELS,
        traffic.MODELS,
        gpu_states.MODELS,
        attribution.MODELS,
        findings.MODELS,
        coverage.MODELS,
    )
}


@dataclass(frozen=True)
class Step:
    """Models that share a partitioning: `whole` (rebuilt), `daily`, or `monthly`."""

    name: str
    partitions: str
    models: tuple[Model, ...]


def _step(name: str, partitions: str, *models: str) -> Step:
    return Step(name, partitions, tuple(ALL_MODELS[model] for model in models))


# Placement first: everything is resolved against it. The bill's lines then need nodes; states need billed hours; the
# blocked and slow findings need states, causes need findings, what paid for a state needs its cause, and money comes last.
STEPS = (
    _step("placement", "whole", "placement"),
    _step("bill_lines", "monthly", "bill_line"),
    _step(
        "traffic_gpus_and_findings",
        "daily",
        "processed_days",
        "node_bill_hourly",
        "traffic",
        "transfer_cost",
        "gpu_states",
        "findings",
        "gpu_causes",
        "gpu_cost_line",
        "finding_money",
        "fact_zone_traffic",
        "fact_finding",
    ),
    _step("ledger", "monthly", "ledger", "bill_marts", "reconciliation"),
    _step("dimensions", "whole", "coverage", "dimensions"),
)
