"""AWS CUR 2.0 through Data Exports, parquet or CSV: one delivery is one batch, rows are mapped in SQL.

A month of any size is read in bounded memory. Effective cost follows the amortisation table that AWS's cost dashboards
use (line types to columns), one price basis per delivery (B3). A row whose cost, currency or period can't be read refuses
the delivery; other broken rows are kept aside, repaired and marked, so that their money reaches the ledger (B5).
"""

from __future__ import annotations

from collections.abc import Callable

import duckdb

from connectors import data_exports
from connectors.data_exports import Delivery, period_bounds
from connectors.errors import BillUnreadable, FormatUnknown
from connectors.objects import LandedObject, Source, compression_of, csv_header
from connectors.sink import Batch, Lake, keep_as_received, keep_delivery
from models.contracts import TABLES

LINE, DELIVERY = "staging.bill_line", "staging.bill_delivery"
# rows of split cost allocation repeat the cost of their instance: no money of their own (facts: SCAD)
SPLIT_COST_OPERATIONS = ("EKSPod-EC2", "ECSTask-EC2")
COLLAPSE_RATIO = 0.5
REQUIRED = ("line_item_unblended_cost", "line_item_currency_code", "line_item_line_item_type", "bill_payer_account_id",
            "line_item_usage_start_date", "line_item_usage_end_date")  # fmt: skip
Columns = dict[str, str]  # name -> DuckDB type, of a delivery's data files


def stage(source: Source, lake: Lake, progress: Callable[[str], None]) -> None:
    """Stage each delivery that is new. Raises DeliveryIncomplete, BillUnreadable or FormatUnknown; then nothing of it is kept."""
    known = set(lake.loads()["object_id"])
    for delivery in deliveries(source):
        if delivery.manifest.object_id in known:
            continue
        progress(f"{source.name}: billing period {delivery.period}, {len(delivery.files)} files")
        _stage_delivery(delivery, lake)


def deliveries(source: Source) -> list[Delivery]:
    """Every delivery of the source, oldest submission first; a source without one is an error."""
    found = data_exports.deliveries(source)
    if not found:
        raise FormatUnknown(
            f"source {source.name!r} holds no CUR 2.0 manifest",
            where=str(source.location),
            fix="name the export's folder: the one with data/ and metadata/ (metadata/BILLING_PERIOD=YYYY-MM/...-Manifest.json)",
        )
    return found


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
                    "submitted_utc": delivery.submitted_utc,
                    "files": len(delivery.files),
                    "rows_read": rows,
                    "net_basis": net,
                    "amortised": "savings_plan_savings_plan_effective_cost" in columns,
                    "covers_range": True,
                }
            ]
        ),
    )
    for landed in (delivery.manifest, *delivery.files):
        keep_as_received(lake, landed)
    record = {
        "delivery_ids": [delivery.delivery_id], "dataset": "cur2", "export_scope": delivery.scope, "billing_period": delivery.period,
        "submitted_utc": delivery.submitted_utc.isoformat(), "objects": [landed.object_id for landed in delivery.files],
    }  # fmt: skip
    keep_delivery(lake, delivery.manifest.source.name, record)
    batch.commit()


def _refuse_collapse(delivery: Delivery, lake: Lake, rows: int) -> None:
    """An empty or collapsed bill is an error, not a small bill (B5)."""
    # of deliveries of the whole period: the same covered days (B4)
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
    typed = ", ".join(f"'{_literal(name)}': 'VARCHAR'" for name in csv_header(landed.path))
    options = (
        f"header => true, delim => ',', quote => '\"', escape => '\"', auto_detect => false, parallel => false,"
        f" compression => '{compression_of(landed.path)}', columns => {{{typed}}}"
    )
    return f"(SELECT *, row_number() OVER () AS source_row FROM read_csv('{path}', {options}))"


