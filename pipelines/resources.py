"""The workspace: one configuration's lake and warehouse, handed to assets as a resource. Loads nothing until it is used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path

from connectors.sink import TIME_COLUMN, Lake
from models.contracts import TABLES
from models.engine.warehouse import Warehouse, Window
from pipelines.settings import Settings, load_settings

# Staging tables whose files are read only where their times touch the window; a model may look this far around it.
# GPU samples are not among them: the cause of an idle hour rests on all that is known of its pod (G4, N7).
WINDOWED = (
    "staging.hubble_flow",
    "staging.hubble_control",
    "staging.vpc_flow",
    "staging.vpc_gap",
)
MARGIN = timedelta(days=1)


class Workspace:
    """What assets work on. `say` takes one line of progress in plain words."""

    def __init__(self, config: Path, home: Path | None = None, say: Callable[[str], None] | None = None) -> None:
        self._config = config
        self._home = home
        self.say: Callable[[str], None] = say or (lambda text: None)

    @cached_property
    def settings(self) -> Settings:
        return load_settings(self._config, self._home)

    @property
    def home(self) -> Path:
        return self.settings.home

    @property
    def lake(self) -> Lake:
        return Lake(self.home / "lake")

    @contextmanager
    def warehouse(self, window: Window | None = None) -> Iterator[Warehouse]:
        """The warehouse, opened for writing, with staging views over the lake files that `window` may need."""
        with Warehouse(self.home / "warehouse.duckdb", memory_limit=self.settings.memory_limit) as warehouse:
            warehouse.stage_lake(self.staging_files(window))
            yield warehouse

    def staging_files(self, window: Window | None) -> dict[str, list[Path]]:
        """Lake files of each staging table: all of them, or for flows and samples those near the window."""
        lake = self.lake
        files: dict[str, list[Path]] = {
            "staging.load": lake.load_files(),
            "staging.rejected_row": lake.rejected_files(),
            "staging.cluster": [self._cluster_file()],
        }
        for name, table in TABLES.items():
            if table.schema != "staging" or name in files:
                continue
            if window is not None and name in WINDOWED:
                start = datetime.combine(window.from_date, datetime.min.time()) - MARGIN
                end = datetime.combine(window.to_date, datetime.min.time()) + MARGIN
                files[name] = lake.held_files(name, from_utc=start, to_utc=end)
            else:
                files[name] = lake.held_files(name)
        return files

    def _cluster_file(self) -> Path:
        target = self.lake.root / "cluster" / "configured.parquet"
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_suffix(".partial")
        self.settings.cluster_frame().write_parquet(partial)
        partial.rename(target)
        return target


assert set(WINDOWED) <= set(TIME_COLUMN)  # noqa: S101 - a wrong entry would silently read every file
