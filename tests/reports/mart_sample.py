"""A fabricated mart, by contract: what the report and the publication are developed and tested against.

Two clusters in two currencies, two whole weeks (2026-W46, W47) and two days of a third, hostile job names, a
negative credit, GPU time without price, money split by flow shares, and every state and cause that a week can show.
The ledger is summed from the same rows as the GPU and transfer facts, so the totals close as a real mart's do.
"""

from __future__ import annotations

import json
from collections import defaultdict
from datetime import date, datetime, timedelta
from decimal import Decimal

import polars as pl

from models.contracts import TABLES

FIRST_DAY = date(2026, 11, 9)  # Monday of 2026-W46
LAST_DAY = date(2026, 11, 24)  # Tuesday of 2026-W48, which is therefore partial
EMPTY_WEEK = "2026-W30"
HOSTILE_NAMES = ("<img src=x onerror=alert(1)>", "</script><script>alert(2)</script>", "'; DROP TABLE mart.dim_job; --")
LONG_NAME = "llama-" + "very-long-experiment-name-" * 5 + "final"
PRICE = {1: Decimal("4.096"), 2: Decimal("3.673")}  # effective, per GPU-hour, by cluster key
CURRENCY = {1: "USD", 2: "EUR"}
ACCOUNT = {1: ("aws", "111122223333"), 2: ("azure", "sub-7f3a")}

# job key: cluster, namespace, kind, name, owner, GPU-hours per hour and (state, cause, share) rows
_SYNC = "cross_zone_sync"
JOBS: dict[int, tuple[int, str, str, str, int, float, list[tuple[str, str | None, float]]]] = {
    101: (1, "vision", "PyTorchJob", "resnet-nightly", 11, 16, [("busy", None, 0.78), ("underused", None, 0.17), ("idle", "pause", 0.05)]),
    102: (1, "nlp", "PyTorchJob", HOSTILE_NAMES[0], 12, 8, [("idle", "blocked_by_policy", 0.97), ("starting", "image_pull", 0.03)]),
    103: (1, "nlp", "JobSet", LONG_NAME, 12, 8, [("busy", None, 0.40), ("underused", None, 0.20), ("comm_stall", _SYNC, 0.40)]),
    104: (1, "speech", "MPIJob", HOSTILE_NAMES[1], -1, 4, [("idle", "waiting_for_members", 0.9), ("starting", "init", 0.1)]),
    105: (1, "rl", "RayJob", HOSTILE_NAMES[2], 11, 4, [("busy", None, 0.3), ("underused", None, 0.2), ("idle", "finished_not_released", 0.5)]),
    106: (1, "rl", "Job", "eval-sweep", 11, 2, [("unmeasured", "no_placement", 0.4), ("busy", None, 0.6)]),
    201: (2, "research", "TrainJob", "diffusion-xl", 13, 8, [("busy", None, 0.66), ("underused", None, 0.24), ("idle", "unexplained", 0.1)]),
    202: (2, "research", "Pod", "debug-shell", -1, 1, [("idle", "no_work", 1.0)]),
    203: (2, "research", "PyTorchJob", "Ünïcode-モデル", 13, 2, [("busy", None, 0.9), ("unmeasured", None, 0.1)]),
}  # fmt: skip
UNALLOCATED = {1: [("free", 6.0), ("unschedulable", 0.5)], 2: [("free", 5.0)]}
ZONES = {21: ("aws", "us-east-1", "us-east-1a"), 22: ("aws", "us-east-1", "us-east-1b"), 23: ("azure", "westeurope", "westeurope-1"),
         24: ("aws", "us-east-1", "us-east-1c")}  # fmt: skip
NODE = {1: (31, 21), 2: (32, 23)}

Row = dict[str, object]


def days(first: date = FIRST_DAY, last: date = LAST_DAY) -> list[date]:
    return [first + timedelta(days=n) for n in range((last - first).days + 1)]


def _money(value: Decimal | float) -> Decimal:
    return Decimal(str(value)).quantize(Decimal("0.000001"))


def gpu_rows() -> list[Row]:
    """Six-hour rows of GPU state. Job 106 has no price on one day; the last day is an estimate."""
    rows: list[Row] = []
    for day in days():
        for hour in (0, 6, 12, 18):
            for job_key, (cluster, _, _, _, _, gpus, states) in JOBS.items():
                growth = 1.25 if day >= date(2026, 11, 16) and job_key in (102, 103) else 1.0
                for state, cause, share in states:
                    rows.append(_gpu_row(day, hour, cluster, job_key, state, cause, gpus * 6 * share * growth))
            for cluster, free in UNALLOCATED.items():
                rows += [_gpu_row(day, hour, cluster, -1, "unallocated", cause, gpus * 6) for cause, gpus in free]
    return rows


