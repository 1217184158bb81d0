"""Writes a simulated cluster to a folder: every raw input, the truth, and a configuration that is ready to run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from connectors.simulated import (
    billing_files,
    gpu_files,
    hubble_files,
    kubernetes_files,
    policy_files,
    truth,
    vpc_flow_log_files,
)
from connectors.simulated.scenario import build_world
from connectors.simulated.world import Scenario, World


def simulate(folder: Path, scenario: Scenario, say: Callable[[str], None]) -> World:
    """Write the scenario's inputs below `folder`; the same scenario writes the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    world = build_world(scenario)
    say(f"simulated {len(world.nodes)} nodes, {len(world.pods)} pods, {len(world.connections)} connections")
    kubernetes_files.write(world, folder / "kubernetes")
    policy_files.write(world, folder / "policies")
    say("wrote placement snapshots, watch events and policies")
    samples = gpu_files.write(world, folder / "prometheus")
    say(f"wrote {samples:,} GPU samples")
    counts = hubble_files.write(world, folder / "hubble")
    say(f"wrote {counts['records']:,} Hubble records")
    if scenario.vpc_flow_logs:
        vpc_flow_log_files.write(world, folder / "vpc-flow-logs")
        say("wrote VPC flow logs")
    bill = billing_files.write(world, folder / "billing")
    say(f"wrote {bill['lines']:,} bill lines")
    truth.write(world, folder / "truth", bill)
    (folder / "zoneledger.toml").write_text(configuration(scenario), encoding="utf-8")
    return world


def configuration(scenario: Scenario) -> str:
    """A zoneledger.toml that names every input."""
    sources = [
        ("aws-cur2", "billing"),
        ("kubernetes", "kubernetes"),
        ("policies", "policies"),
        ("hubble", "hubble"),
        ("prometheus", "prometheus"),
    ]
    if scenario.vpc_flow_logs:
        sources.insert(4, ("vpc-flow-logs", "vpc-flow-logs"))
    tables = "\n".join(
        f'[[source]]\nkind = "{kind}"\nname = "{kind}"\nlocation = "{place}/"\n' for kind, place in sources
    )
    return (
        f'# written by `zoneledger simulate` (seed {scenario.seed})\nhome = "data"\n\n[[cluster]]\nname = "{scenario.cluster}"\n'
        f'provider = "aws"\nregion = "{scenario.region}"\n\n{tables}'
    )
