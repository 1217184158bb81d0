"""A warehouse that holds the fabricated mart, and its publication."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime
from pathlib import Path

import polars as pl
import pytest

from models.engine.warehouse import Warehouse, Window
from reports.publish import publish
from tests.reports import mart_sample

NOW = datetime(2026, 11, 25, 6, 0)
WINDOW = Window(date(2026, 11, 9), date(2026, 11, 25))


@pytest.fixture(scope="session")
def sample_frames() -> dict[str, pl.DataFrame]:
    """The fabricated mart's tables; frames don't change, so one set serves every test."""
    return mart_sample.frames()


@pytest.fixture
def mart(sample_frames: dict[str, pl.DataFrame]) -> Iterator[Warehouse]:
    """The fabricated mart, free to change."""
    with Warehouse() as opened:
        for name, frame in sample_frames.items():
            opened.append(name, frame)
        yield opened


@pytest.fixture(scope="session")
def sample(sample_frames: dict[str, pl.DataFrame]) -> Iterator[Warehouse]:
    """The fabricated mart, shared by tests that only read it."""
    with Warehouse() as opened:
        for name, frame in sample_frames.items():
            opened.append(name, frame)
        yield opened


@pytest.fixture(scope="session")
def published_home(tmp_path_factory: pytest.TempPathFactory, sample: Warehouse) -> Path:
    """The home of a publication of the fabricated mart; not to be changed."""
    home = tmp_path_factory.mktemp("home")
    publish(sample, home, NOW, WINDOW)
    return home
