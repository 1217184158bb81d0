"""Fixtures that every test may use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from models.engine.warehouse import Warehouse

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture
def warehouse() -> Iterator[Warehouse]:
    """An empty in-memory warehouse with every contract table, staging included."""
    with Warehouse() as opened:
        opened.stage_frames()
        yield opened


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real files beside the checkout; tests that need them are skipped where they are absent."""
    folder = REPOSITORY.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("no ../shared/data beside this checkout")
    return folder