def _gpu_row(day: date, hour: int, cluster: int, job_key: int, state: str, cause: str | None, gpu_hours: float) -> Row:
    unpriced = job_key == 106 and day == date(2026, 11, 18)
    estimated = day == LAST_DAY
    cost = None if unpriced else _money(PRICE[cluster] * Decimal(str(round(gpu_hours, 4))))
    _, account = ACCOUNT[cluster]
    return {
        "hour_utc": datetime(day.year, day.month, day.day, hour), "date": day, "cluster_key": cluster,
        "node_key": NODE[cluster][0], "zone_key": NODE[cluster][1], "job_key": job_key, "gpu_model": "H100" if cluster == 1 else "A100",
        "state": state, "cause": cause, "activity_basis": "none" if state in ("unallocated", "unmeasured") else "tensor",
        "gpu_hours": round(gpu_hours, 4), "billing_period": f"{day:%Y-%m}", "billing_account": account, "sub_account": account,
        "pricing_category": "on_demand", "billed_cost": cost, "effective_cost": cost, "currency": None if unpriced else CURRENCY[cluster],
        "cost_basis": "unpriced" if unpriced else "estimated" if estimated else "billed",
    }  # fmt: skip


def transfer_rows() -> list[Row]:
    """Measured, flow-share and unattributed inter-AZ money, and volume that is not charged."""
    rows: list[Row] = []
    for day in days():
        for direction, source, destination in (("out", 21, 22), ("in", 22, 21)):
            rows.append(
                _transfer(
                    day,
                    103,
                    "worker",
                    103,
                    "worker",
                    source,
                    destination,
                    direction,
                    420.0,
                    "measured_bytes",
                    "rate",
                    None,
                )
            )
        rows.append(
            _transfer(
                day, 101, "worker", -1, None, 21, 24, "out", 60.0, "flow_share", "scale", None, peer="storage/minio"
            )
        )
        rows.append(
            _transfer(day, 102, "worker", 102, "coordinator", 22, 21, "out", 3.5, "counter_bytes", "rate", None)
        )
        rows.append(_transfer(day, -1, None, -1, None, -1, -1, "out", 35.0, "measured_bytes", "rate", "unexplained"))
        rows.append(_transfer(day, -1, None, -1, None, -1, -1, "in", 7.25, "none", "none", "no_evidence"))
        not_charged = _transfer(
            day, 201, "worker", 201, "worker", 23, 23, "out", 0.0, "measured_bytes", "none", "not_charged"
        )
        rows.append(
            not_charged
            | {"cluster_key": 2, "node_key": 32, "metered_bytes": 9e11, "billed_gb": None, "currency": "EUR"}
        )
    return rows


def _transfer(
    day: date, job: int, role: str | None, peer_job: int, peer_role: str | None, source: int, destination: int,
    direction: str, gigabytes: float, basis: str, policy: str, reason: str | None, peer: str | None = None,
) -> Row:  # fmt: skip
    cost = _money(Decimal("0.01") * Decimal(str(gigabytes)))
    return {
        "hour_utc": datetime(day.year, day.month, day.day, 0), "date": day, "cluster_key": 1, "node_key": 31, "job_key": job,
        "role": role, "peer_job_key": peer_job, "peer_role": peer_role, "peer_name": peer, "resolved_by": "pod",
        "peer_resolved_by": "ip", "source_zone_key": source, "destination_zone_key": destination, "direction": direction,
        "billing_period": f"{day:%Y-%m}", "billing_account": ACCOUNT[1][1], "sub_account": ACCOUNT[1][1],
        "metered_bytes": None if basis in ("flow_share", "none") else gigabytes * 0.98e9, "billed_gb": gigabytes,
        "billed_cost": cost, "effective_cost": cost, "currency": "USD", "basis": basis, "policy": policy,
        "estimate_ratio": 0.98 if policy == "rate" else None, "coverage": 0.97, "reason": reason,
    }  # fmt: skip


