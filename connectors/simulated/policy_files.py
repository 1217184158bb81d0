"""Network policies of a simulated cluster, as the manifests that someone applied."""

from __future__ import annotations

from pathlib import Path

import yaml

from connectors.simulated.world import World


class _Plain(yaml.SafeDumper):
    """YAML as people write manifests: without aliases."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def write(world: World, folder: Path) -> int:
    """One YAML file with every policy; returns how many."""
    folder.mkdir(parents=True, exist_ok=True)
    text = yaml.dump_all(world.policies, Dumper=_Plain, sort_keys=False)
    start = world.scenario.start
    (folder / f"policies-{start}T00-00-00Z.yaml").write_text(text, encoding="utf-8")
    return len(world.policies)
