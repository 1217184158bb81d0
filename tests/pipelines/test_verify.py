"""Simulated clusters through the whole pipeline beside their truth: what is published is what happened (F6, N6, A1, G1)."""

from __future__ import annotations

from pathlib import Path

from connectors.simulated.world import Scenario
from pipelines.verify import LIMIT, verify_scenario


def test_a_planted_cluster_is_told_as_it_is(tmp_path: Path) -> None:
    """A1, G1, F1, N6: cost per job and GPU-hours by state within 1 %, each planted failure by its kind, conservation exact."""
    verdict = verify_scenario(Scenario(seed=2, days=1, snapshot_minutes=20), tmp_path, lambda text: None)
    assert verdict.missing == () and verdict.found == 5
    assert verdict.false_findings == ()
    assert verdict.transfer_error <= LIMIT
    assert verdict.gpu_error <= LIMIT
    assert verdict.difference == 0
    assert verdict.flow_share_confidence == "flow_share"
    assert verdict.flow_share_error > verdict.transfer_error


def test_f6_on_a_healthy_cluster_nothing_opens(tmp_path: Path) -> None:
    verdict = verify_scenario(Scenario(seed=2, days=1, snapshot_minutes=20, planted=False), tmp_path, lambda text: None)
    assert verdict.false_findings == () and verdict.planted == 0
    assert verdict.good
