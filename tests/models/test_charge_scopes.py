"""The table of charge scopes (B2): each usage type in one scope, FOCUS by its statuses, and what no rule meets is `other`."""

from __future__ import annotations

import re
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl

from connectors.objects import Source
from models import bill
from models.contracts import TABLES
from models.engine.warehouse import Warehouse, Window
from models.parameters import Parameters
from tests.models.bill_world import at, home, on, stage_source

SCOPES = {
    "gpu_compute", "other_compute", "inter_az_transfer", "regional_other", "peering", "inter_region_transfer", "internet_transfer",
    "nat", "private_link", "transit_gateway", "public_ip", "load_balancer", "commitment_purchase", "commitment_unused",
    "capacity_unused", "control_plane", "software", "storage", "tax", "credit", "refund", "support", "other",
}  # fmt: skip


def lines_of(warehouse: Warehouse, *rows: dict[str, Any]) -> list[tuple[Any, ...]]:
    """(charge scope, direction, certain) of each row, given in the terms of staging."""
    delivery = {"delivery_id": "d", "source": "s", "provider": "aws", "export_scope": "s", "dataset": "cur2", "billing_period": "2026-11",
                "covers_from": at(1), "covers_to": at(31), "submitted_utc": at(24), "files": 1, "rows_read": 1, "net_basis": False,
                "amortised": True}  # fmt: skip
    base = {"delivery_id": "d", "object_id": "o", "provider": "aws", "billing_account_id": "1", "billing_period": "2026-11",
            "billing_period_start": at(1), "billing_period_end": at(31), "charge_period_start": at(23, 10), "charge_period_end": at(23, 11),
            "charge_category": "Usage", "billed_cost": Decimal(1), "effective_cost": Decimal(1), "billing_currency": "USD"}  # fmt: skip
    warehouse.append("staging.bill_delivery", TABLES["staging.bill_delivery"].frame([delivery]))
    frame = TABLES["staging.bill_line"].frame([{**base, "row_number": n, **row} for n, row in enumerate(rows, 1)])
    warehouse.append("staging.bill_line", frame)
    bill.build_bill_line(warehouse, on(23), Parameters())
    return warehouse.query(
        "SELECT charge_scope, direction, scope_certain FROM core.bill_line WHERE part = 1 ORDER BY row_number"
    ).rows()


def test_b2_every_rule_names_a_scope_of_the_list_and_a_pattern_that_compiles() -> None:
    rules = bill.scope_rules()
    assert set(rules["charge_scope"]) <= SCOPES | {"compute"}
    for column in ("usage_type", "operation", "service", "description"):
        for pattern in rules[column].drop_nulls():
            re.compile(pattern)
    conditions = ["usage_type", "operation", "line_item_type", "charge_category", "service", "description", "commitment",
                  "commitment_status", "capacity_status"]  # fmt: skip
    assert rules.filter(pl.all_horizontal(pl.col(name).is_null() for name in conditions)).is_empty()


# usage type, operation -> scope, direction, certain
AWS_LINES: list[tuple[str, str | None, tuple[Any, ...]]] = [
    ("EU-DataTransfer-Regional-Bytes", "InterZone-In", ("inter_az_transfer", "in", True)),
    ("DataTransfer-Regional-Bytes", "InterZone-Out", ("inter_az_transfer", "out", True)),
    ("USE1-DataTransfer-xAZ-Out-Bytes", "LoadBalancing", ("inter_az_transfer", "out", True)),
    ("DataTransfer-Regional-Bytes", "LoadBalancing-PublicIP-In", ("regional_other", None, True)),
    ("DataTransfer-Regional-Bytes", "VPCPeering-Out", ("peering", None, True)),
    ("USW2-VpcPeering-In-Bytes", None, ("peering", None, True)),
    ("DataTransfer-Regional-Bytes", None, ("inter_az_transfer", None, False)),
    ("USE1-DataTransfer-AZ-In-Bytes", None, ("regional_other", None, True)),
    ("USE1-USW2-AWS-Out-Bytes", None, ("inter_region_transfer", None, True)),
    ("USE1-AWS-Out-Bytes", None, ("inter_region_transfer", None, True)),
    ("EU-DataTransfer-Out-Bytes", None, ("internet_transfer", None, True)),
    ("NatGateway-Prvd-Hours", None, ("nat", None, True)),
    ("VpcEndpoint-Hours", None, ("private_link", None, True)),
    ("UnusedBox:p5.48xlarge", "RunInstances", ("capacity_unused", None, True)),
    ("Reservation:p5.48xlarge", "RunInstances", ("other", None, True)),
    ("USE1-SoftwareUsage:m5.large", None, ("software", None, True)),
    ("Mystery-Bytes", None, ("other", None, True)),
]


def test_b2_aws_usage_type_and_operation(warehouse: Warehouse) -> None:
    found = lines_of(
        warehouse, *({"x_usage_type": usage, "x_operation": operation} for usage, operation, _ in AWS_LINES)
    )
    assert dict(zip(AWS_LINES, found, strict=True)) == {line: line[2] for line in AWS_LINES}


