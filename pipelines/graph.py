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