def _columns(con: duckdb.DuckDBPyConnection, delivery: Delivery) -> Columns:
    """Columns of the delivery: of its first file, since chunks of one delivery share a schema."""
    described = con.execute(f"DESCRIBE SELECT * FROM {_reader(delivery.files[0])}").fetchall()
    columns = {str(row[0]): str(row[1]) for row in described}
    missing = sorted(set(REQUIRED) - set(columns))
    if missing:
        kind = 'a FOCUS export: use kind = "focus"' if "BilledCost" in columns else "no CUR 2.0 export"
        raise FormatUnknown(
            f"columns {', '.join(missing)} are missing; this is {kind}",
            where=delivery.files[0].location,
            fix="export COST_AND_USAGE_REPORT with its standard columns",
        )
    return columns


def _has_net(con: duckdb.DuckDBPyConnection, delivery: Delivery, columns: Columns) -> bool:
    """One price basis per delivery: net columns where they exist and are filled (B3)."""
    if "line_item_net_unblended_cost" not in columns:
        return False
    filled = f"count({_text(columns, 'line_item_net_unblended_cost')}) > 0"
    return any(con.execute(f"SELECT {filled} FROM {_reader(landed)}").fetchall()[0][0] for landed in delivery.files)


def _money(columns: Columns, gross: str, net_name: str | None, net: bool) -> str:
    """SQL of an amount at 18 places, null where the source has none or it is no number.

    A double is cast through its shortest decimal text, the one that reads back as the same double: 0.1 is 0.1 and not
    0.1000000000000000055. DuckDB's cast of a double to text writes that text, and its cast of text to decimal, E-notation
    included, is exact.
    """

    def exact(name: str) -> str:
        return f"TRY_CAST({_text(columns, name)} AS DECIMAL(38,18))" if name in columns else "NULL"

    return f"coalesce({exact(net_name)}, {exact(gross)})" if net and net_name and net_name in columns else exact(gross)


def _text(columns: Columns, name: str) -> str:
    return f"nullif(trim(CAST(\"{name}\" AS VARCHAR)), '')" if name in columns else "CAST(NULL AS VARCHAR)"


def _product(columns: Columns, name: str, map_key: str) -> str:
    """A product attribute: its own column, else the entry of the `product` map (parquet: a map, CSV: JSON)."""
    if "product" not in columns:
        return _text(columns, name)
    if columns["product"].startswith("MAP"):
        entry = f"product['{map_key}']"
    else:
        entry = f"json_extract_string(TRY_CAST(product AS JSON), '$.{map_key}')"
    return f"coalesce({_text(columns, name)}, nullif({entry}, ''))"


def _tags(columns: Columns) -> str:
    """Tags as a JSON object."""
    if "resource_tags" not in columns:
        return "CAST(NULL AS VARCHAR)"
    if columns["resource_tags"].startswith("MAP"):
        return "CAST(to_json(resource_tags) AS VARCHAR)"
    return "CASE WHEN json_valid(resource_tags) THEN resource_tags END"


# columns of costs: one that is written and can't be read refuses the delivery (B5)
COSTS = ("line_item_unblended_cost", "line_item_net_unblended_cost", "savings_plan_savings_plan_effective_cost",
         "savings_plan_net_savings_plan_effective_cost", "savings_plan_total_commitment_to_date", "savings_plan_used_commitment",
         "reservation_effective_cost", "reservation_net_effective_cost",
         "reservation_unused_amortized_upfront_fee_for_billing_period",
         "reservation_net_unused_amortized_upfront_fee_for_billing_period", "reservation_unused_recurring_fee",
         "reservation_net_unused_recurring_fee")  # fmt: skip


def _unreadable(columns: Columns, names: tuple[str, ...]) -> str:
    """SQL: is one of these columns written but no number?"""
    tests = [
        f"({_text(columns, name)} IS NOT NULL AND {_money(columns, name, None, False)} IS NULL)"
        for name in names
        if name in columns
    ]
    return " OR ".join(tests) or "false"