def traffic_rows() -> list[Row]:
    rows: list[Row] = []
    for day in days():
        base: Row = {
            "hour_utc": datetime(day.year, day.month, day.day, 0),
            "date": day,
            "cluster_key": 1,
            "coverage": 0.97,
        }
        same: Row = {"job_key": 101, "role": "worker", "peer_job_key": 101, "peer_role": "worker", "source_zone_key": 21,
                     "destination_zone_key": 21, "locality": "same_zone", "verdict": "connected", "connections": 4000, "attempts": 0,
                     "bytes": 9.1e12, "basis": "measured_bytes"}  # fmt: skip
        rows.append(base | same)
        rows.append(
            base
            | same
            | {
                "job_key": 103,
                "peer_job_key": 103,
                "destination_zone_key": 22,
                "locality": "cross_zone",
                "bytes": 8.2e11,
            }
        )
        rows.append(base | same | {"job_key": 102, "peer_job_key": 102, "peer_role": "coordinator", "source_zone_key": 22,
                                   "locality": "cross_zone", "verdict": "dropped", "connections": 0, "attempts": 812, "bytes": None,
                                   "basis": "none"})  # fmt: skip
        rows.append(base | same | {"job_key": 101, "peer_job_key": -1, "peer_role": None, "destination_zone_key": -1,
                                   "locality": "unknown", "bytes": None, "basis": "none", "reason": "no_live_owner"})  # fmt: skip
    return rows


def ledger_rows(gpu: list[Row], transfer: list[Row]) -> list[Row]:
    """Billed GPU and transfer rows by their ledger keys, and lines that no fact holds (storage, tax, a credit)."""
    totals: dict[tuple[object, ...], Decimal] = defaultdict(Decimal)
    for row in gpu:
        if row["cost_basis"] == "billed":
            bucket, reason = ("unattributed", "unallocated") if row["state"] == "unallocated" else ("job", None)
            totals[row["date"], row["cluster_key"], "gpu_compute", bucket, row["job_key"], reason] += _as_decimal(row)
    for row in transfer:
        if row["reason"] != "not_charged":
            bucket = "job" if row["reason"] is None else "unattributed"
            totals[row["date"], row["cluster_key"], "inter_az_transfer", bucket, row["job_key"], row["reason"]] += (
                _as_decimal(row)
            )
    rows = [
        _ledger(day, cluster, scope, bucket, cost, job_key=job, reason=reason)
        for (day, cluster, scope, bucket, job, reason), cost in totals.items()
    ]
    for day in days():
        rows.append(_ledger(day, 1, "storage", "out_of_scope", Decimal("12.5")))
        rows.append(_ledger(day, 1, "load_balancer", "shared", Decimal("1.2"), rule="by_gpu_hours", job_key=101))
    rows.append(
        _ledger(date(2026, 11, 16), 1, "credit", "out_of_scope", Decimal("-500"), span="period", category="Credit")
    )
    rows.append(_ledger(date(2026, 11, 16), 1, "tax", "out_of_scope", Decimal("310.07"), span="period", category="Tax"))
    rows.append(_ledger(date(2026, 11, 25), 1, "gpu_compute", "unattributed", Decimal("900.25"), reason="not_run"))
    return rows


def _as_decimal(row: Row) -> Decimal:
    cost = row["effective_cost"]
    assert isinstance(cost, Decimal)
    return cost


def _ledger(
    day: object, cluster: object, scope: object, bucket: object, cost: Decimal, *, job_key: object = -1, reason: object = None,
    rule: str | None = None, span: str = "hour", category: str = "Usage",
) -> Row:  # fmt: skip
    assert isinstance(day, date) and isinstance(cluster, int) and isinstance(job_key, int)
    provider, account = ACCOUNT[cluster]
    return {
        "billing_period": f"{day:%Y-%m}", "date": day, "provider": provider, "billing_account": account, "sub_account": account,
        "cluster_key": cluster, "region": "us-east-1", "service": "compute", "charge_scope": scope, "charge_category": category,
        "charge_span": span, "pricing_category": "on_demand", "bucket": bucket, "rule": rule, "job_key": job_key,
        "owner_key": JOBS[job_key][4] if job_key in JOBS else -1, "reason": reason, "list_cost": _money(cost), "contracted_cost": _money(cost),
        "billed_cost": _money(cost), "effective_cost": _money(cost), "currency": CURRENCY[cluster],
    }  # fmt: skip


def _evidence(*items: tuple[str, int]) -> str:
    return json.dumps([{"what": what, "rows": rows, "query": f"SELECT {rows}"} for what, rows in items])