def test_b6_compute_is_gpu_compute_by_its_instance_type(warehouse: Warehouse) -> None:
    types = {"p5.48xlarge": "gpu_compute", "g6e.12xlarge": "gpu_compute", "trn1.32xlarge": "gpu_compute", "m7i.large": "other_compute",
             "pi.large": "other_compute", None: "other_compute"}  # fmt: skip
    rows = [
        {"x_usage_type": f"BoxUsage:{name}", "x_operation": "RunInstances", "x_instance_type": name} for name in types
    ]
    assert [scope for scope, _, _ in lines_of(warehouse, *rows)] == list(types.values())


def test_b2_focus_statuses_and_categories(warehouse: Warehouse) -> None:
    plan = {"commitment_discount_id": "sp-1", "x_usage_type": "BoxUsage:p5.48xlarge", "x_instance_type": "p5.48xlarge"}
    expected: list[tuple[dict[str, Any], str]] = [
        ({"charge_category": "Purchase", "commitment_discount_id": "sp-1"}, "commitment_purchase"),
        ({"charge_category": "Purchase"}, "other"),
        ({**plan, "commitment_discount_status": "Unused"}, "commitment_unused"),
        ({**plan, "commitment_discount_status": "Used"}, "gpu_compute"),
        ({"capacity_reservation_status": "Unused", "x_usage_type": "BoxUsage:p5.48xlarge"}, "capacity_unused"),
        (
            {"charge_category": "Credit", "x_usage_type": "DataTransfer-Regional-Bytes", "x_operation": "InterZone-In"},
            "credit",
        ),
        ({"charge_category": "Tax"}, "tax"),
        ({"x_line_item_type": "Fee", "charge_category": "Purchase", "service_name": "AmazonRoute53"}, "other"),
        (
            {"x_line_item_type": "Fee", "charge_category": "Purchase", "commitment_discount_id": "ri-1"},
            "commitment_purchase",
        ),
    ]
    assert [scope for scope, _, _ in lines_of(warehouse, *(row for row, _ in expected))] == [
        scope for _, scope in expected
    ]


def test_b3_the_specifications_savings_plan_day_is_used_and_unused(tmp_path: Path, shared_data: Path) -> None:
    """All upfront, 75 % used: billed 459,024 once; effective 943.20 used and 314.40 unused; the purchase is effective 0."""
    example = shared_data / "billing" / "worked_examples" / "focus_spec_aws_savings_plan_all_upfront_75pct_day1.csv"
    given = pl.read_csv(example, infer_schema=False)
    defaults = {"BillingCurrency": "USD", "BillingAccountId": "1", "ProviderName": "AWS", "ChargeCategory": "Usage"}
    frame = given.with_columns(pl.lit(text).alias(name) for name, text in defaults.items() if name not in given.columns)
    (tmp_path / "in").mkdir()
    frame.write_csv(tmp_path / "in" / "plan.csv")
    with home(tmp_path) as warehouse:
        stage_source(warehouse, Source("focus", "focus", tmp_path / "in"))
        days = warehouse.query(
            "SELECT min(billing_period) AS low, max(billing_period) AS high FROM staging.bill_line"
        ).row(0)
        assert days[0] == days[1]
        year, month = (int(part) for part in days[0].split("-"))
        bill.build_bill_line(warehouse, Window(date(year, month, 1), date(year, month, 2)), Parameters())
        sums = warehouse.query(
            "SELECT charge_scope, sum(billed_cost), sum(effective_cost) FROM core.bill_line GROUP BY ALL ORDER BY 1"
        ).rows()
    assert [(scope, billed, effective) for scope, billed, effective in sums if scope.startswith("commitment")] == [
        ("commitment_purchase", Decimal(459024), Decimal(0)),
        ("commitment_unused", Decimal(0), Decimal("314.40")),
    ]
    assert sum(effective for scope, _, effective in sums if not scope.startswith("commitment")) == Decimal("943.20")


def test_the_cluster_of_a_line_comes_from_its_node_then_its_tag_then_a_dedicated_account(tmp_path: Path) -> None:
    with home(tmp_path) as warehouse:
        clusters = [{"cluster": "c.2", "provider": "aws", "accounts": '["900"]'}, {"cluster": "c3", "provider": "aws"}]
        warehouse.append("staging.cluster", TABLES["staging.cluster"].frame(clusters))
        lines_of(
            warehouse,
            {"resource_id": "arn:aws:ec2:us-east-1:2:instance/I-1"},
            {"resource_id": "i-1", "tags": '{"aws:eks:cluster-name": "c3"}'},
            {"tags": '{"aws_eks_cluster_name": "c3"}', "sub_account_id": "900"},
            {"tags": '{"kubernetes.io/cluster/c.2": "owned"}'},
            {"tags": '{"user_kubernetes_io_cluster_c_2": "owned"}'},
            {"tags": '{"kubernetes.io/cluster/c3": "shared", "kubernetes.io/cluster/c.2": "shared"}'},
            {"tags": '{"kubernetes.io/cluster/\\"]; drop": "x", "cluster": 1}', "sub_account_id": "900"},
            {"resource_id": "i-elsewhere"},
        )  # fmt: skip
        named = warehouse.query(
            "SELECT c.cluster, line.node_key FROM core.bill_line AS line"
            " LEFT JOIN staging.cluster AS c ON line.cluster_key = stable_key(c.cluster) ORDER BY row_number"
        ).rows()
    assert named == [("c1", 11), ("c1", 11), ("c3", -1), ("c.2", -1), ("c.2", -1), (None, -1), ("c.2", -1), (None, -1)]
