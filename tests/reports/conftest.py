"""A warehouse that holds the fabricated mart, and its publication."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime
from pathlib import Path

import pytest

from models.engine.warehouse import Warehouse, Window
from reports.publish import publish
from tests.reports import mart_sample

NOW = datetime(2026, 11, 25, 6, 0)
WINDOW = Window(date(2026, 11, 9), date(2026, 11, 25))


@pytest.fixture
def mart() -> Iterator[Warehouse]:
    """The fabricated mart, free to change."""
    with Warehouse() as opened:
        for name, frame in mart_sample.frames().items():
            opened.append(name, frame)
        yield opened


@pytest.fixture(scope="session")
def published_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home of a publication of the fabricated mart; not to be changed."""
    home = tmp_path_factory.mktemp("home")
    with Warehouse() as opened:
        for name, frame in mart_sample.frames().items():
            opened.append(name, frame)
        publish(opened, home, NOW, WINDOW)
    return home
