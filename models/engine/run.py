"""The order of the models: each step says what it reads, what it fills, and how. Dagster and tests run this list."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from models.engine.warehouse import Warehouse, Window
from models.parameters import Parameters


@dataclass(frozen=True)
class Model:
    """One step: fills `outputs` from `inputs` for a window. `build` is idempotent (N7)."""

    name: str
    outputs: tuple[str, ...]
    inputs: tuple[str, ...]
    build: Callable[[Warehouse, Window, Parameters], None]
    description: str = ""
