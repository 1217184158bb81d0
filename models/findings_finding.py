"""What every kind of finding shares: its form, its evidence, spans of time, and what is known of a run.

Spans are lists of half-open `(from_ns, to_ns)` pairs, sorted and disjoint (N1).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import polars as pl

from models.contracts import TABLES
from models.engine.warehouse import Warehouse
from models.parameters import DAY_NS, SECOND_NS

Span = tuple[int, int]
FOREVER_NS = 2**62
MEMBER_ROLES = ("coordinator", "worker")
MEMBERS_SQL = "('coordinator', 'worker')"


@dataclass(frozen=True)
class Evidence:
    """Counted rows: `query` returns exactly `rows` rows of the warehouse."""

    what: str
    rows: int
    query: str


@dataclass
class Finding:
    """One finding. `spans` are the times in which it was open, from first evidence; `closed_ns` None: still open."""

    kind: str
    cluster: str
    job_key: int
    first_evidence_ns: int
    opened_ns: int
    closed_ns: int | None
    spans: list[Span]
    story: str
    role: str | None = None
    peer_role: str | None = None
    port: str | None = None
    confidence: str = "complete"
    evidence: list[Evidence] = field(default_factory=list)
    counter_evidence: list[Evidence] = field(default_factory=list)
    remedy: str | None = None

    @property
    def finding_id(self) -> str:
        """Hex of the 52-bit stable key of what tells findings apart (kind, run, roles, port class)."""
        parts = (self.kind, str(self.job_key), self.role or "", self.peer_role or "", self.port or "")
        return hashlib.md5(chr(31).join(parts).encode(), usedforsecurity=False).hexdigest()[:13]

    def row(self) -> dict[str, object]:
        """The finding as a row of core.finding, before money."""
        return {
            "finding_id": self.finding_id,
            "kind": self.kind,
            "confidence": self.confidence,
            "cluster": self.cluster,
            "job_key": self.job_key,
            "role": self.role,
            "peer_role": self.peer_role,
            "port": self.port,
            "first_evidence_ns": self.first_evidence_ns,
            "opened_ns": self.opened_ns,
            "closed_ns": self.closed_ns,
            "status": "open" if self.closed_ns is None else "closed",
            "idle_gpu_hours": 0.0,
            "idle_cost": None,
            "transfer_cost": None,
            "currency": None,
            "counted": 0,
            "summary": self.story,
            "evidence": evidence_json(self.evidence),
            "counter_evidence": evidence_json(self.counter_evidence),
            "remedy": self.remedy,
            "spans": json.dumps(self.spans),
            "story": self.story,
        }


def evidence_json(items: Iterable[Evidence]) -> str:
    return json.dumps([{"what": item.what, "rows": item.rows, "query": item.query} for item in items])


def observe(warehouse: Warehouse, what: str, query: str) -> Evidence:
    """Evidence whose count is taken by running its own query."""
    rows = warehouse.query(f"SELECT count(*) AS rows FROM ({query}) AS evidence")["rows"][0]
    return Evidence(what, int(rows), query)


def kept(items: Iterable[Evidence]) -> list[Evidence]:
    """Evidence that has rows; a count of nothing is no evidence."""
    return [item for item in items if item.rows]


def text_literal(value: str) -> str:
    """A SQL text literal: names come from the cluster and are hostile until quoted."""
    return "'" + value.replace("'", "''") + "'"


def text_list(values: Iterable[str]) -> str:
    return "(" + ", ".join(text_literal(value) for value in sorted(set(values))) + ")"


# --- spans -------------------------------------------------------------------------------------------------------
def union(spans: Iterable[Span], gap_ns: int = 0) -> list[Span]:
    """Merge spans that overlap, touch, or are at most `gap_ns` apart."""
    merged: list[Span] = []
    for start, end in sorted(span for span in spans if span[1] > span[0]):
        if merged and start - merged[-1][1] <= gap_ns:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def intersect(left: Sequence[Span], right: Sequence[Span]) -> list[Span]:
    found = []
    for start, end in left:
        for other_start, other_end in right:
            low, high = max(start, other_start), min(end, other_end)
            if low < high:
                found.append((low, high))
    return sorted(found)


def subtract(left: Sequence[Span], right: Sequence[Span]) -> list[Span]:
    remaining = list(left)
    for start, end in right:
        remaining = [
            piece
            for low, high in remaining
            for piece in ((low, min(high, start)), (max(low, end), high))
            if piece[0] < piece[1]
        ]
    return sorted(remaining)


def length(spans: Iterable[Span]) -> int:
    return sum(end - start for start, end in spans)


# --- what is known of runs -----------------------------------------------------------------------------------------
def processed_spans(warehouse: Warehouse) -> list[Span]:
    """The days of which core holds events or GPU states: findings speak of no other day."""
    days = warehouse.query(
        "SELECT DISTINCT date FROM core.gpu_state_segment UNION SELECT DISTINCT date FROM core.flow_coverage_hourly"
        " UNION SELECT DISTINCT date FROM core.connection UNION SELECT DISTINCT date FROM core.drop_attempt"
        " UNION SELECT date FROM core.processed_day"
    )["date"]
    return union((day_ns, day_ns + DAY_NS) for day_ns in days.cast(pl.Datetime("ns")).cast(pl.Int64).to_list())


def rows_of(frame: pl.DataFrame) -> list[dict[str, Any]]:
    return list(frame.iter_rows(named=True))


@dataclass(frozen=True)
class Run:
    """One run with its pods (rows of core.pod_life, in order of creation)."""

    job: dict[str, Any]
    pods: list[dict[str, Any]]

    @property
    def key(self) -> int:
        return int(self.job["job_key"])

    @property
    def title(self) -> str:
        return f"{self.job['kind']} {self.job['namespace']}/{self.job['name']}"

    @property
    def members(self) -> list[dict[str, Any]]:
        return [pod for pod in self.pods if pod["role"] in MEMBER_ROLES]

    def held(self, pod: dict[str, Any], until_ns: int) -> Span:
        """When a pod was bound, clipped to what is known; an unbound pod gives an empty span."""
        if pod["held_from_ns"] is None:
            return (0, 0)
        end = until_ns if pod["held_to_ns"] is None else min(pod["held_to_ns"], until_ns)
        return (pod["held_from_ns"], end)

    def gpu_spans(self) -> list[Span]:
        """When the run held any GPU."""
        return union(self.held(pod, FOREVER_NS) for pod in self.pods if pod["gpus"] > 0)

    def ended_ns(self) -> int | None:
        """When the run was over: its job object finished, or no pod of it can be alive."""
        if self.job["finished_ns"] is not None:
            return int(self.job["finished_ns"])
        if any(pod["still_alive"] for pod in self.pods):
            return None
        ends = [pod["held_to_ns"] for pod in self.pods if pod["held_to_ns"] is not None]
        return max(ends) if ends else None

    def members_at(self, instant_ns: int) -> list[dict[str, Any]]:
        return [
            pod
            for pod in self.members
            if pod["held_from_ns"] is not None and pod["held_from_ns"] <= instant_ns < (pod["held_to_ns"] or FOREVER_NS)
        ]


# GPU series end within one sampling interval of each other (G2: at most five minutes)
TELEMETRY_SLACK_NS = 300 * SECOND_NS
TELEMETRY_TIMES = (
    "SELECT cluster, to_ns AS at_ns FROM core.gpu_state_segment WHERE job_key <> -1 AND state <> 'unmeasured'"
)


def closed_at(run: Run, end_ns: int, known_to_ns: int) -> int | None:
    """The end of what GPU states show; None when it reaches the end of what is known and the run is not over."""
    ended_ns = run.ended_ns()
    over = ended_ns is not None and ended_ns <= end_ns + TELEMETRY_SLACK_NS
    return end_ns if over or end_ns + TELEMETRY_SLACK_NS < known_to_ns else None


def load_runs(warehouse: Warehouse, job_keys: Iterable[int]) -> dict[int, Run]:
    """The runs with these keys."""
    wanted = sorted(set(job_keys) - {-1})
    if not wanted:
        return {}
    jobs = warehouse.query("SELECT * FROM core.job_run WHERE list_contains($keys, job_key)", {"keys": wanted})
    pods = warehouse.query(
        "SELECT * FROM core.pod_life WHERE list_contains($keys, job_key) ORDER BY job_key, created_ns, pod_uid",
        {"keys": wanted},
    )
    by_job: dict[int, list[dict[str, Any]]] = {key: [] for key in wanted}
    for pod in rows_of(pods):
        by_job[pod["job_key"]].append(pod)
    return {job["job_key"]: Run(job, by_job[job["job_key"]]) for job in rows_of(jobs)}


def zone_names(warehouse: Warehouse) -> dict[int, str]:
    return dict(warehouse.query("SELECT zone_key, zone FROM core.zone").rows())


def horizons(warehouse: Warehouse, sql: str) -> dict[str, int]:
    """Cluster to the end of what is known, from a query of (cluster, instant in ns)."""
    return {
        cluster: int(end)
        for cluster, end in warehouse.query(
            f"SELECT cluster, CAST(max(at_ns) AS BIGINT) AS at_ns FROM ({sql}) AS known GROUP BY cluster"
        ).rows()
    }


def store(warehouse: Warehouse, rows: list[dict[str, object]]) -> None:
    """Replace core.finding by these rows."""
    warehouse.replace("core.finding", TABLES["core.finding"].frame(rows))


def clock(instant_ns: int) -> str:
    """`2026-11-23 10:04 UTC`."""
    return f"{datetime(1970, 1, 1) + timedelta(seconds=instant_ns // 1_000_000_000):%Y-%m-%d %H:%M} UTC"