def _moment(columns: Columns, name: str) -> str:
    return f"TRY_CAST({_text(columns, name)} AS TIMESTAMP)"


def _amounts(columns: Columns, net: bool) -> dict[str, str]:
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
    || coalesce(CAST(line_item_usage_start_date AS VARCHAR), '') || chr(31) || coalesce({account}, '')"""


def _netting_key(columns: Columns) -> str:
    return _NETTING_KEY.format(
        arn=_text(columns, "savings_plan_savings_plan_a_r_n"),
        usage_type=_text(columns, "line_item_usage_type"),
        account=_text(columns, "line_item_usage_account_id"),
    )


def _load_netting(con: duckdb.DuckDBPyConnection, delivery: Delivery, columns: Columns, net: bool) -> None:
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
    con: duckdb.DuckDBPyConnection, delivery: Delivery, landed: LandedObject, batch: Batch, columns: Columns, net: bool
) -> int:
    """Map one data file into the lake; returns its rows. Unreadable money, currency or period refuses the delivery."""
    reader = _reader(landed)
    scad = _text(columns, "line_item_operation") + " IN ('" + "', '".join(SPLIT_COST_OPERATIONS) + "')"
    select = _line_select(delivery, landed, columns, net, reader, scad)
    read, split = con.execute(f"SELECT count(*), count(*) FILTER (WHERE {scad}) FROM {reader}").fetchall()[0]
    con.execute(f"CREATE OR REPLACE TEMP VIEW mapped AS {select}")
    _refuse_unreadable(con, landed)
    counts = batch.count(landed, LINE)
    counts.read, counts.control = int(read), int(split)
    for row in con.sql("SELECT row_number, problem, raw FROM mapped WHERE problem IS NOT NULL").pl().iter_rows():
        batch.reject(landed, LINE, row[0], row[1], row[2], cost_readable=True)
    counts.kept = counts.read - counts.control - counts.rejected
    if counts.read > counts.control:  # rejected rows go along, repaired and marked
        target = batch.scratch(landed, LINE)
        cast = TABLES[LINE].cast_list()
        con.execute(f"COPY (SELECT {cast} FROM mapped) TO '{_literal(str(target))}' (FORMAT parquet, COMPRESSION zstd)")
    return int(read)


def _refuse_unreadable(con: duckdb.DuckDBPyConnection, landed: LandedObject) -> None:
    bad = con.execute(
        "SELECT row_number, CASE WHEN billed_cost IS NULL OR cost_unreadable THEN 'cost' ELSE 'currency' END FROM mapped"
        " WHERE billed_cost IS NULL OR cost_unreadable OR billing_currency IS NULL ORDER BY 1 LIMIT 1"
    ).fetchall()
    if bad:
        raise BillUnreadable(
            f"row {bad[0][0]} has no readable {bad[0][1]}",
            where=landed.location,
            fix="copy the delivery again; the previous one stays in force",
        )


def _line_select(delivery: Delivery, landed: LandedObject, columns: Columns, net: bool, reader: str, scad: str) -> str:
    """The SELECT that maps CUR 2.0 rows to `staging.bill_line` (B1)."""
    amounts = _amounts(columns, net)
    kind = _text(columns, "line_item_line_item_type")
    usage_type = _text(columns, "line_item_usage_type")
    description = _text(columns, "line_item_line_item_description")
    commitment = f"coalesce({_text(columns, 'savings_plan_savings_plan_a_r_n')}, {_text(columns, 'reservation_reservation_a_r_n')})"
    is_usage = f"{kind} IN ('Usage', 'SavingsPlanCoveredUsage', 'DiscountedUsage', 'FlatRateSubscription')"
    start, end = period_bounds(delivery.period)
    taker = f"netting.taker = '{landed.object_id}' || chr(31) || printf('%020d', source_row)"
    cost_unreadable = _unreadable(columns, COSTS)
    other_unreadable = _unreadable(columns, ("line_item_usage_amount", "pricing_public_on_demand_cost"))
    instance = f"""coalesce({_product(columns, "product_instance_type", "instance_type")},
        CASE WHEN {usage_type} LIKE '%SpotUsage%' THEN nullif(split_part({description}, ' ', 1), '') END,
        CASE WHEN regexp_matches({usage_type}, '(BoxUsage|SpotUsage|UnusedBox|DedicatedUsage):')
             THEN split_part({usage_type}, ':', 2) END)"""
    region = f"coalesce({_text(columns, 'product_region_code')}, {_product(columns, 'product_region', 'region')})"
    return f"""
    WITH cells AS (
    SELECT
        '{delivery.delivery_id}' AS delivery_id, '{landed.object_id}' AS object_id, source_row AS row_number, 'aws' AS provider,
        {_text(columns, "bill_payer_account_id")} AS billing_account_id,
        {_text(columns, "line_item_usage_account_id")} AS sub_account_id,
        {_text(columns, "bill_invoice_id")} AS invoice_id,
        {_text(columns, "line_item_legal_entity")} AS invoice_issuer_name,
        '{delivery.period}' AS billing_period,
        TIMESTAMP '{start}' AS billing_period_start, TIMESTAMP '{end}' AS billing_period_end,
        {_moment(columns, "line_item_usage_start_date")} AS stated_start,
        {_moment(columns, "line_item_usage_end_date")} AS stated_end,
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
             WHEN {taker}
                  THEN {amounts["cost"]} + netting.covered
             ELSE {amounts["cost"]} END AS billed_cost,
        {amounts["effective"]} AS effective_cost,
        {_text(columns, "line_item_currency_code")} AS billing_currency,
        {_tags(columns)} AS tags,
        {usage_type} AS x_usage_type,
        {_text(columns, "line_item_operation")} AS x_operation,
        {kind} AS x_line_item_type,
        {instance} AS x_instance_type,
        {_text(columns, "product_servicecode")} AS x_service_code,
        CASE WHEN {kind} = 'SavingsPlanCoveredUsage' AND netting.netting_key IS NOT NULL
                  THEN 'billed_cost netted against SavingsPlanNegation'
             WHEN {taker}
                  THEN 'billed_cost netted against SavingsPlanCoveredUsage' END AS changes,
        {cost_unreadable} AS cost_unreadable,
        {other_unreadable} AS other_unreadable
    FROM {reader} AS row
    LEFT JOIN netting ON {kind} IN ('SavingsPlanCoveredUsage', 'SavingsPlanNegation')
        AND netting.netting_key = {_netting_key(columns)}
    WHERE NOT coalesce({scad}, false)
    ),
    judged AS (
        SELECT
            *,
            CASE WHEN stated_start IS NULL THEN 'bad_value: line_item_usage_start_date is missing or no date'
                 WHEN stated_end IS NULL THEN 'bad_value: line_item_usage_end_date is missing or no date'
                 WHEN stated_end < stated_start THEN 'bad_value: the usage ends before it starts'
                 WHEN billing_account_id IS NULL THEN 'bad_value: bill_payer_account_id is missing'
                 WHEN x_line_item_type IS NULL THEN 'bad_value: line_item_line_item_type is missing'
                 WHEN other_unreadable THEN 'bad_value: a quantity or list cost is no number'
            END AS problem,
            concat_ws(' | ', billing_account_id, x_line_item_type, x_usage_type, charge_description, CAST(billed_cost AS VARCHAR),
                billing_currency) AS raw,
            coalesce(stated_start, billing_period_start) AS charge_period_start
        FROM cells
    )
    SELECT
        * REPLACE (coalesce(billing_account_id, 'unknown') AS billing_account_id),
        greatest(coalesce(stated_end, charge_period_start), charge_period_start) AS charge_period_end,
        coalesce('rejected: ' || problem, changes) AS x_source_changes
    FROM judged"""
