"""Inter-AZ attribution: rules A1 to A6 and B10, each on a handful of lines and traffic rows."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from models.attribution import build_transfer_cost, measured_over_billed
from models.contracts import TABLES
from models.engine.warehouse import Warehouse, Window
from models.parameters import Parameters

DAY = date(2026, 11, 23)
WINDOW = Window(DAY, DAY + timedelta(days=1))
NODE, OTHER_NODE, JOB, PEER_JOB = 11, 12, 101, 102
GB = 1_000_000_000


def line(hour: int | None = 10, **changes: Any) -> dict[str, Any]:
    start = datetime(2026, 11, 23, hour or 0)
    row: dict[str, Any] = {
        "delivery_id": "d", "object_id": "o", "row_number": 1, "part": 1, "billing_period": "2026-11", "date": DAY,
        "hour_utc": None if hour is None else start, "charge_span": "day" if hour is None else "hour",
        "charge_period_start": start, "charge_period_end": start + timedelta(hours=1), "provider": "aws",
        "billing_account": "payer", "sub_account": "acct", "cluster_key": -1, "node_key": NODE, "region": "us-east-1",
        "resource_id": "i-1", "charge_scope": "inter_az_transfer", "scope_certain": True, "direction": "out",
        "charge_category": "Usage", "quantity": Decimal(10), "unit": "GB", "billed_cost": Decimal("0.1"),
        "effective_cost": Decimal("0.1"),
        "rejected": False, "currency": "USD",
    }  # fmt: skip
    return row | changes


def traffic(gigabytes: float = 1.0, hour: int = 10, **changes: Any) -> dict[str, Any]:
    row: dict[str, Any] = {
        "date": DAY, "hour_utc": datetime(2026, 11, 23, hour), "cluster": "c", "node_key": NODE, "direction": "out",
        "job_key": JOB, "role": "worker", "resolved_by": "pod", "peer_job_key": JOB, "peer_role": "worker",
        "peer_name": "ns/peer", "peer_resolved_by": "pod", "source_zone_key": 1, "destination_zone_key": 2,
        "locality": "cross_zone", "basis": "measured_bytes", "bytes": gigabytes * GB, "weight": gigabytes * GB,
        "connections": 1, "coverage": 1.0, "other_side": False,
    }  # fmt: skip
    return row | changes


def flows(events: float = 1.0, hour: int = 10, **changes: Any) -> dict[str, Any]:
    return traffic(hour=hour, basis="flow_share", bytes=None, weight=events) | changes


def node(key: int = NODE, cluster: str = "c") -> dict[str, Any]:
    return {
        "node_key": key, "cluster": cluster, "node_uid": str(key), "name": str(key), "lifecycle": "on_demand",
        "region": "us-east-1", "zone_key": 1, "gpus": 8.0, "valid_from_ns": 0, "valid_to_ns": 2**62,
        "from_basis": "created", "to_basis": "last_seen",
    }  # fmt: skip


def fill(warehouse: Warehouse, name: str, rows: list[dict[str, Any]]) -> None:
    warehouse.append(name, TABLES[name].frame(rows))


def attribute(
    warehouse: Warehouse,
    lines: list[dict[str, Any]],
    weights: list[dict[str, Any]],
    provider: str = "aws",
    accounts: str | None = None,
    window: Window = WINDOW,
) -> pl.DataFrame:
    fill(warehouse, "staging.cluster", [{"cluster": "c", "provider": provider, "accounts": accounts}])
    fill(warehouse, "core.node_life", [node(), node(OTHER_NODE)])
    fill(warehouse, "core.bill_line", lines)
    fill(warehouse, "core.node_traffic_hourly", weights)
    build_transfer_cost(warehouse, window, Parameters())
    return warehouse.table("core.transfer_cost").sort("delivery_id", "row_number", "job_key", "reason", nulls_last=True)


def cost_of(rows: pl.DataFrame, **wanted: object) -> Decimal:
    for column, value in wanted.items():
        rows = rows.filter(pl.col(column).eq_missing(pl.lit(value)))
    return sum(rows["billed_cost"].to_list(), Decimal(0))


def test_a1_weights_are_traffic_not_known_to_be_free_of_the_charge(warehouse: Warehouse) -> None:
    weights = [traffic(10)] + [traffic(90, locality=place) for place in ("same_zone", "cross_region", "external")]
    rows = attribute(warehouse, [line()], weights)
    assert rows.select("job_key", "billed_cost", "reason").rows() == [(JOB, Decimal("0.1"), None)]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"locality": "unknown"}, "unknown_zone"),
        ({"locality": "unknown", "reason": "ambiguous"}, "ambiguous"),
        ({"job_key": -1, "reason": "no_live_owner"}, "no_live_owner"),
        ({"job_key": -1}, "no_job"),
    ],
)
def test_a1_a5_what_no_job_owns_keeps_its_share_and_its_reason(
    warehouse: Warehouse, change: dict[str, Any], reason: str
) -> None:
    rows = attribute(warehouse, [line()], [traffic(4), traffic(6, **change)])
    assert cost_of(rows, job_key=JOB, reason=None) == Decimal("0.04")
    assert cost_of(rows, job_key=-1, reason=reason) == Decimal("0.06")


def test_a2_the_senders_job_pays_the_out_line_and_the_receivers_the_in_line(warehouse: Warehouse) -> None:
    lines = [line(), line(row_number=2, node_key=OTHER_NODE, direction="in")]
    sent = traffic(10, peer_job_key=PEER_JOB)
    received = traffic(10, node_key=OTHER_NODE, direction="in", job_key=PEER_JOB, peer_job_key=JOB)
    rows = attribute(warehouse, lines, [sent, received])
    assert rows.select("job_key", "direction", "metered_bytes", "billed_gb").sort("job_key").rows() == [
        (JOB, "out", 10.0 * GB, 10.0),
        (PEER_JOB, "in", 10.0 * GB, 10.0),
    ]


def test_a2_a_provider_that_does_not_charge_gives_volume_at_cost_zero(warehouse: Warehouse) -> None:
    rows = attribute(warehouse, [], [traffic(5), traffic(7, locality="same_zone")], provider="azure")
    assert rows.select("job_key", "metered_bytes", "billed_cost", "reason", "currency").rows() == [
        (JOB, 5.0 * GB, Decimal(0), "not_charged", None)
    ]


def test_a2_gcp_charges_the_sender_only_per_gibibyte(warehouse: Warehouse) -> None:
    lines = [line(provider="gcp", direction=None, unit="gibibyte", quantity=Decimal(10))]
    weights = [traffic(1, bytes=5.0 * 2**30), traffic(1, direction="in", bytes=3.0 * 2**30)]
    rows = attribute(warehouse, lines, weights, provider="gcp")
    assert cost_of(rows, job_key=JOB, reason=None) == Decimal("0.05")
    assert rows.filter(pl.col("reason") == "not_charged")["metered_bytes"].to_list() == [3.0 * 2**30]


def test_a3_rate_leaves_what_is_not_measured_unexplained_in_gb_and_money(warehouse: Warehouse) -> None:
    rows = attribute(warehouse, [line()], [traffic(4)])
    assert rows.select("job_key", "billed_gb", "billed_cost", "policy", "estimate_ratio", "reason").rows() == [
        (-1, 6.0, Decimal("0.06"), "rate", 0.4, "unexplained"),
        (JOB, 4.0, Decimal("0.04"), "rate", 0.4, None),
    ]


def test_a3_scale_when_measured_exceeds_the_day(warehouse: Warehouse) -> None:
    rows = attribute(warehouse, [line()], [traffic(15), traffic(5, job_key=PEER_JOB)])
    assert rows.select("job_key", "billed_cost", "policy", "estimate_ratio").rows() == [
        (JOB, Decimal("0.075"), "scale", 2.0),
        (PEER_JOB, Decimal("0.025"), "scale", 2.0),
    ]
    assert rows["metered_bytes"].sum() == pytest.approx(20 * GB)


def test_a3_an_hours_excess_is_carried_within_the_day_first(warehouse: Warehouse) -> None:
    lines = [line(10), line(11, row_number=2)]
    rows = attribute(warehouse, lines, [traffic(14, 10), traffic(2, 11, job_key=PEER_JOB)])
    assert cost_of(rows, job_key=JOB) == Decimal("0.14")
    assert cost_of(rows, job_key=PEER_JOB) == Decimal("0.02")
    assert cost_of(rows, reason="unexplained") == Decimal("0.04")
    assert set(rows["policy"]) == {"rate"}


def test_a3_excess_of_one_direction_never_fills_the_other(warehouse: Warehouse) -> None:
    lines = [line(10), line(10, row_number=2, direction="in")]
    rows = attribute(warehouse, lines, [traffic(14)])
    assert cost_of(rows, direction="out", job_key=JOB) == Decimal("0.1")
    assert cost_of(rows, direction="in", reason="no_evidence") == Decimal("0.1")


def test_a3_a_daily_line_is_split_over_the_days_hours(warehouse: Warehouse) -> None:
    rows = attribute(warehouse, [line(None)], [traffic(2, 3), traffic(3, 20, job_key=PEER_JOB)])
    assert cost_of(rows, job_key=JOB) == Decimal("0.02")
    assert cost_of(rows, job_key=PEER_JOB) == Decimal("0.03")
    assert cost_of(rows, reason="unexplained") == Decimal("0.05")


def test_a3_flow_shares_split_the_line_in_full_and_say_so(warehouse: Warehouse) -> None:
    rows = attribute(warehouse, [line()], [flows(3), flows(1, job_key=PEER_JOB, coverage=0.5)])
    assert rows.select("job_key", "billed_cost", "basis", "policy", "metered_bytes", "coverage").rows() == [
        (JOB, Decimal("0.075"), "flow_share", "scale", None, 1.0),
        (PEER_JOB, Decimal("0.025"), "flow_share", "scale", None, 0.5),
    ]


def test_a3_a_discount_row_follows_the_usage_that_it_discounts(warehouse: Warehouse) -> None:
    discount = line(row_number=2, charge_category="Adjustment", quantity=None, billed_cost=Decimal("-0.01"))
    rows = attribute(warehouse, [line(), discount], [traffic(4)])
    assert cost_of(rows, job_key=JOB) == Decimal("0.036")
    assert rows.filter(pl.col("row_number") == 2)["billed_gb"].to_list() == [None, None]
    assert rows["metered_bytes"].sum() == 4 * GB


def test_t5_measured_bytes_beat_flow_shares_of_the_same_hour(warehouse: Warehouse) -> None:
    rows = attribute(warehouse, [line()], [traffic(4), flows(100, job_key=PEER_JOB)])
    assert cost_of(rows, job_key=PEER_JOB) == 0
    assert cost_of(rows, job_key=JOB) == Decimal("0.04")


def test_a4_a_line_without_resource_is_explained_by_measured_bytes_and_never_scaled_up(warehouse: Warehouse) -> None:
    compute = line(row_number=9, charge_scope="gpu_compute")
    loose = line(None, node_key=-1, resource_id=None)
    rows = attribute(warehouse, [compute, loose], [traffic(4, 3)])
    assert cost_of(rows, job_key=JOB) == Decimal("0.04")
    assert cost_of(rows, reason="unexplained") == Decimal("0.06")


def test_a4_a_nodes_own_lines_take_its_bytes_before_the_accounts_line(warehouse: Warehouse) -> None:
    compute = [
        line(row_number=8, charge_scope="gpu_compute"),
        line(row_number=9, charge_scope="gpu_compute", node_key=OTHER_NODE),
    ]
    loose = line(None, row_number=2, node_key=-1, resource_id=None)
    weights = [traffic(10), traffic(3, node_key=OTHER_NODE, job_key=PEER_JOB)]
    rows = attribute(warehouse, [*compute, line(), loose], weights)
    assert cost_of(rows, row_number=1, job_key=JOB) == Decimal("0.1")
    assert cost_of(rows, row_number=2, job_key=PEER_JOB) == Decimal("0.03")
    assert cost_of(rows, row_number=2, job_key=JOB) == 0


@pytest.mark.parametrize(("accounts", "reason"), [(None, "no_resource_id"), ('["acct"]', None)])
def test_a4_flow_shares_split_an_account_only_when_it_is_dedicated(
    warehouse: Warehouse, accounts: str | None, reason: str | None
) -> None:
    compute = line(row_number=9, charge_scope="gpu_compute")
    rows = attribute(warehouse, [compute, line(None, node_key=-1, resource_id=None)], [flows(3)], accounts=accounts)
    assert rows["reason"].to_list() == [reason]
    assert rows["billed_cost"].to_list() == [Decimal("0.1")]


def test_a4_a_known_resource_that_is_no_node_is_never_split(warehouse: Warehouse) -> None:
    rows = attribute(warehouse, [line(node_key=-1, resource_id="nat-1")], [traffic(4)])
    assert rows.select("job_key", "billed_cost", "reason").rows() == [(-1, Decimal("0.1"), "not_a_node")]


def test_a4_without_any_traffic_a_line_is_no_evidence_in_full(warehouse: Warehouse) -> None:
    lines = [line(), line(None, row_number=2, node_key=-1, resource_id=None)]
    rows = attribute(warehouse, lines, [])
    assert (
        rows.select("billed_cost", "billed_gb", "reason", "policy").rows()
        == [(Decimal("0.1"), 10.0, "no_evidence", "none")] * 2
    )


def test_a6_rows_tell_coordinator_worker_and_storage_apart(warehouse: Warehouse) -> None:
    weights = [
        traffic(1, role="worker", peer_role="coordinator"),
        traffic(2, role="worker", peer_role="worker", source_zone_key=3),
        traffic(
            3, role="worker", peer_job_key=-1, peer_role=None, peer_name="storage/minio", peer_resolved_by="service"
        ),
    ]
    rows = attribute(warehouse, [line()], weights).filter(pl.col("reason").is_null())
    assert sorted(rows.select("peer_role", "peer_name", "source_zone_key", "billed_gb").rows(), key=str) == sorted(
        [("coordinator", "ns/peer", 1, 1.0), ("worker", "ns/peer", 3, 2.0), (None, "storage/minio", 1, 3.0)], key=str
    )


def test_b2_a_line_longer_than_a_day_and_an_unknown_unit_say_why(warehouse: Warehouse) -> None:
    lines = [line(None, charge_span="period"), line(row_number=2, unit="Gb-Mo")]
    rows = attribute(warehouse, lines, [traffic(4)])
    assert rows["reason"].to_list() == ["longer_than_a_day", "unknown_unit"]


def test_b3_unknown_effective_cost_stays_unknown_on_each_part(warehouse: Warehouse) -> None:
    rows = attribute(warehouse, [line(effective_cost=None)], [traffic(4)])
    assert rows["effective_cost"].to_list() == [None, None]


def test_b10_a_ratio_near_the_gibibyte_is_a_likely_unit_mismatch(warehouse: Warehouse) -> None:
    attribute(warehouse, [line()], [traffic(10 * 2**30 / 1e9)])
    found = measured_over_billed(warehouse)
    assert found["ratio"].to_list() == [pytest.approx(1.0737, abs=1e-3)]
    assert found["likely_unit_mismatch"].to_list() == [True]


@contextmanager
def empty_warehouse() -> Iterator[Warehouse]:
    with Warehouse() as opened:
        opened.stage_frames()
        yield opened


def random_lines(seed: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Two days of lines and traffic of every sort that the rules know."""
    dice = random.Random(seed)
    lines, weights = [], []
    for number in range(dice.randint(1, 14)):
        day, hour = DAY + timedelta(days=dice.randint(0, 1)), dice.choice([None, 0, 1, 2])
        lines.append(
            line(hour, row_number=number, direction=dice.choice(["in", "out", None]),
                 node_key=dice.choice([NODE, OTHER_NODE, -1]), resource_id=dice.choice(["i-1", None]),
                 charge_category=dice.choice(["Usage", "Usage", "Adjustment"]), quantity=Decimal(dice.randint(-1, 9)) / 3,
                 billed_cost=Decimal(dice.randint(-(10**11), 10**12)) / 10**12, effective_cost=Decimal(dice.randint(0, 10**12)) / 10**12)
            | {"date": day}
        )  # fmt: skip
    for _ in range(dice.randint(0, 25)):
        make = dice.choice([traffic, traffic, flows])
        weights.append(
            make(dice.choice([0.0000001, 0.3, 1 / 3, 7.1]), dice.randint(0, 3), job_key=dice.choice([JOB, PEER_JOB, -1]),
                 node_key=dice.choice([NODE, OTHER_NODE]), direction=dice.choice(["in", "out"]),
                 locality=dice.choice(["cross_zone", "unknown", "same_zone"]))
            | {"date": DAY + timedelta(days=dice.randint(0, 1))}
        )  # fmt: skip
    return lines, weights


