"""`zoneledger verify`: simulated clusters through the whole pipeline, every number beside the truth.

For each seed: inter-AZ cost per job with VPC flow logs (at most 1 % off), the same with flow shares only (the error, beside
the confidence that the rows state), GPU-hours by job and state (at most 1 % off), findings (each planted failure with its
kind, nothing on healthy jobs), and conservation (exact).
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import polars as pl

from connectors.simulated.simulate import simulate
from connectors.simulated.world import Scenario
from models.engine.warehouse import Window
from pipelines.resources import Workspace
from pipelines.run import run_stages
from reports.publish import open_published

Say = Callable[[str], None]
LIMIT = 0.01
_WITHOUT = 'kind = "{kind}"'
WITHOUT_BYTES = ("vpc-flow-logs", "prometheus")


@dataclass(frozen=True)
class Verdict:
    """How far one simulated cluster's numbers are from the truth; errors are shares of the total."""

    seed: int
    transfer_error: float
    flow_share_error: float
    flow_share_confidence: str
    gpu_error: float
    planted: int
    found: int
    false_findings: tuple[str, ...]
    missing: tuple[str, ...]
    difference: Decimal

    @property
    def good(self) -> bool:
        return (
            self.transfer_error <= LIMIT
            and self.gpu_error <= LIMIT
            and not self.missing
            and not self.false_findings
            and self.difference == 0
        )

    def line(self) -> str:
        return (
            f"{self.seed:>4}  {self.transfer_error:>9.3%}  {self.flow_share_error:>9.1%} ({self.flow_share_confidence})"
            f"  {self.gpu_error:>9.3%}  {self.found}/{self.planted}  {len(self.false_findings):>5}  {self.difference}"
        )


HEADER = "seed   transfer  flow shares (confidence)  GPU-hours  found  false  ledger - bill"


def verify_seeds(seeds: Iterable[int], *, days: int, nodes: int, folder: Path | None, say: Say) -> int:
    """Verify one planted and one healthy cluster a seed; prints a line each; 1 when any number is off."""
    verdicts = []
    with tempfile.TemporaryDirectory() if folder is None else nullcontext(str(folder)) as where:
        print(HEADER)
        for seed in seeds:
            for planted in (True, False):
                scenario = Scenario(seed=seed, days=days, nodes=nodes, planted=planted, snapshot_minutes=30)
                verdict = verify_scenario(scenario, Path(where) / f"{seed}-{'planted' if planted else 'healthy'}", say)
                verdicts.append(verdict)
                print(verdict.line() + ("" if planted else "  healthy"), flush=True)
                for text in (*verdict.missing, *verdict.false_findings):
                    print(f"      {text}")
    bad = [verdict for verdict in verdicts if not verdict.good]
    worst = max(v.transfer_error for v in verdicts), max(v.gpu_error for v in verdicts)
    print(
        f"{len(verdicts)} clusters: worst inter-AZ error {worst[0]:.3%}, worst GPU-hour error {worst[1]:.3%},"
        f" {sum(v.found for v in verdicts)} of {sum(v.planted for v in verdicts)} planted failures found,"
        f" {sum(len(v.false_findings) for v in verdicts)} false findings, {len(bad)} clusters off"
    )
    return 1 if bad else 0


def verify_scenario(scenario: Scenario, folder: Path, say: Say) -> Verdict:
    """Simulate, run with and without byte counts, compare with the truth."""
    inputs = folder / "inputs"
    simulate(inputs, scenario, say)
    truth = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in (inputs / "truth").glob("*.json")}
    window = Window(scenario.start, scenario.start + timedelta(days=scenario.days))
    _run(inputs / "zoneledger.toml", folder / "with-bytes", window, say)
    _reuse_lake(folder / "with-bytes", folder / "flow-shares", WITHOUT_BYTES)
    shares = inputs / "flow-shares-only.toml"
    shares.write_text(_without(inputs / "zoneledger.toml", WITHOUT_BYTES), encoding="utf-8")
    _run(shares, folder / "flow-shares", window, say)
    with open_published(folder / "with-bytes") as published:
        con = published.connection
        missing, false = _findings(con, truth)
        transfer_error, gpu_error = _transfer_error(con, truth), _gpu_error(con, truth)
        difference = con.execute("SELECT coalesce(sum(abs(difference)), 0) FROM mart.fact_reconciliation").fetchall()[
            0
        ][0]
    with open_published(folder / "flow-shares") as published:
        flow_error = _transfer_error(published.connection, truth)
        confidence = published.connection.execute(
            "SELECT coalesce(string_agg(DISTINCT basis, ', '), 'none') FROM mart.fact_transfer_cost WHERE job_key <> -1"
        ).fetchall()[0][0]
    planted = len(truth["findings"])
    return Verdict(
        scenario.seed, transfer_error, flow_error, confidence, gpu_error, planted, planted - len(missing), false, missing,
        Decimal(difference),
    )  # fmt: skip


