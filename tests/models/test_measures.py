"""Cost per busy GPU-hour (G6), of the fleet and of each job."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pytest

from models.contracts import TABLES
from models.engine.warehouse import Warehouse
from models.measures import COST_PER_BUSY_GPU_HOUR, COST_PER_BUSY_GPU_HOUR_BY_JOB

WEEK = {"from": date(2026, 11, 23), "to": date(2026, 11, 30)}


def fact(job_key: int, state: str, gpu_hours: float, cost: str | None, **changes: Any) -> dict[str, Any]:
    return {
        "hour_utc": datetime(2026, 11, 23, 10), "date": date(2026, 11, 23), "cluster_key": 1, "node_key": 1, "zone_key": 1,
        "job_key": job_key, "state": state, "gpu_hours": gpu_hours, "effective_cost": None if cost is None else Decimal(cost),
        "currency": None if cost is None else "USD", "cost_basis": "billed",
    } | changes  # fmt: skip


def measure(warehouse: Warehouse, sql: str, *facts: dict[str, Any]) -> list[dict[str, Any]]:
    warehouse.append("mart.fact_gpu_hours", TABLES["mart.fact_gpu_hours"].frame(list(facts)))
    return warehouse.query(sql, WEEK).to_dicts()


FACTS = (
    fact(1, "busy", 2, "4"),
    fact(1, "idle", 6, "12"),
    fact(1, "unmeasured", 4, "8"),
    fact(2, "idle", 3, "6"),
    fact(-1, "unallocated", 5, "10"),
    fact(1, "busy", 100, "500", date=date(2026, 11, 30)),
)


def test_g6_of_the_fleet_unallocated_counts_and_unmeasured_does_not(warehouse: Warehouse) -> None:
    (row,) = measure(warehouse, COST_PER_BUSY_GPU_HOUR, *FACTS)
    assert row["cost_per_busy_gpu_hour"] == (4 + 12 + 6 + 10) / 2
    assert (row["gpu_cost"], row["unmeasured_cost"]) == (Decimal("40"), Decimal("8"))


def test_g6_of_a_job_it_is_its_own_cost_and_null_without_busy_hours(warehouse: Warehouse) -> None:
    rows = measure(warehouse, COST_PER_BUSY_GPU_HOUR_BY_JOB, *FACTS)
    assert [(row["job_key"], row["cost_per_busy_gpu_hour"]) for row in rows] == [(1, 8.0), (2, None)]


def test_g6_n5_currencies_are_never_added(warehouse: Warehouse) -> None:
    rows = measure(warehouse, COST_PER_BUSY_GPU_HOUR, fact(1, "busy", 1, "4"), fact(2, "busy", 1, "9", currency="EUR"))
    assert {row["currency"]: row["cost_per_busy_gpu_hour"] for row in rows} == {"USD": 4.0, "EUR": 9.0}


def test_g6_n3_hours_without_a_price_are_no_free_hours(warehouse: Warehouse) -> None:
    """Busy hours that nobody priced stay out of the rate, and the share that had a price is told."""
    facts = (fact(1, "busy", 1, "4"), fact(1, "busy", 3, None), fact(3, "busy", 1, None))
    (row,) = measure(warehouse, COST_PER_BUSY_GPU_HOUR, *facts)
    assert row["cost_per_busy_gpu_hour"] == 4.0
    assert row["priced_share"] == pytest.approx(0.2)
    assert [found["job_key"] for found in warehouse.query(COST_PER_BUSY_GPU_HOUR_BY_JOB, WEEK).to_dicts()] == [1]
