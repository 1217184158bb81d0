"""`zoneledger demo`: a simulated cluster with planted failures, end to end, without credentials."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from connectors.simulated.simulate import simulate
from connectors.simulated.world import Scenario
from models.engine.warehouse import Window
from pipelines.run import run_window
from pipelines.settings import SettingsError

MARKER = ".zoneledger-demo"


def run_demo(folder: Path, seed: int, say: Callable[[str], None]) -> int:
    """Simulate into `folder/inputs`, run the pipeline into `folder/data`, and name what was found."""
    scenario = Scenario(seed=seed, days=1)
    inputs, home = folder / "inputs", folder / "data"
    _fresh(folder)
    say(f"simulating {scenario.nodes} nodes for {scenario.days} days (seed {seed})")
    simulate(inputs, scenario, say)
    window = Window(scenario.start, scenario.start + timedelta(days=scenario.days))
    code = run_window(inputs / "zoneledger.toml", home, window, say)
    if code == 0:
        print(f"raw inputs         {inputs} (the truth lies beside them in {inputs / 'truth'})")
        print(f"ask about a job    zoneledger explain --config {inputs / 'zoneledger.toml'} --home {home} JOB")
    return code


def _fresh(folder: Path) -> None:
    """Empty the demo's own folder; a folder that the demo did not make is left alone."""
    if folder.exists():
        if any(folder.iterdir()) and not (folder / MARKER).is_file():
            raise SettingsError(f"{folder} holds something else\n  fix:   zoneledger demo --dir SOMEWHERE-ELSE")
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    (folder / MARKER).write_text("made by `zoneledger demo`; emptied when it runs again\n", encoding="utf-8")