def finding_rows() -> list[Row]:
    opened = datetime(2026, 11, 16, 9, 4, 10)
    base: Row = {
        "confidence": "complete", "status": "open", "currency": "USD", "counted": 1, "first_evidence_utc": opened - timedelta(seconds=130),
        "opened_utc": opened, "detected_after_seconds": 130.0, "role": "worker", "peer_role": "coordinator", "counter_evidence": "[]",
    }  # fmt: skip
    return [
        base | {"finding_key": 1, "finding_id": "b10c", "kind": "blocked", "job_key": 102, "port": "29500/TCP",
                "idle_gpu_hours": 1396.8, "idle_cost": _money("5721.2928"), "transfer_cost": None,
                "summary": "The workers in us-east-1b can't reach their coordinator in us-east-1a: policy kubeflow/zone-guard denies port 29500.",
                "evidence": _evidence(("attempts denied by policy", 5684), ("GPU-hours idle meanwhile", 1396)),
                "remedy": "Pin the job to us-east-1a: a pin moves this door, because the policy keys on the zone that a pod runs in."},
        base | {"finding_key": 2, "finding_id": "510a", "kind": "slow", "job_key": 103, "peer_role": "worker", "port": "dynamic",
                "confidence": "partial", "idle_gpu_hours": 480.0, "idle_cost": _money("1966.08"), "transfer_cost": _money("58.8"),
                "summary": "Workers over two zones wait for each other: 40 % of their GPU time is stalled in communication.",
                "evidence": _evidence(("half-hours with median work under 70 % of baseline", 61)),
                "counter_evidence": _evidence(("half-hours in which one worker alone was busy", 2)),
                "remedy": "Pin all workers to us-east-1a, where 6 of 8 already run."},
        base | {"finding_key": 3, "finding_id": "0b11", "kind": "billed", "job_key": 101, "peer_role": None, "port": None,
                "confidence": "partial", "idle_gpu_hours": 0.0, "idle_cost": None, "transfer_cost": _money("4.2"), "counted": 0,
                "summary": "Workers read their data set from another zone.", "evidence": "not json at all <b>", "remedy": None},
        base | {"finding_key": 4, "finding_id": "3a17", "kind": "waiting", "job_key": 104, "status": "closed", "peer_role": None,
                "closed_utc": opened + timedelta(days=3), "port": None, "idle_gpu_hours": 259.2, "idle_cost": _money("1061.6832"),
                "summary": "Seven of eight members hold GPUs and wait for the eighth, which no node has room for.",
                "evidence": _evidence(("members started", 7)), "remedy": "Ask for seven workers, or free a GPU in pool gpu-b."},
        base | {"finding_key": 5, "finding_id": "0fe5", "kind": "unreleased", "job_key": 202, "currency": "EUR", "port": None,
                "peer_role": None, "idle_gpu_hours": 168.0, "idle_cost": None, "confidence": "impact_unmeasured",
                "summary": "A debug shell holds a GPU and has never used it.", "evidence": "[]", "remedy": "Delete the pod."},
    ]  # fmt: skip


def coverage_rows() -> list[Row]:
    sources = [("billing", 5200, 3, 1.0, None), ("hubble", 1_204_331, 41, 0.9712, "2 lost-event gaps"), ("vpc_flow_logs", 88_210, 0, None, None),
               ("kubernetes", 912, 0, 1.0, None), ("prometheus", 402_000, 0, 0.93, "node gpu-7 silent for 100 minutes")]  # fmt: skip
    rows: list[Row] = []
    for day in days():
        for source, read, rejected, coverage, note in sources:
            if source == "vpc_flow_logs" and day.weekday() > 4:
                continue
            rows.append({"date": day, "cluster_key": 1, "source": source, "rows_read": read, "rows_kept": read - rejected - 20,
                         "rows_rejected": rejected, "rows_duplicate": 15, "rows_control": 5, "coverage": coverage, "note": note})  # fmt: skip
        rows.append({"date": day, "cluster_key": 2, "source": "kubernetes", "rows_read": 200, "rows_kept": 200, "rows_rejected": 0,
                     "rows_duplicate": 0, "rows_control": 0, "coverage": 1.0})  # fmt: skip
    return rows


def _reconciliation(ledger: list[Row]) -> list[Row]:
    rows: list[Row] = []
    for cluster, (provider, account) in ACCOUNT.items():
        total = sum((_as_decimal(row) for row in ledger if row["cluster_key"] == cluster), Decimal(0))
        for measure in ("billed", "effective"):
            rows.append({"billing_period": "2026-11", "provider": provider, "billing_account": account, "currency": CURRENCY[cluster],
                         "measure": measure, "bill_total": total, "ledger_total": total, "difference": Decimal(0),
                         "rounding": Decimal("0.000000000417")})  # fmt: skip
    return rows


