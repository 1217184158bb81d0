"""Network policies of a simulated cluster, as the manifests that someone applied."""

from __future__ import annotations

from pathlib import Path

import yaml

from connectors.simulated.world import World


def write(world: World, folder: Path) -> int:
    """One YAML file with every policy; returns how many."""
    folder.mkdir(parents=True, exist_ok=True)
    text = yaml.safe_dump_all(world.policies, sort_keys=False)
    start = world.scenario.start
    (folder / f"policies-{start}T00-00-00Z.yaml").write_text(text, encoding="utf-8")
    return len(world.policies)