BOTH_DAYS = Window(DAY, DAY + timedelta(days=2))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 10**9))
def test_n6_parts_sum_to_their_line_and_n7_neither_order_nor_window_matters(seed: int) -> None:
    lines, weights = random_lines(seed)
    with empty_warehouse() as warehouse:
        rows = attribute(warehouse, lines, weights, window=BOTH_DAYS)
    for measure in ("billed_cost", "effective_cost"):
        for bill in lines:
            parts = rows.filter(pl.col("row_number") == bill["row_number"])[measure]
            assert sum(parts.to_list(), Decimal(0)) == bill[measure]
    with empty_warehouse() as warehouse:
        dice = random.Random(seed)
        dice.shuffle(lines)
        dice.shuffle(weights)
        attribute(warehouse, lines, weights, window=Window(DAY + timedelta(days=1), DAY + timedelta(days=2)))
        build_transfer_cost(warehouse, WINDOW, Parameters())
        build_transfer_cost(warehouse, WINDOW, Parameters())
        again = warehouse.table("core.transfer_cost")
    order = [
        "date",
        "row_number",
        "node_key",
        "job_key",
        "reason",
        "direction",
        "basis",
        "metered_bytes",
        "billed_cost",
    ]
    assert rows.sort(order, nulls_last=True).equals(again.sort(order, nulls_last=True))
