"""The bill of a simulated cluster: AWS CUR 2.0 parquet in the Data Exports layout, and what each job's crossings cost.

Hourly lines with resource ids: on-demand, savings plan (covered, negation, recurring fee), spot, inter-AZ in and out of
every instance, NAT, internet, load balancer, storage, control plane, tax and credit. Amounts are doubles, as AWS writes
them; quantities and prices are such that each line's cost is its quantity times its price.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from connectors.simulated.traffic import crosses_zones, hourly_bytes
from connectors.simulated.world import SimNode, World

SECOND = 1_000_000_000
HOUR = 3600 * SECOND
EXPORT, PREFIX = "cur2-hourly", "exports"
INTER_AZ_PRICE = Decimal("0.01")
SPOT_SHARE, PLAN_SHARE = Decimal("0.38"), Decimal("0.62")
PLAN_ARN = "arn:aws:savingsplans::{account}:savingsplan/3f1c-plan"
TEXT = (
    "bill_bill_type", "bill_billing_entity", "bill_invoice_id", "bill_payer_account_id", "identity_line_item_id",
    "identity_time_interval", "line_item_availability_zone", "line_item_legal_entity", "line_item_line_item_description",
    "line_item_line_item_type", "line_item_operation", "line_item_product_code", "line_item_resource_id",
    "line_item_unblended_rate", "line_item_usage_account_id", "line_item_usage_type", "line_item_currency_code", "pricing_term",
    "pricing_unit", "product_instance_type", "product_product_family", "product_region_code", "product_servicecode", "product_sku",
    "reservation_reservation_a_r_n", "savings_plan_savings_plan_a_r_n",
)  # fmt: skip
AMOUNTS = (
    "line_item_unblended_cost", "line_item_usage_amount", "pricing_public_on_demand_cost", "reservation_effective_cost",
    "reservation_unused_amortized_upfront_fee_for_billing_period", "reservation_unused_recurring_fee",
    "savings_plan_savings_plan_effective_cost", "savings_plan_total_commitment_to_date", "savings_plan_used_commitment",
)  # fmt: skip
TIMES = (
    "bill_billing_period_start_date",
    "bill_billing_period_end_date",
    "line_item_usage_start_date",
    "line_item_usage_end_date",
)
SCHEMA = pa.schema(
    [pa.field(name, pa.string()) for name in TEXT]
    + [pa.field(name, pa.float64()) for name in AMOUNTS]
    + [pa.field(name, pa.timestamp("ms")) for name in TIMES]
    + [
        pa.field("product", pa.map_(pa.string(), pa.string())),
        pa.field("resource_tags", pa.map_(pa.string(), pa.string())),
    ]
)
Line = dict[str, Any]


def write(world: World, folder: Path) -> dict[str, Any]:
    """Write the export; returns the truth of the bill: totals, and inter-AZ cost by job and direction."""
    by_period: dict[str, list[Line]] = defaultdict(list)
    truth: list[dict[str, object]] = []
    for line in _lines(world, truth):
        by_period[f"{line['line_item_usage_start_date']:%Y-%m}"].append(line)
    for period, lines in sorted(by_period.items()):
        _write_period(world, folder / PREFIX / EXPORT, period, lines)
    billed = sum(
        (Decimal(repr(line["line_item_unblended_cost"])) for lines in by_period.values() for line in lines), Decimal(0)
    )
    return {"billed": str(billed), "lines": sum(map(len, by_period.values())), "transfer": truth}


def _write_period(world: World, root: Path, period: str, lines: list[Line]) -> None:
    """Two chunks and a manifest that names them under a bucket of its own; an orphan chunk that nothing names."""
    data, metadata = root / "data" / f"BILLING_PERIOD={period}", root / "metadata" / f"BILLING_PERIOD={period}"
    data.mkdir(parents=True, exist_ok=True)
    metadata.mkdir(parents=True, exist_ok=True)
    half = (len(lines) + 1) // 2
    names = []
    for number, part in enumerate((lines[:half], lines[half:]), 1):
        name = f"{EXPORT}-{number:05d}.snappy.parquet"
        pq.write_table(pa.Table.from_pylist(part, schema=SCHEMA), data / name, compression="snappy")
        names.append(
            f"s3://billing-{world.scenario.payer_account}/{PREFIX}/{EXPORT}/data/BILLING_PERIOD={period}/{name}"
        )
    (data / f"{EXPORT}-00003.snappy.parquet").write_bytes(b"")  # blanked by the delivery, in no manifest
    columns = [{"name": field.name, "type": str(field.type).upper()} for field in SCHEMA]
    manifest = {"exportName": EXPORT, "billingPeriod": period, "dataFiles": names, "columns": columns}
    (metadata / f"{EXPORT}-Manifest.json").write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    (metadata / f"{EXPORT}-Manifest-FOCUS.json").write_text('{"Schema":{"ColumnDefinition":[]}}', encoding="utf-8")


def _lines(world: World, truth: list[dict[str, object]]) -> Iterator[Line]:
    for node in world.nodes:
        yield from _compute(world, node)
    yield from _inter_az(world, truth)
    yield from _other(world)


def _when(ns: int) -> datetime:
    return datetime.fromtimestamp(ns / SECOND, UTC).replace(tzinfo=None)


def _line(world: World, start: int, end: int, **values: Any) -> Line:
    """A line with the columns that every line has; costs are decimals turned to doubles by their text."""
    scenario, begin = world.scenario, _when(start)
    month = begin.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    identity = hashlib.sha256(f"{start}|{end}|{sorted(values.items(), key=str)}".encode()).hexdigest()[:32]
    line: Line = dict.fromkeys((*TEXT, *AMOUNTS))
    line |= {
        "bill_bill_type": "Anniversary", "bill_billing_entity": "AWS", "bill_payer_account_id": scenario.payer_account,
        "bill_billing_period_start_date": month, "bill_billing_period_end_date": (month + timedelta(days=32)).replace(day=1),
        "identity_line_item_id": identity, "identity_time_interval": f"{begin:%Y-%m-%dT%H:%M:%SZ}/{_when(end):%Y-%m-%dT%H:%M:%SZ}",
        "line_item_usage_start_date": begin, "line_item_usage_end_date": _when(end), "line_item_currency_code": "USD",
        "line_item_usage_account_id": scenario.account, "line_item_legal_entity": "Amazon Web Services, Inc.",
        "line_item_line_item_type": "Usage", "line_item_product_code": "AmazonEC2", "product_region_code": scenario.region,
        "product": [], "resource_tags": [],
    }  # fmt: skip
    line |= {name: float(value) if isinstance(value, Decimal) else value for name, value in values.items()}
    return line


def _hours(world: World, start: int, end: int) -> Iterator[tuple[int, int, Decimal]]:
    """(hour start, hour end, share of the hour that lies in [start, end)), to the second."""
    hour = max(start, world.from_ns) // HOUR * HOUR
    while hour < min(end, world.to_ns):
        low, high = max(hour, start, world.from_ns), min(hour + HOUR, end, world.to_ns)
        if high > low:
            yield hour, hour + HOUR, Decimal((high - low) // SECOND) / 3600
        hour += HOUR


def _compute(world: World, node: SimNode) -> Iterator[Line]:
    price = Decimal(node.hourly_price)
    cluster = [("aws_eks_cluster_name", world.scenario.cluster)]
    for start, end, share in _hours(world, node.created_ns, node.deleted_ns or world.to_ns):
        share = share.quantize(Decimal("0.000001"))
        common = {
            "line_item_resource_id": node.instance_id, "line_item_availability_zone": node.zone.name, "line_item_usage_amount": share,
            "pricing_unit": "Hrs", "line_item_operation": "RunInstances", "product_product_family": "Compute Instance",
            "product_servicecode": "AmazonEC2", "resource_tags": cluster, "pricing_public_on_demand_cost": price * share,
        }  # fmt: skip
        if node.lifecycle == "spot":
            yield _line(world, start, end, **common, line_item_usage_type=f"SpotUsage:{node.instance_type}",
                        line_item_unblended_cost=price * SPOT_SHARE * share,
                        line_item_line_item_description=f"{node.instance_type} Linux/UNIX Spot Instance-hour in US East")  # fmt: skip
            continue
        common |= {"line_item_usage_type": f"BoxUsage:{node.instance_type}", "product_instance_type": node.instance_type,
                   "line_item_unblended_cost": price * share}  # fmt: skip
        if not node.committed:
            text = f"${price} per On Demand Linux {node.instance_type} Instance Hour"
            yield _line(world, start, end, **common, line_item_line_item_description=text, pricing_term="OnDemand")
            continue
        plan = PLAN_ARN.format(account=world.scenario.account)
        yield _line(world, start, end, **common | {"line_item_line_item_type": "SavingsPlanCoveredUsage"},
                    savings_plan_savings_plan_a_r_n=plan, savings_plan_savings_plan_effective_cost=price * PLAN_SHARE * share,
                    line_item_line_item_description=f"{node.instance_type} covered by a savings plan")  # fmt: skip
        negation = {"line_item_usage_type": common["line_item_usage_type"], "line_item_unblended_cost": -price * share,
                    "line_item_line_item_type": "SavingsPlanNegation", "line_item_operation": "RunInstances"}  # fmt: skip
        yield _line(world, start, end, **negation, savings_plan_savings_plan_a_r_n=plan,
                    line_item_line_item_description="SavingsPlanNegation used by AccountId")  # fmt: skip


def _inter_az(world: World, truth: list[dict[str, object]]) -> Iterator[Line]:
    """One line an instance, hour and direction with traffic; the same bytes are billed at both ends."""
    metered: dict[tuple[SimNode, int, str], int] = defaultdict(int)
    owed: dict[tuple[str, str], Decimal] = defaultdict(Decimal)
    for connection in world.connections:
        if not crosses_zones(connection) or connection.client is None or connection.server is None:
            continue
        client, server = connection.client, connection.server
        for hour, sent, received in hourly_bytes(connection):
            for sender, receiver, count in ((client, server, sent), (server, client, received)):
                if not count or sender.node is None or receiver.node is None:
                    continue
                metered[(sender.node, hour, "Out")] += count
                metered[(receiver.node, hour, "In")] += count
                cost = Decimal(count) / 1_000_000_000 * INTER_AZ_PRICE
                owed[(sender.job.uid if sender.job else "", "out")] += cost
                owed[(receiver.job.uid if receiver.job else "", "in")] += cost
    truth.extend({"job_uid": job, "direction": way, "cost_usd": str(cost)} for (job, way), cost in sorted(owed.items()))
    for (node, hour, way), count in sorted(metered.items(), key=lambda item: (item[0][1], item[0][0].name, item[0][2])):
        gigabytes = Decimal(count) / 1_000_000_000
        yield _transfer(world, hour, f"InterZone-{way}", node.instance_id, gigabytes, gigabytes * INTER_AZ_PRICE)


def _transfer(world: World, hour: int, operation: str, resource: str, gigabytes: Decimal, cost: Decimal) -> Line:
    return _line(
        world, hour, hour + HOUR, line_item_usage_type="DataTransfer-Regional-Bytes", line_item_operation=operation,
        line_item_resource_id=resource, line_item_usage_amount=gigabytes, pricing_unit="GB", line_item_unblended_cost=cost,
        pricing_public_on_demand_cost=cost, product_servicecode="AWSDataTransfer", product_product_family="Data Transfer",
        line_item_line_item_description="$0.010 per GB - regional data transfer - in/out/between EC2 AZs or using elastic IPs or ELB",
    )  # fmt: skip


def _other(world: World) -> Iterator[Line]:
    """What a bill holds beside nodes: a database's own crossings, public addresses, NAT, internet, plans, tax, credit."""
    for start in range(world.from_ns, world.to_ns, HOUR):
        end, hour = start + HOUR, (start // HOUR) % 24
        yield _transfer(world, start, "InterZone-In", "i-0d4tabase000000001", Decimal("1.25"), Decimal("0.0125"))
        yield _transfer(world, start, "PublicIP-Out", world.nodes[-1].instance_id, Decimal("0.4"), Decimal("0.004"))
        yield _line(world, start, end, line_item_usage_type="NatGateway-Hours", line_item_operation="NatGateway", pricing_unit="Hrs",
                    line_item_usage_amount=Decimal(1), line_item_unblended_cost=Decimal("0.045"), line_item_resource_id="nat-0a1b",
                    line_item_line_item_description="$0.045 per NAT Gateway Hour")  # fmt: skip
        yield _line(world, start, end, line_item_usage_type="NatGateway-Bytes", line_item_operation="NatGateway", pricing_unit="GB",
                    line_item_usage_amount=Decimal("3.5"), line_item_unblended_cost=Decimal("0.1575"), line_item_resource_id="nat-0a1b",
                    line_item_line_item_description="$0.045 per GB Data Processed by NAT Gateways")  # fmt: skip
        yield _line(world, start, end, line_item_usage_type="DataTransfer-Out-Bytes", line_item_operation="RunInstances",
                    line_item_usage_amount=Decimal("0.8"), line_item_unblended_cost=Decimal("0.072"), pricing_unit="GB",
                    line_item_resource_id=world.nodes[0].instance_id, line_item_line_item_description="$0.090 per GB - first 10 TB")  # fmt: skip
        yield _line(world, start, end, line_item_usage_type="USE1-AmazonEKS-Hours:perCluster", line_item_product_code="AmazonEKS",
                    line_item_operation="CreateOperation", line_item_usage_amount=Decimal(1), line_item_unblended_cost=Decimal("0.10"),
                    pricing_unit="Hrs", line_item_line_item_description="Amazon EKS cluster usage")  # fmt: skip
        yield _line(world, start, end, line_item_usage_type="EBS:VolumeUsage.gp3", line_item_operation="CreateVolume-Gp3",
                    line_item_usage_amount=Decimal("0.7"), line_item_unblended_cost=Decimal("0.056"), pricing_unit="GB-Mo",
                    line_item_resource_id=f"vol-{hour:04d}", line_item_line_item_description="$0.08 per GB-month of gp3")  # fmt: skip
        commitment, used = Decimal("24.00"), _plan_used(world, start)
        yield _line(world, start, end, line_item_line_item_type="SavingsPlanRecurringFee", line_item_product_code="ComputeSavingsPlans",
                    line_item_usage_type="ComputeSP:1yrNoUpfront", line_item_unblended_cost=commitment,
                    line_item_usage_amount=Decimal(1), savings_plan_total_commitment_to_date=commitment,
                    savings_plan_used_commitment=min(used, commitment),
                    savings_plan_savings_plan_a_r_n=PLAN_ARN.format(account=world.scenario.account),
                    line_item_line_item_description="1 year No Upfront Compute Savings Plan")  # fmt: skip
    first = _when(world.from_ns).replace(day=1, hour=0)
    month = int((first - datetime(1970, 1, 1)).total_seconds()) * SECOND
    following = int(((first + timedelta(days=32)).replace(day=1) - datetime(1970, 1, 1)).total_seconds()) * SECOND
    yield _line(world, month, following, line_item_line_item_type="Tax", line_item_unblended_cost=Decimal("118.42"),
                line_item_line_item_description="Tax for product code AmazonEC2")  # fmt: skip
    yield _line(world, month, following, line_item_line_item_type="Credit", line_item_unblended_cost=Decimal("-35.576771"),
                line_item_usage_type="DataTransfer-Regional-Bytes",
                line_item_line_item_description="Data Transfer Pricing Adjustment")  # fmt: skip


def _plan_used(world: World, start: int) -> Decimal:
    """What the covered nodes used of the plan in an hour."""
    used = Decimal(0)
    for node in world.nodes:
        if node.committed:
            for hour, _, share in _hours(world, node.created_ns, node.deleted_ns or world.to_ns):
                if hour == start:
                    used += Decimal(node.hourly_price) * PLAN_SHARE * share
    return used.quantize(Decimal("0.0000000001"))