def _bridge(ledger: list[Row]) -> list[Row]:
    rows: list[Row] = []
    for cluster, (_, account) in ACCOUNT.items():
        total = sum((_as_decimal(row) for row in ledger if row["cluster_key"] == cluster), Decimal(0))
        rows.append({"billing_period": "2026-11", "billing_account": account, "currency": CURRENCY[cluster], "billed_cost": _money(total + 50),
                     "purchases": _money(Decimal(250)), "used_amortisation": _money(Decimal(180)), "unused_amortisation": _money(Decimal(20)),
                     "effective_cost": _money(total)})  # fmt: skip
    return rows


def _bill_status() -> list[Row]:
    rows: list[Row] = []
    for day in days():
        for provider, account in ACCOUNT.values():
            status = "open" if day >= date(2026, 11, 21) else "settled"
            rows.append({"date": day, "provider": provider, "billing_account": account, "sub_account": account, "status": status,
                         "bill_horizon_utc": datetime(2026, 11, 23, 22), "delivery_id": "d-7", "delivered_utc": datetime(2026, 11, 24, 3, 10)})  # fmt: skip
    return rows


def _dimensions() -> dict[str, list[Row]]:
    none_owner: Row = {"owner_key": -1, "team": "unowned", "cost_center": None}
    owners = [none_owner] + [{"owner_key": key, "team": team, "cost_center": f"CC-{key}"} for key, team in
                             ((11, "Vision"), (12, "Language & <b>Speech</b>"), (13, "Research"))]  # fmt: skip
    jobs: list[Row] = [{"job_key": -1, "name": "none", "owner_key": -1}]
    for key, (cluster, namespace, kind, name, owner, _, _) in JOBS.items():
        jobs.append({"job_key": key, "cluster": f"train-{cluster}", "namespace": namespace, "kind": kind, "name": name, "run": f"run-{key}",
                     "owner_key": owner, "resolved_by": "owner", "first_seen_utc": datetime(2026, 11, 9), "last_seen_utc": datetime(2026, 11, 24, 23)})  # fmt: skip
    zones: list[Row] = [{"zone_key": -1, "zone": "unknown"}]
    zones += [{"zone_key": key, "provider": p, "region": r, "zone": z} for key, (p, r, z) in ZONES.items()]
    nodes: list[Row] = [{"node_key": -1, "name": "none", "owner_key": -1, "zone_key": -1}]
    nodes += [{"node_key": node, "cluster": f"train-{cluster}", "name": f"gpu-{cluster}", "lifecycle": "on_demand", "owner_key": -1,
               "zone_key": zone, "gpu_model": "H100", "gpus": 8} for cluster, (node, zone) in NODE.items()]  # fmt: skip
    clusters: list[Row] = [{"cluster_key": -1, "cluster": "none"}, {"cluster_key": 1, "cluster": "train-1", "provider": "aws", "region": "us-east-1"},
                           {"cluster_key": 2, "cluster": "train-2", "provider": "azure", "region": "westeurope"}]  # fmt: skip
    dates = [{"date": day, "iso_year": day.isocalendar().year, "iso_week": day.isocalendar().week, "month": f"{day:%Y-%m}",
              "week": f"{day.isocalendar().year}-W{day.isocalendar().week:02d}", "is_provisional": int(day >= date(2026, 11, 21))}
             for day in days(date(2026, 11, 2), date(2026, 11, 30))]  # fmt: skip
    return {"mart.dim_owner": owners, "mart.dim_job": jobs, "mart.dim_zone": zones, "mart.dim_node": nodes, "mart.dim_cluster": clusters,
            "mart.dim_date": dates}  # fmt: skip


def mart_rows() -> dict[str, list[Row]]:
    """Every mart table as rows; a test may change them before `frames`."""
    gpu, transfer = gpu_rows(), transfer_rows()
    ledger = ledger_rows(gpu, transfer)
    return _dimensions() | {
        "mart.fact_gpu_hours": gpu,
        "mart.fact_transfer_cost": transfer,
        "mart.fact_zone_traffic": traffic_rows(),
        "mart.fact_cost_ledger": ledger,
        "mart.fact_finding": finding_rows(),
        "mart.fact_reconciliation": _reconciliation(ledger),
        "mart.fact_cost_bridge": _bridge(ledger),
        "mart.fact_bill_status": _bill_status(),
        "mart.fact_coverage": coverage_rows(),
    }


def frames(rows: dict[str, list[Row]] | None = None) -> dict[str, pl.DataFrame]:
    return {name: TABLES[name].frame(table_rows) for name, table_rows in (rows or mart_rows()).items()}
