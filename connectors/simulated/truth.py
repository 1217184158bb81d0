"""What is true of a simulated cluster: GPU-hours by job and state, inter-AZ cost by job, and what must be found."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from connectors.simulated.world import SimGpuSpan, World

SECOND = 1_000_000_000
HOUR = 3600 * SECOND


def gpu_hours(world: World) -> list[dict[str, object]]:
    """[{job_uid, state, gpu_hours}] by the rules of G1 to G3, from what each GPU did.

    Activity splits working time into busy and underused. A GPU of which nothing was observed is unmeasured once its
    last sample has been held for two intervals. What no pod held of a node's life is unallocated.
    """
    totals: dict[tuple[str, str], float] = defaultdict(float)
    held: dict[str, float] = defaultdict(float)
    for span in world.gpu_spans:
        hours = (min(span.to_ns, world.to_ns) - max(span.from_ns, world.from_ns)) / HOUR
        if hours <= 0 or span.pod is None:
            continue
        job = span.pod.job.uid if span.pod.job else ""
        held[span.gpu_uuid] += hours
        for state, share in _shares(world, span, hours):
            totals[(job, state)] += share
    for node in world.nodes:
        low, high = max(node.created_ns, world.from_ns), min(node.deleted_ns or world.to_ns, world.to_ns)
        for uuid in node.gpu_uuids:
            totals[("", "unallocated")] += max(0.0, (high - low) / HOUR - held[uuid])
    return [{"job_uid": job, "state": state, "gpu_hours": hours} for (job, state), hours in sorted(totals.items())]


def _shares(world: World, span: SimGpuSpan, hours: float) -> list[tuple[str, float]]:
    if not span.observed:
        carried = min(
            hours, world.scenario.sample_seconds / 3600
        )  # two intervals after the last sample, one of them seen
        return [("unmeasured", hours - carried), *_worked(span, carried)]
    return [(span.state, hours)] if span.state != "busy" else _worked(span, hours)


def _worked(span: SimGpuSpan, hours: float) -> list[tuple[str, float]]:
    return [("busy", hours * span.engine_active), ("underused", hours * (1 - span.engine_active))]


def write(world: World, folder: Path, bill: dict[str, Any]) -> None:
    """Write truth/*.json."""
    folder.mkdir(parents=True, exist_ok=True)
    jobs = [
        {"uid": j.uid, "kind": j.kind, "namespace": j.namespace, "name": j.name, "planted": j.planted}
        for j in world.jobs
    ]
    findings = [{"kind": kind, "job_uid": uid} for kind, uid in world.expected_findings]
    for name, content in {
        "jobs": jobs,
        "gpu_hours": gpu_hours(world),
        "findings": findings,
        "transfer_cost": bill["transfer"],
        "bill": {"billed_usd": bill["billed"], "lines": bill["lines"]},
    }.items():
        (folder / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
