"""Thresholds and choices of the rules (models/README.md), with their defaults. Configuration may override each."""

from __future__ import annotations

from dataclasses import dataclass, field

SECOND_NS = 1_000_000_000
MINUTE_NS = 60 * SECOND_NS
HOUR_NS = 3600 * SECOND_NS
DAY_NS = 24 * HOUR_NS


@dataclass(frozen=True)
class Parameters:
    """Every number that a rule leaves to configuration. Durations in seconds, ratios 0 to 1."""

    clock_skew_seconds: int = 5
    default_snapshot_interval_seconds: int = 3600
    run_gap_seconds: int = 600
    host_inferred: bool = True
    idle_threshold: float = 0.05
    idle_min_seconds: int = 300
    idle_gap_seconds: int = 300
    sample_interval_min_seconds: int = 10
    sample_interval_max_seconds: int = 300
    pause_max_seconds: int = 1800
    release_min_seconds: int = 900
    gang_batch_jobs: bool = False
    aws_gigabyte_bytes: int = 1_000_000_000
    bill_settle_hours: int = 72
    collapse_ratio: float = 0.5
    blocked_min_attempts: int = 3
    blocked_min_seconds: int = 120
    blocked_gap_seconds: int = 900
    blocked_startup_seconds: int = 60
    blocked_quiet_seconds: int = 1800
    slow_window_seconds: int = 1800
    slow_min_bytes: int = 1_000_000_000
    slow_work_ratio: float = 0.7
    stalled_min_seconds: int = 600
    split_min_seconds: int = 600
    waiting_min_seconds: int = 900
    waiting_min_gpu_hours: float = 1.0
    unreleased_min_gpu_hours: float = 1.0
    billed_floor: dict[str, float] = field(default_factory=lambda: {"USD": 1.0})
    billed_ratio: float = 0.01
    # label pairs by which the user names jobs that no framework names: (job label, role label); they come first
    plain_job_labels: tuple[tuple[str, str], ...] = ()
    # pod labels whose value declares a zone (P4: kept apart from the zone that the pod runs in)
    declared_zone_labels: tuple[str, ...] = ("zone", "topology.zone")
    system_namespaces: tuple[str, ...] = (
        "kube-system",
        "kube-public",
        "kube-node-lease",
        "cilium",
        "gpu-operator",
        "monitoring",
    )