def _run(config: Path, home: Path, window: Window, say: Say) -> None:
    if run_stages(Workspace(config, home, say), window) != 0:
        raise RuntimeError(f"the run of {config} failed: see above")


def _reuse_lake(done: Path, home: Path, kinds: tuple[str, ...]) -> None:
    """What was read once need not be read again: the other home starts with the lake, but for some kinds of source."""
    for name in ("lake", "landing"):
        shutil.copytree(done / name, home / name)
    for file in (home / "lake" / "load").glob("*.parquet"):
        if pl.read_parquet(file, columns=["kind"])["kind"].is_in(kinds).any():
            file.unlink()


def _without(config: Path, kinds: tuple[str, ...]) -> str:
    """A configuration without the sources of some kinds."""
    blocks = config.read_text(encoding="utf-8").split("[[source]]")
    kept = [block for block in blocks[1:] if not any(_WITHOUT.format(kind=kind) in block for kind in kinds)]
    return "[[source]]".join([blocks[0], *kept])


def _transfer_error(con: duckdb.DuckDBPyConnection, truth: dict[str, Any]) -> float:
    """Sum over jobs of |attributed - true| over the true total of jobs."""
    found = dict(
        con.execute(
            "SELECT j.run, sum(t.billed_cost) FROM mart.fact_transfer_cost AS t JOIN mart.dim_job AS j USING (job_key)"
            " WHERE t.job_key <> -1 GROUP BY ALL"
        ).fetchall()
    )
    true: dict[str, Decimal] = {}
    for row in truth["transfer_cost"]:
        if row["job_uid"]:
            true[row["job_uid"]] = true.get(row["job_uid"], Decimal(0)) + Decimal(row["cost_usd"])
    total = sum(true.values(), Decimal(0))
    off = sum((abs(found.get(job, Decimal(0)) - true.get(job, Decimal(0))) for job in {*found, *true}), Decimal(0))
    return float(off / total) if total else float(off)


def _gpu_error(con: duckdb.DuckDBPyConnection, truth: dict[str, Any]) -> float:
    """Sum over jobs and states of |measured - true| GPU-hours over the total."""
    found = {
        (run or "", state): hours
        for run, state, hours in con.execute(
            "SELECT j.run, g.state, sum(g.gpu_hours) FROM mart.fact_gpu_hours AS g JOIN mart.dim_job AS j USING (job_key)"
            " GROUP BY ALL"
        ).fetchall()
    }
    true = {(row["job_uid"], row["state"]): row["gpu_hours"] for row in truth["gpu_hours"]}
    total = sum(true.values())
    return float(sum(abs(found.get(key, 0.0) - true.get(key, 0.0)) for key in {*found, *true}) / total)


def _findings(con: duckdb.DuckDBPyConnection, truth: dict[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(planted failures that were not found with their kind, findings on jobs where nothing was planted)."""
    found = {
        (kind, run)
        for kind, run in con.execute(
            "SELECT f.kind, j.run FROM mart.fact_finding AS f JOIN mart.dim_job AS j USING (job_key)"
            " WHERE f.opened_utc IS NOT NULL AND f.confidence <> 'insufficient'"
        ).fetchall()
    }
    names = {job["uid"]: f"{job['namespace']}/{job['name']}" for job in truth["jobs"]}
    planted = {(row["kind"], row["job_uid"]) for row in truth["findings"]}
    ill = {uid for _, uid in planted}
    missing = tuple(f"not found: {kind} on {names[uid]}" for kind, uid in sorted(planted - found))
    false = tuple(f"false: {kind} on {names.get(run, run)}" for kind, run in sorted(found) if run not in ill)
    return missing, false
