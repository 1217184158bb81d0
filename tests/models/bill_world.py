"""What the bill's tests share: a CUR 2.0 export as Data Exports writes it, a node, GPU time, and steps from file to ledger."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from connectors import aws_billing, focus
from connectors.objects import Source
from connectors.sink import Lake
from models import bill
from models.contracts import TABLES
from models.engine.warehouse import Warehouse, Window
from models.parameters import Parameters

NODE, JOB = 11, 77
AMOUNTS = (
    "line_item_unblended_cost", "line_item_usage_amount", "pricing_public_on_demand_cost", "reservation_effective_cost",
    "reservation_unused_amortized_upfront_fee_for_billing_period", "reservation_unused_recurring_fee",
    "savings_plan_savings_plan_effective_cost", "savings_plan_total_commitment_to_date", "savings_plan_used_commitment",
)  # fmt: skip


def at(day: int, hour: int = 0) -> datetime:
    """A moment of November 2026."""
    return datetime(2026, 11, 1) + timedelta(days=day - 1, hours=hour)


def on(day: int, to: int | None = None) -> Window:
    """One day of November 2026, or up to and with a later one."""
    return Window(date(2026, 11, day), date(2026, 11, 1) + timedelta(days=to or day))


def cur_row(day: int = 23, hour: int = 10, cost: float = 10.0, **more: Any) -> dict[str, Any]:
    """A CUR 2.0 row: by default an hour of the GPU node, on demand."""
    row: dict[str, Any] = {
        "bill_payer_account_id": "012345678901", "line_item_usage_account_id": "2", "line_item_line_item_type": "Usage",
        "line_item_currency_code": "USD", "line_item_usage_start_date": at(day, hour), "line_item_usage_end_date": at(day, hour + 1),
        "line_item_usage_type": "BoxUsage:p4d.24xlarge", "line_item_operation": "RunInstances", "line_item_resource_id": "i-1",
        "line_item_line_item_description": "", "product_region_code": "us-east-1", "product_instance_type": "p4d.24xlarge",
        "savings_plan_savings_plan_a_r_n": "", "reservation_reservation_a_r_n": "", "pricing_unit": "Hrs",
    }  # fmt: skip
    return row | dict.fromkeys(AMOUNTS, 0.0) | {"line_item_unblended_cost": cost, "line_item_usage_amount": 1.0, **more}


def deliver_cur(
    root: Path, *chunks: list[dict[str, Any]], period: str = "2026-11", submitted: datetime | None = None
) -> Source:
    """Write a delivery of an export over the one before it; its manifest says when it was submitted."""
    data, metadata = root / f"exp/data/BILLING_PERIOD={period}", root / f"exp/metadata/BILLING_PERIOD={period}"
    for folder in (data, metadata):
        folder.mkdir(parents=True, exist_ok=True)
    names = []
    for number, rows in enumerate(chunks, 1):
        name = f"exp-{number:05d}.snappy.parquet"
        pq.write_table(pa.Table.from_pylist(rows), data / name)
        names.append(f"s3://theirs/p/exp/data/BILLING_PERIOD={period}/{name}")
    manifest = metadata / "exp-Manifest.json"
    manifest.write_text(json.dumps({"dataFiles": names}))
    seconds = ((submitted or at(24)) - datetime(1970, 1, 1)).total_seconds()
    os.utime(manifest, (seconds, seconds))
    return Source("bill", "aws-cur2", root)


@contextmanager
def home(folder: Path) -> Iterator[Warehouse]:
    """A warehouse beside a lake and landing, with a cluster of one GPU node of eight GPUs."""
    with Warehouse() as warehouse:
        warehouse.home = folder  # lake and landing lie there; the tables stay in memory, which is quicker
        warehouse.stage_frames()
        warehouse.append(
            "staging.cluster",
            TABLES["staging.cluster"].frame([{"cluster": "c1", "provider": "aws", "region": "us-east-1"}]),
        )
        warehouse.append("core.node_life", TABLES["core.node_life"].frame([node()]))
        yield warehouse


def node(**more: Any) -> dict[str, Any]:
    return {"node_key": NODE, "cluster": "c1", "node_uid": "n", "name": "n1", "instance_id": "i-1", "instance_type": "p4d.24xlarge",
            "lifecycle": "on_demand", "region": "us-east-1", "zone_key": -1, "gpus": 8.0, "valid_from_ns": 0, "valid_to_ns": 2**62,
            "from_basis": "created", "to_basis": "last_seen", **more}  # fmt: skip


def add_gpu_time(warehouse: Warehouse, *hours: tuple[int, int], job: int = JOB, gpus: int = 8) -> None:
    """A job keeps the node's GPUs busy in these (day, hour), as segments and as hours; other GPUs are unallocated."""
    segments, hourly = [], []
    for day, hour in hours:
        start = int((at(day, hour) - datetime(1970, 1, 1)).total_seconds()) * 10**9
        common = {"date": at(day).date(), "cluster": "c1", "node_key": NODE}
        for gpu in range(8):
            busy = gpu < gpus
            state = (
                {"state": "busy", "activity": 1.0, "activity_basis": "engine"}
                if busy
                else {"state": "unallocated", "activity_basis": "none"}
            )
            segments.append({**common, **state, "gpu_uuid": f"slot-{gpu}", "job_key": job if busy else -1, "from_ns": start,
                             "to_ns": start + 3600 * 10**9, "weight": 1.0, "provisional": False})  # fmt: skip
        for name, owner, count in (("busy", job, gpus), ("unallocated", -1, 8 - gpus)):
            if count:
                hourly.append({**common, "hour_utc": at(day, hour), "job_key": owner, "state": name, "gpu_hours": float(count),
                               "activity_basis": "engine" if name == "busy" else "none"})  # fmt: skip
    warehouse.append("core.gpu_state_segment", TABLES["core.gpu_state_segment"].frame(segments))
    warehouse.append("core.gpu_state_hourly", TABLES["core.gpu_state_hourly"].frame(hourly))


def stage_source(warehouse: Warehouse, source: Source) -> Lake:
    """Stage a source and point the staging tables at the lake."""
    assert warehouse.home is not None
    lake = Lake(warehouse.home / "lake")
    {"aws-cur2": aws_billing, "focus": focus}[source.kind].stage(source, lake, lambda text: None)
    for table in ("staging.bill_line", "staging.bill_delivery"):
        warehouse.con.execute(f"DELETE FROM {table}")
        files = ", ".join(f"'{file}'" for file in lake.held_files(table))
        warehouse.con.execute(f"INSERT INTO {table} SELECT {TABLES[table].cast_list()} FROM read_parquet([{files}])")
    return lake


def process(warehouse: Warehouse, window: Window, *, reconcile: bool = True) -> None:
    """Run the bill's models over a window, as the graph orders them."""
    days = [{"date": day, "input_digest": "x"} for day in window.days]
    warehouse.replace("core.processed_day", TABLES["core.processed_day"].frame(days), window=window)
    for model in bill.MODELS:
        if reconcile or model is not bill.RECONCILIATION:
            model.build(warehouse, window, Parameters())
