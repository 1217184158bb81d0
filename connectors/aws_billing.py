"""AWS CUR 2.0 through Data Exports: manifests first, never a glob; one delivery is one batch.

Layout and columns: the AWS Data Exports user guide. The manifest directly below `metadata/BILLING_PERIOD=YYYY-MM/` names
the files in force; older executions, orphans and blanked chunks are in none and are left alone. Rows are mapped in SQL,
so a month of any size is read in bounded memory. Effective cost follows the amortisation table that AWS's cost
dashboards use (line types to columns), one price basis per delivery (B3).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import PurePosixPath

import duckdb

from connectors.errors import BillUnreadable, DeliveryIncomplete, FormatUnknown, UnsafePath
from connectors.objects import LandedObject, Source, csv_header, list_objects
from connectors.sink import Batch, Lake, keep_as_received
from models.contracts import TABLES

LINE, DELIVERY = "staging.bill_line", "staging.bill_delivery"
_MANIFEST = re.compile(
    r"^(?P<root>(?:.*/)?)metadata/billing_period=(?P<period>\d{4}-\d{2})/[^/]+-manifest\.json$", re.IGNORECASE
)
_DATA_TAIL = re.compile(r"(?:^|/)(data/billing_period=\d{4}-\d{2}/.*)$", re.IGNORECASE)
# rows of split cost allocation repeat the cost of their instance: no money of their own (facts: SCAD)
SPLIT_COST_OPERATIONS = ("EKSPod-EC2", "ECSTask-EC2")
COLLAPSE_RATIO = 0.5


@dataclass(frozen=True)
class Delivery:
    """One manifest and the data files that it names, all present."""

    manifest: LandedObject
    period: str
    scope: str
    files: tuple[LandedObject, ...]

    @property
    def delivery_id(self) -> str:
        parts = [self.scope, self.period, self.manifest.digest, *(f.digest for f in self.files)]
        return hashlib.sha256("\x1f".join(parts).encode()).hexdigest()[:32]


def stage(source: Source, lake: Lake, progress: Callable[[str], None]) -> None:
    """Stage each delivery that is new. Raises DeliveryIncomplete, BillUnreadable or FormatUnknown; then nothing of it is kept."""
    known = set(lake.loads()["object_id"])
    for delivery in deliveries(source):
        if delivery.manifest.object_id in known and all(f.object_id in known for f in delivery.files):
            continue
        progress(f"{source.name}: billing period {delivery.period}, {len(delivery.files)} files")
        _stage_delivery(delivery, lake)


def deliveries(source: Source) -> list[Delivery]:
    """Every period-level manifest of the source with its files, oldest submission first."""
    landed = list_objects(source)
    by_name = {entry.location.lower(): entry for entry in landed}
    found = []
    for entry in landed:
        match = _MANIFEST.match(entry.location)
        if match and not entry.location.lower().endswith("-manifest-focus.json"):
            found.append(_delivery(source, entry, match["root"], match["period"], by_name))
    if not found:
        raise FormatUnknown(
            f"source {source.name!r} holds no CUR 2.0 manifest",
            where=str(source.location),
            fix="name the export's folder: the one with data/ and metadata/ (metadata/BILLING_PERIOD=YYYY-MM/...-Manifest.json)",
        )
    return sorted(found, key=lambda d: (d.period, d.manifest.modified_ns, d.manifest.location))


def _delivery(
    source: Source, entry: LandedObject, root: str, period: str, by_name: dict[str, LandedObject]
) -> Delivery:
    try:
        manifest = json.loads(entry.path.read_text(encoding="utf-8"))
        names = manifest.get("dataFiles") or manifest.get("reportKeys") or []
    except (ValueError, AttributeError) as error:
        raise DeliveryIncomplete(
            f"the manifest can't be read: {error}", where=entry.location, fix="copy the delivery again"
        ) from error
    files = []
    for name in names:
        tail = _DATA_TAIL.search(str(name))
        if tail is None or ".." in PurePosixPath(str(name)).parts:
            raise UnsafePath(
                f"the manifest names {str(name)!r}, which is not below data/BILLING_PERIOD=...",
                where=entry.location,
                fix="copy the delivery again from its bucket",
            )
        found = by_name.get(f"{root}{tail[1]}".lower())
        if found is None or found.size_bytes == 0:
            raise DeliveryIncomplete(
                f"data file {tail[1]} is {'empty' if found else 'missing'}",
                where=f"{source.name}: {entry.location}",
                fix="wait for the delivery to finish, or copy that file; until then the previous delivery stays in force",
            )
        files.append(found)
    if not files:
        raise DeliveryIncomplete(
            "the manifest names no data files", where=entry.location, fix="check the export in AWS"
        )
    return _named_apart(Delivery(entry, period, f"{source.name}/{root or '.'}", tuple(files)))


def _named_apart(delivery: Delivery) -> Delivery:
    """Each delivery has objects of its own, though a file or the manifest may be the same as in the one before."""

    def own(landed: LandedObject) -> LandedObject:
        identity = f"{delivery.delivery_id}\x1f{landed.object_id}"
        return replace(landed, object_id=hashlib.sha256(identity.encode()).hexdigest()[:32])

    return replace(delivery, manifest=own(delivery.manifest), files=tuple(own(landed) for landed in delivery.files))


def _stage_delivery(delivery: Delivery, lake: Lake) -> None:
    batch = lake.batch(delivery.manifest, *delivery.files)
    try:
        with duckdb.connect(config={"memory_limit": "2GB"}) as con:
            con.execute("SET TimeZone = 'UTC'")
            con.execute("SET preserve_insertion_order = true")
            con.execute(f"SET temp_directory = '{_literal(str(lake.root / 'spill'))}'")
            columns = _columns(con, delivery)
            net = _has_net(con, delivery, columns)
            _load_netting(con, delivery, columns, net)
            rows = sum(_stage_file(con, delivery, landed, batch, columns, net) for landed in delivery.files)
    except duckdb.Error as error:
        raise BillUnreadable(
            f"a data file of {delivery.period} can't be read: {str(error).splitlines()[0]}",
            where=delivery.manifest.location,
            fix="copy the delivery again; the previous one stays in force",
        ) from error
    _refuse_collapse(delivery, lake, rows)
    start, end = period_bounds(delivery.period)
    batch.count(delivery.manifest, DELIVERY).read += 1
    batch.write(
        delivery.manifest,
        DELIVERY,
        TABLES[DELIVERY].frame(
            [
                {
                    "delivery_id": delivery.delivery_id,
                    "source": delivery.manifest.source.name,
                    "provider": "aws",
                    "export_scope": delivery.scope,
                    "dataset": "cur2",
                    "billing_period": delivery.period,
                    "covers_from": start,
                    "covers_to": end,
                    "submitted_utc": _utc(delivery.manifest.modified_ns),
                    "files": len(delivery.files),
                    "rows_read": rows,
                    "net_basis": net,
                    "amortised": "savings_plan_savings_plan_effective_cost" in columns,
                }
            ]
        ),
    )
    for landed in (delivery.manifest, *delivery.files):
        keep_as_received(lake, landed)
    batch.commit()


def period_bounds(period: str) -> tuple[datetime, datetime]:
    """First moment of a billing period and of the next (`2026-11`)."""
    start = datetime.strptime(period, "%Y-%m")
    return start, (start + timedelta(days=32)).replace(day=1)


def _utc(ns: int) -> datetime:
    return datetime.fromtimestamp(ns / 1e9, UTC).replace(tzinfo=None)


def _refuse_collapse(delivery: Delivery, lake: Lake, rows: int) -> None:
    """An empty or collapsed bill is an error, not a small bill (B5)."""
    before = 0
    for file in lake.held_files(DELIVERY):
        with duckdb.connect() as con:
            held = con.execute(
                "SELECT rows_read FROM read_parquet($file) WHERE export_scope = $scope AND billing_period = $period",
                {"file": str(file), "scope": delivery.scope, "period": delivery.period},
            ).fetchall()
        before = max([before, *(int(row[0]) for row in held)])
    allowed = bool(delivery.manifest.source.options.get("allow_collapse"))
    if rows == 0 or (rows < before * COLLAPSE_RATIO and not allowed):
        raise BillUnreadable(
            f"the delivery of {delivery.period} has {rows} rows, the one before had {before}",
            where=delivery.manifest.location,
            fix="check the export; if the bill really shrank, set allow_collapse = true in this source",
        )


# --- reading -------------------------------------------------------------------------------------------------------
def _literal(text: str) -> str:
    return text.replace("'", "''")


def _reader(landed: LandedObject) -> str:
    """A table function over one data file with its row numbers; CSV is read as text throughout."""
    path = _literal(str(landed.path))
    if landed.location.lower().endswith(".parquet"):
        return f"(SELECT *, file_row_number + 1 AS source_row FROM read_parquet('{path}', file_row_number => true))"
    options = "header => true, all_varchar => true, delim => ',', quote => '\"', escape => '\"', auto_detect => false"
    names = csv_header(landed.path)
    typed = ", ".join(f"'{_literal(name)}': 'VARCHAR'" for name in names)
    return f"(SELECT *, row_number() OVER () AS source_row FROM read_csv('{path}', {options}, columns => {{{typed}}}))"


def _columns(con: duckdb.DuckDBPyConnection, delivery: Delivery) -> set[str]:
    """Columns of the delivery (of its first file; chunks of one delivery share a schema)."""
    names = {row[0] for row in con.execute(f"DESCRIBE SELECT * FROM {_reader(delivery.files[0])}").fetchall()}
    required = {"line_item_unblended_cost", "line_item_currency_code", "line_item_line_item_type", "bill_payer_account_id",
                "line_item_usage_start_date", "line_item_usage_end_date"}  # fmt: skip
    missing = required - names
    if missing:
        kind = 'a FOCUS export: use kind = "focus"' if "BilledCost" in names else "no CUR 2.0 export"
        raise FormatUnknown(
            f"columns {', '.join(sorted(missing))} are missing; this is {kind}",
            where=delivery.files[0].location,
            fix="export COST_AND_USAGE_REPORT with its standard columns",
        )
    return names


def _has_net(con: duckdb.DuckDBPyConnection, delivery: Delivery, columns: set[str]) -> bool:
    """One price basis per delivery: net columns where they exist and are filled (B3)."""
    if "line_item_net_unblended_cost" not in columns:
        return False
    return any(
        con.execute(f"SELECT count(line_item_net_unblended_cost) > 0 FROM {_reader(landed)}").fetchall()[0][0]
        for landed in delivery.files
    )


def _money(columns: set[str], gross: str, net_name: str | None, net: bool) -> str:
    """SQL of an amount: the shortest decimal text of a double, so that 0.1 is 0.1, cast to 18 places."""

    def exact(name: str) -> str:
        return f"CAST(nullif(CAST(\"{name}\" AS VARCHAR), '') AS DECIMAL(38,18))" if name in columns else "NULL"

    return f"coalesce({exact(net_name)}, {exact(gross)})" if net and net_name and net_name in columns else exact(gross)


def _text(columns: set[str], name: str) -> str:
    return f"nullif(CAST(\"{name}\" AS VARCHAR), '')" if name in columns else "CAST(NULL AS VARCHAR)"


def _product(columns: set[str], name: str, map_key: str) -> str:
    """A product attribute: its own column, else the entry of the `product` map."""
    entry = f"nullif(product['{map_key}'], '')" if "product" in columns else "NULL"
    return f"coalesce({_text(columns, name)}, {entry})"


def _amounts(columns: set[str], net: bool) -> dict[str, str]:
    covered = _money(
        columns, "savings_plan_savings_plan_effective_cost", "savings_plan_net_savings_plan_effective_cost", net
    )
    reserved = _money(columns, "reservation_effective_cost", "reservation_net_effective_cost", net)
    unused_fee = _money(columns, "reservation_unused_amortized_upfront_fee_for_billing_period",
                        "reservation_net_unused_amortized_upfront_fee_for_billing_period", net)  # fmt: skip
    unused_recurring = _money(columns, "reservation_unused_recurring_fee", "reservation_net_unused_recurring_fee", net)
    total = _money(columns, "savings_plan_total_commitment_to_date", None, net)
    used = _money(columns, "savings_plan_used_commitment", None, net)
    cost = _money(columns, "line_item_unblended_cost", "line_item_net_unblended_cost", net)
    reservation = _text(columns, "reservation_reservation_a_r_n")
    effective = f"""CASE {_text(columns, "line_item_line_item_type")}
        WHEN 'SavingsPlanCoveredUsage' THEN {covered}
        WHEN 'SavingsPlanRecurringFee' THEN {total} - {used}
        WHEN 'SavingsPlanNegation' THEN 0
        WHEN 'SavingsPlanUpfrontFee' THEN 0
        WHEN 'DiscountedUsage' THEN {reserved}
        WHEN 'RIFee' THEN {unused_fee} + {unused_recurring}
        WHEN 'Fee' THEN CASE WHEN {reservation} IS NULL THEN {cost} ELSE 0 END
        WHEN 'Refund' THEN CASE WHEN {_text(columns, "line_item_line_item_description")}
            LIKE 'Refund for one-time fee for Savings Plan ID%' THEN 0 ELSE {cost} END
        ELSE {cost} END"""
    return {"cost": cost, "effective": effective, "list": _money(columns, "pricing_public_on_demand_cost", None, net)}


# A covered row and the negations of its hour cancel: covered usage is billed 0, and the first negation of a group
# takes the group's covered sum, so that the bill's total stays what it is (B3).
_NETTING_KEY = """coalesce({arn}, '') || chr(31) || coalesce({usage_type}, '') || chr(31)
    || CAST(line_item_usage_start_date AS VARCHAR) || chr(31) || coalesce({account}, '')"""


def _netting_key(columns: set[str]) -> str:
    return _NETTING_KEY.format(
        arn=_text(columns, "savings_plan_savings_plan_a_r_n"),
        usage_type=_text(columns, "line_item_usage_type"),
        account=_text(columns, "line_item_usage_account_id"),
    )


def _load_netting(con: duckdb.DuckDBPyConnection, delivery: Delivery, columns: set[str], net: bool) -> None:
    """Temp table `netting`: for each group with covered usage and a negation, its covered sum and the row that takes it."""
    cost = _amounts(columns, net)["cost"]
    kind = _text(columns, "line_item_line_item_type")
    parts = " UNION ALL ".join(
        f"SELECT '{landed.object_id}' AS object_id, source_row, {_netting_key(columns)} AS netting_key, {kind} AS kind,"
        f" {cost} AS cost FROM {_reader(landed)} WHERE {kind} IN ('SavingsPlanCoveredUsage', 'SavingsPlanNegation')"
        for landed in delivery.files
    )
    con.execute(
        "CREATE OR REPLACE TEMP TABLE netting AS"
        " SELECT netting_key, sum(cost) FILTER (WHERE kind = 'SavingsPlanCoveredUsage') AS covered,"
        " min(object_id || chr(31) || printf('%020d', source_row)) FILTER (WHERE kind = 'SavingsPlanNegation') AS taker"
        f" FROM ({parts}) GROUP BY netting_key"
        " HAVING count(*) FILTER (WHERE kind = 'SavingsPlanNegation') > 0"
        " AND count(*) FILTER (WHERE kind = 'SavingsPlanCoveredUsage') > 0"
    )


def _stage_file(
    con: duckdb.DuckDBPyConnection, delivery: Delivery, landed: LandedObject, batch: Batch, columns: set[str], net: bool
) -> int:
    """Map one data file into the lake; returns its rows. Unreadable money, currency or period refuses the delivery."""
    reader = _reader(landed)
    select = _line_select(delivery, landed, columns, net, reader)
    scad = _text(columns, "line_item_operation") + " IN ('" + "', '".join(SPLIT_COST_OPERATIONS) + "')"
    read, split = con.execute(f"SELECT count(*), count(*) FILTER (WHERE {scad}) FROM {reader}").fetchall()[0]
    con.execute(f"CREATE OR REPLACE TEMP VIEW mapped AS {select} WHERE NOT coalesce({scad}, false)")
    bad = con.execute(
        "SELECT row_number, billed_cost IS NULL, billing_currency IS NULL FROM mapped"
        " WHERE billed_cost IS NULL OR billing_currency IS NULL OR billing_period_start IS NULL ORDER BY 1 LIMIT 1"
    ).fetchall()
    if bad:
        what = "cost" if bad[0][1] else "currency" if bad[0][2] else "billing period"
        raise BillUnreadable(
            f"row {bad[0][0]} has no readable {what}",
            where=landed.location,
            fix="copy the delivery again; the previous one stays in force",
        )
    counts = batch.count(landed, LINE)
    counts.read, counts.control = int(read), int(split)
    counts.kept = int(read) - int(split)
    if counts.kept:
        target = batch.scratch(landed, LINE)
        cast = TABLES[LINE].cast_list()
        con.execute(f"COPY (SELECT {cast} FROM mapped) TO '{_literal(str(target))}' (FORMAT parquet, COMPRESSION zstd)")
    return int(read)


def _line_select(delivery: Delivery, landed: LandedObject, columns: set[str], net: bool, reader: str) -> str:
    """The SELECT that maps CUR 2.0 rows to `staging.bill_line` (B1)."""
    amounts = _amounts(columns, net)
    kind = _text(columns, "line_item_line_item_type")
    usage_type = _text(columns, "line_item_usage_type")
    description = _text(columns, "line_item_line_item_description")
    commitment = f"coalesce({_text(columns, 'savings_plan_savings_plan_a_r_n')}, {_text(columns, 'reservation_reservation_a_r_n')})"
    is_usage = f"{kind} IN ('Usage', 'SavingsPlanCoveredUsage', 'DiscountedUsage', 'FlatRateSubscription')"
    start, end = period_bounds(delivery.period)
    tags = "CAST(to_json(resource_tags) AS VARCHAR)" if "resource_tags" in columns else "CAST(NULL AS VARCHAR)"
    instance = f"""coalesce({_product(columns, "product_instance_type", "instance_type")},
        CASE WHEN {usage_type} LIKE '%SpotUsage%' THEN nullif(split_part({description}, ' ', 1), '') END,
        CASE WHEN regexp_matches({usage_type}, '(BoxUsage|SpotUsage|UnusedBox|DedicatedUsage):')
             THEN split_part({usage_type}, ':', 2) END)"""
    region = f"coalesce({_text(columns, 'product_region_code')}, {_product(columns, 'product_region', 'region')})"
    return f"""
    SELECT
        '{delivery.delivery_id}' AS delivery_id, '{landed.object_id}' AS object_id, source_row AS row_number, 'aws' AS provider,
        {_text(columns, "bill_payer_account_id")} AS billing_account_id,
        {_text(columns, "line_item_usage_account_id")} AS sub_account_id,
        {_text(columns, "bill_invoice_id")} AS invoice_id,
        {_text(columns, "line_item_legal_entity")} AS invoice_issuer_name,
        '{delivery.period}' AS billing_period,
        TIMESTAMP '{start}' AS billing_period_start, TIMESTAMP '{end}' AS billing_period_end,
        CAST(line_item_usage_start_date AS TIMESTAMP) AS charge_period_start,
        CAST(line_item_usage_end_date AS TIMESTAMP) AS charge_period_end,
        CASE WHEN {is_usage} THEN 'Usage'
             WHEN {kind} IN ('SavingsPlanRecurringFee', 'SavingsPlanUpfrontFee', 'RIFee', 'Fee') THEN 'Purchase'
             WHEN {kind} = 'Tax' THEN 'Tax' WHEN {kind} = 'Credit' THEN 'Credit' ELSE 'Adjustment' END AS charge_category,
        CASE WHEN {kind} = 'Refund' THEN 'Correction' END AS charge_class,
        {description} AS charge_description,
        {_text(columns, "line_item_product_code")} AS service_name,
        {region} AS region_id,
        {_text(columns, "line_item_availability_zone")} AS availability_zone,
        {_text(columns, "line_item_resource_id")} AS resource_id,
        {_text(columns, "product_sku")} AS sku_id,
        CASE WHEN {usage_type} LIKE '%SpotUsage%' THEN 'Dynamic' WHEN {commitment} IS NOT NULL THEN 'Committed'
             WHEN {is_usage} THEN 'Standard' ELSE 'Other' END AS pricing_category,
        {_money(columns, "line_item_usage_amount", None, net)} AS pricing_quantity,
        {_text(columns, "pricing_unit")} AS pricing_unit,
        CASE WHEN {is_usage} THEN {_money(columns, "line_item_usage_amount", None, net)} END AS consumed_quantity,
        {_text(columns, "pricing_unit")} AS consumed_unit,
        {commitment} AS commitment_discount_id,
        CASE WHEN {commitment} IS NULL THEN NULL WHEN {is_usage} THEN 'Used' ELSE 'Unused' END AS commitment_discount_status,
        CASE WHEN {_text(columns, "line_item_resource_id")} LIKE '%:capacity-reservation/%'
             THEN {_text(columns, "line_item_resource_id")} END AS capacity_reservation_id,
        CASE WHEN {usage_type} LIKE '%UnusedBox:%' THEN 'Unused' END AS capacity_reservation_status,
        {amounts["list"]} AS list_cost,
        {amounts["cost"]} AS contracted_cost,
        CASE WHEN {kind} = 'SavingsPlanCoveredUsage' AND netting.netting_key IS NOT NULL THEN 0
             WHEN netting.taker = '{landed.object_id}' || chr(31) || printf('%020d', source_row)
                  THEN {amounts["cost"]} + netting.covered
             ELSE {amounts["cost"]} END AS billed_cost,
        {amounts["effective"]} AS effective_cost,
        {_text(columns, "line_item_currency_code")} AS billing_currency,
        {tags} AS tags,
        {usage_type} AS x_usage_type,
        {_text(columns, "line_item_operation")} AS x_operation,
        {kind} AS x_line_item_type,
        {instance} AS x_instance_type,
        {_text(columns, "product_servicecode")} AS x_service_code,
        CASE WHEN {kind} = 'SavingsPlanCoveredUsage' AND netting.netting_key IS NOT NULL
                  THEN 'billed_cost netted against SavingsPlanNegation'
             WHEN netting.taker = '{landed.object_id}' || chr(31) || printf('%020d', source_row)
                  THEN 'billed_cost netted against SavingsPlanCoveredUsage' END AS x_source_changes
    FROM {reader} AS row
    LEFT JOIN netting ON {kind} IN ('SavingsPlanCoveredUsage', 'SavingsPlanNegation')
        AND netting.netting_key = {_netting_key(columns)}"""
