"""dcgm-exporter series of a simulated cluster: Prometheus query_range answers and OpenMetrics dumps.

Samples lie on a fixed grid. Labels are those of dcgm-exporter behind a default ServiceMonitor (`honorLabels: false`):
the holder's pod is in `exported_pod`, and `pod` is the exporter itself. One node is scraped by two replicas.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from pathlib import Path

from connectors.simulated.world import SimGpuSpan, SimNode, World

SECOND = 1_000_000_000
CHUNK = 6 * 3600 * SECOND
# metric -> (attribute of the span, noise, decimals)
METRICS = {
    "DCGM_FI_DEV_GPU_UTIL": ("gpu_util", 0.0, 0),
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": ("engine_active", 0.02, 4),
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": ("tensor_active", 0.01, 4),
    "DCGM_FI_PROF_DRAM_ACTIVE": ("dram_active", 0.005, 4),
    "DCGM_FI_DEV_POWER_USAGE": ("power_watts", 3.0, 2),
}
FREE = {"gpu_util": 0.0, "engine_active": 0.0, "tensor_active": 0.0, "dram_active": 0.0, "power_watts": 54.0}
Series = dict[tuple[tuple[str, str], ...], list[tuple[int, float]]]


def write(world: World, folder: Path) -> int:
    """Write every node's series; returns the number of samples."""
    folder.mkdir(parents=True, exist_ok=True)
    spans: dict[str, list[SimGpuSpan]] = defaultdict(list)
    for span in world.gpu_spans:
        spans[span.gpu_uuid].append(span)
    for listed in spans.values():
        listed.sort(key=lambda s: s.from_ns)
    nodes = [node for node in world.nodes if node.gpus]
    samples = 0
    for start in range(world.from_ns, world.to_ns, CHUNK):
        for metric in METRICS:
            for position, node in enumerate(nodes):
                rng = random.Random(f"{world.scenario.seed}-{metric}-{node.name}-{start}")
                series = _series(
                    world, node, metric, spans, start, min(start + CHUNK, world.to_ns), rng, replicas=position == 0
                )
                if not series:
                    continue
                samples += sum(len(values) for values in series.values())
                stem = f"{metric}-{node.name}-{start // SECOND}"
                if position % 3 == 2:
                    (folder / f"{stem}.om").write_text(_open_metrics(metric, series), encoding="utf-8")
                else:
                    (folder / f"{stem}.json").write_text(_query_range(metric, series), encoding="utf-8")
    return samples


def _series(
    world: World, node: SimNode, metric: str, spans: dict[str, list[SimGpuSpan]], start: int, end: int, rng: random.Random, *,
    replicas: bool,
) -> Series:  # fmt: skip
    """Samples of one metric of a node by label set: a change of pod is a change of series."""
    attribute, noise, decimals = METRICS[metric]
    step = world.scenario.sample_seconds * SECOND
    low, high = max(start, node.joined_ns), min(end, node.deleted_ns or end)
    series: Series = defaultdict(list)
    for number, uuid in enumerate(node.gpu_uuids):
        listed, at = spans.get(uuid, []), 0
        for moment in range(-(-low // step) * step, high, step):
            while at < len(listed) and listed[at].to_ns <= moment:
                at += 1
            span = listed[at] if at < len(listed) and listed[at].from_ns <= moment else None
            if span is not None and not span.observed:
                continue
            value = FREE[attribute] if span is None else getattr(span, attribute)
            if noise and value > 4 * noise:
                value += rng.uniform(-noise, noise)
            series[_labels(metric, node, number, uuid, span)].append((moment, round(value, decimals)))
    if replicas:
        doubled: Series = {}
        for labels, values in series.items():
            for replica in ("a", "b"):
                doubled[(*labels, ("prometheus_replica", replica))] = values
        return doubled
    return series


def _labels(metric: str, node: SimNode, number: int, uuid: str, span: SimGpuSpan | None) -> tuple[tuple[str, str], ...]:
    labels = {
        "__name__": metric, "gpu": str(number), "UUID": uuid, "device": f"nvidia{number}", "modelName": str(node.gpu_model),
        "Hostname": node.name, "instance": f"{node.ip}:9400", "job": "dcgm-exporter", "container": "nvidia-dcgm-exporter",
        "namespace": "gpu-operator", "pod": f"dcgm-exporter-{node.name}",
    }  # fmt: skip
    if span is not None and span.pod is not None:
        labels |= {
            "exported_container": "main",
            "exported_namespace": span.pod.namespace,
            "exported_pod": span.pod.name,
        }
    return tuple(labels.items())


def _query_range(metric: str, series: Series) -> str:
    result = [
        {"metric": dict(labels), "values": [[moment / SECOND, str(value)] for moment, value in values]}
        for labels, values in series.items()
    ]
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}}, separators=(",", ":"))


def _open_metrics(metric: str, series: Series) -> str:
    lines = [f"# TYPE {metric} gauge"]
    for labels, values in series.items():
        shown = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels if name != "__name__")
        lines.extend(f"{metric}{{{shown}}} {value} {moment / SECOND:.3f}" for moment, value in values)
    return "\n".join([*lines, "# EOF", ""])


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
