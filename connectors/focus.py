"""FOCUS 1.0 to 1.2 files, CSV or parquet, as providers and converters write them (FinOps Open Cost and Usage Specification).

Each file is its own scope: a newer version of a file replaces the days in it, and files add up. Read as text and cast
strictly; the literal `NULL` and empty text are null, columns may be missing, extra or differ in case. A row whose cost,
currency or period can't be read refuses the file; other broken rows are kept aside.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import duckdb
import polars as pl

from connectors.errors import BillUnreadable, FormatUnknown
from connectors.objects import LandedObject, Source, csv_header, list_objects
from connectors.sink import Batch, Lake, keep_as_received
from models.contracts import TABLES

LINE, DELIVERY = "staging.bill_line", "staging.bill_delivery"
REQUIRED = ("BilledCost", "BillingCurrency", "BillingPeriodStart", "BillingPeriodEnd", "ChargePeriodStart", "ChargeCategory",
            "BillingAccountId")  # fmt: skip
VERSION_1_2 = ("InvoiceId", "SkuMeter", "BillingAccountType")
# ProviderName as exports write it -> provider of our tables
PROVIDERS = {"aws": "aws", "amazon web services": "aws", "microsoft": "azure", "microsoft azure": "azure", "azure": "azure",
             "google cloud": "gcp", "google": "gcp", "gcp": "gcp", "google cloud platform": "gcp"}  # fmt: skip
_DATE_FORMATS = ("%Y-%m-%dT%H:%M:%S.%fZ", "%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%d %H:%M:%S.%f", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S",
                 "%Y-%m-%d", "%Y-%m-%d %H:%M:%S.%f UTC", "%Y-%m-%d %H:%M:%S UTC", "%Y-%m-%d %H:%M:%S%z",
                 "%Y-%m-%dT%H:%M:%S%z")  # fmt: skip


def stage(source: Source, lake: Lake, progress: Callable[[str], None]) -> None:
    """Stage each FOCUS file that is new. Raises FormatUnknown or BillUnreadable; then nothing of that file is kept."""
    known = set(lake.loads()["object_id"])
    files = [entry for entry in list_objects(source) if _kind(entry) is not None]
    if not files:
        raise FormatUnknown(
            f"source {source.name!r} holds no FOCUS file",
            where=str(source.location),
            fix="put .csv, .csv.gz or .parquet files of a FOCUS export there",
        )
    for landed in sorted(files, key=lambda entry: (entry.modified_ns, entry.location)):
        if landed.object_id not in known:
            progress(f"{source.name}: {landed.location}")
            _stage_file(landed, lake)


def _kind(landed: LandedObject) -> str | None:
    name = landed.location.lower()
    if name.endswith(".parquet"):
        return "parquet"
    return "csv" if name.endswith((".csv", ".csv.gz", ".csv.zst")) else None


def _stage_file(landed: LandedObject, lake: Lake) -> None:
    batch = lake.batch(landed)
    try:
        with duckdb.connect(config={"memory_limit": "2GB"}) as con:
            con.execute("SET TimeZone = 'UTC'")
            read = _read(con, landed, batch)
            deliveries = _deliveries(con, landed, read)
    except duckdb.Error as error:
        raise BillUnreadable(
            f"the file can't be read: {str(error).splitlines()[0]}",
            where=landed.location,
            fix="export it again; the version before stays in force",
        ) from error
    batch.count(landed, DELIVERY).read += deliveries.height
    batch.write(landed, DELIVERY, deliveries)
    keep_as_received(lake, landed)
    batch.commit()


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _reader(landed: LandedObject) -> tuple[str, list[str]]:
    """(table expression of text columns and `source_row`, its column names)."""
    path = _quoted(str(landed.path))
    if _kind(landed) == "parquet":
        with duckdb.connect() as con:
            names = [row[0] for row in con.execute(f"DESCRIBE SELECT * FROM read_parquet({path})").fetchall()]
        return (
            f"(SELECT *, file_row_number + 1 AS source_row FROM read_parquet({path}, file_row_number => true))",
            names,
        )
    header = csv_header(landed.path)
    if not header:
        raise BillUnreadable("the file is empty", where=landed.location, fix="export it again")
    names, seen = [], set()
    for number, name in enumerate(header):
        unique = name if name.lower() not in seen else f"{name}_{number}"
        seen.add(unique.lower())
        names.append(unique)
    typed = ", ".join(f"{_quoted(name)}: 'VARCHAR'" for name in names)
    return (
        f"(SELECT *, row_number() OVER () AS source_row FROM read_csv({path}, header => true, all_varchar => true,"
        f" auto_detect => false, delim => ',', quote => '\"', escape => '\"', null_padding => true, columns => {{{typed}}}))",
        names,
    )


def _read(con: duckdb.DuckDBPyConnection, landed: LandedObject, batch: Batch) -> int:
    reader, names = _reader(landed)
    by_name = {name.lower().replace("_", ""): name for name in names}
    missing = [name for name in REQUIRED if name.lower() not in by_name]
    if missing:
        raise FormatUnknown(
            f"columns {', '.join(missing)} are missing: this is no FOCUS export",
            where=landed.location,
            fix="name the source's kind (aws-cur2 for CUR 2.0), or export FOCUS 1.0 or later",
        )
    con.execute(f"CREATE TEMP TABLE mapped AS {_select(landed, by_name, reader)}")
    _refuse(con, landed)
    counts = batch.count(landed, LINE)
    counts.read = int(con.execute("SELECT count(*) FROM mapped").fetchall()[0][0])
    bad = con.sql(
        "SELECT row_number AS line_number, problem AS reason, raw, row_number FROM mapped WHERE problem IS NOT NULL"
    ).pl()
    for row in bad.iter_rows(named=True):
        batch.reject(landed, LINE, row["line_number"] + 1, row["reason"], row["raw"], cost_readable=True)
    counts.kept = counts.read - counts.rejected
    if counts.read == 0:
        raise BillUnreadable(
            "the file has no rows", where=landed.location, fix="check the export: an empty bill is an error"
        )
    if counts.read:  # rejected rows go along, repaired and marked: their money must reach the ledger (B5)
        target = batch.scratch(landed, LINE)
        con.execute(
            f"COPY (SELECT {TABLES[LINE].cast_list()} FROM mapped ORDER BY row_number)"
            f" TO {_quoted(str(target))} (FORMAT parquet, COMPRESSION zstd)"
        )
    return counts.read


def _refuse(con: duckdb.DuckDBPyConnection, landed: LandedObject) -> None:
    """A row whose cost, currency or billing period can't be read refuses the file (B5)."""
    bad = con.execute(
        "SELECT row_number, CASE WHEN billed_cost IS NULL THEN 'cost' WHEN billing_currency IS NULL THEN 'currency'"
        " ELSE 'billing period' END FROM mapped"
        " WHERE billed_cost IS NULL OR billing_currency IS NULL OR billing_period_start IS NULL ORDER BY 1 LIMIT 1"
    ).fetchall()
    if bad:
        raise BillUnreadable(
            f"row {bad[0][0]} has no readable {bad[0][1]}",
            where=f"{landed.location}, line {bad[0][0] + 1}",
            fix="correct the export; the version before stays in force",
        )


def _select(landed: LandedObject, by_name: dict[str, str], reader: str) -> str:
    def text(*names: str) -> str:
        found = [by_name[n.lower().replace("_", "")] for n in names if n.lower().replace("_", "") in by_name]
        cells = [
            f"nullif(nullif(trim(CAST(\"{n.replace(chr(34), chr(34) * 2)}\" AS VARCHAR)), ''), 'NULL')" for n in found
        ]
        return f"coalesce({', '.join(cells)})" if cells else "CAST(NULL AS VARCHAR)"

    def money(name: str) -> str:
        return f"TRY_CAST({text(name)} AS DECIMAL(38,18))"

    def moment(name: str) -> str:
        tries = ", ".join(f"CAST(try_strptime({text(name)}, '{form}') AS TIMESTAMP)" for form in _DATE_FORMATS)
        return f"coalesce({tries}, TRY_CAST({text(name)} AS TIMESTAMP))"

    tags = f"CASE WHEN json_valid({text('Tags')}) THEN {text('Tags')} END"
    if _kind(landed) == "parquet" and "tags" in by_name:
        tags = f'CAST(to_json("{by_name["tags"]}") AS VARCHAR)'
    provider = "CASE lower({0}) {1} ELSE coalesce(lower({0}), 'unknown') END".format(
        text("ProviderName"), " ".join(f"WHEN {_quoted(k)} THEN {_quoted(v)}" for k, v in PROVIDERS.items())
    )
    start, end = moment("ChargePeriodStart"), moment("ChargePeriodEnd")
    return f"""
    WITH cells AS (
        SELECT
            source_row AS row_number, {provider} AS provider, {text("BillingAccountId")} AS billing_account_id,
            {text("SubAccountId")} AS sub_account_id, {text("InvoiceId")} AS invoice_id,
            {text("InvoiceIssuerName")} AS invoice_issuer_name,
            {moment("BillingPeriodStart")} AS billing_period_start, {moment("BillingPeriodEnd")} AS billing_period_end,
            {start} AS charge_period_start, {end} AS stated_end,
            {text("ChargeCategory")} AS charge_category, {text("ChargeClass")} AS charge_class,
            {text("ChargeDescription")} AS charge_description, {text("ServiceName")} AS service_name,
            {text("RegionId", "Region")} AS region_id, {text("AvailabilityZone")} AS availability_zone,
            {text("ResourceId")} AS resource_id, {text("SkuId")} AS sku_id, {text("PricingCategory")} AS pricing_category,
            {money("PricingQuantity")} AS pricing_quantity, {text("PricingUnit")} AS pricing_unit,
            {money("ConsumedQuantity")} AS consumed_quantity, {text("ConsumedUnit")} AS consumed_unit,
            {text("CommitmentDiscountId")} AS commitment_discount_id,
            {text("CommitmentDiscountStatus")} AS commitment_discount_status,
            {text("CapacityReservationId")} AS capacity_reservation_id,
            {text("CapacityReservationStatus")} AS capacity_reservation_status,
            {money("ListCost")} AS list_cost, {money("ContractedCost")} AS contracted_cost,
            {money("BilledCost")} AS billed_cost, {money("EffectiveCost")} AS effective_cost,
            {text("BillingCurrency")} AS billing_currency, {tags} AS tags,
            {text("x_UsageType", "SkuMeter", "x_SkuMeterName")} AS x_usage_type, {text("x_Operation")} AS x_operation,
            CAST(NULL AS VARCHAR) AS x_line_item_type,
            coalesce(json_extract_string(TRY_CAST({text("SkuPriceDetails")} AS JSON), '$.InstanceType'),
                nullif(regexp_extract({text("ChargeDescription")}, '([a-z][a-z0-9-]+\\.[0-9a-z]*(?:large|metal)[0-9a-z-]*)', 1), ''))
                AS x_instance_type,
            {text("x_ServiceCode")} AS x_service_code
        FROM {reader}
    ),
    judged AS (
        SELECT
            *,
            CASE WHEN charge_period_start IS NULL THEN 'bad_value: ChargePeriodStart is missing or no date'
                 WHEN charge_category IS NULL THEN 'bad_value: ChargeCategory is missing'
                 WHEN billing_account_id IS NULL THEN 'bad_value: BillingAccountId is missing'
                 WHEN stated_end < charge_period_start THEN 'bad_value: ChargePeriodEnd lies before ChargePeriodStart'
            END AS problem,
            concat_ws(' | ', billing_account_id, charge_category, charge_description, CAST(billed_cost AS VARCHAR),
                billing_currency) AS raw
        FROM cells
    )
    SELECT
        * REPLACE (
            coalesce(billing_account_id, 'unknown') AS billing_account_id,
            coalesce(charge_period_start, billing_period_start) AS charge_period_start,
            coalesce(charge_category, 'Adjustment') AS charge_category,
            coalesce(billing_period_end, billing_period_start) AS billing_period_end
        ),
        substr(sha256('{landed.object_id}' || strftime(billing_period_start, '%Y-%m') || provider), 1, 32) AS delivery_id,
        '{landed.object_id}' AS object_id,
        strftime(billing_period_start, '%Y-%m') AS billing_period,
        greatest(coalesce(stated_end, charge_period_start), coalesce(charge_period_start, billing_period_start))
            AS charge_period_end,
        CASE WHEN problem IS NOT NULL THEN 'rejected: ' || problem
             WHEN stated_end IS NULL THEN 'charge_period_end taken from its start' END AS x_source_changes
    FROM judged"""


def _deliveries(con: duckdb.DuckDBPyConnection, landed: LandedObject, read: int) -> pl.DataFrame:
    """One delivery a billing period and provider of the file: it covers the days that it holds (B4)."""
    version = "focus-1.2" if any(name in _reader(landed)[1] for name in VERSION_1_2) else "focus-1.0"
    rows = con.sql(
        "SELECT delivery_id, provider, billing_period, CAST(min(CAST(charge_period_start AS DATE)) AS TIMESTAMP) AS covers_from,"
        " CAST(max(CAST(charge_period_start AS DATE)) + INTERVAL 1 DAY AS TIMESTAMP) AS covers_to, count(*) AS rows_read,"
        " count(effective_cost) > 0 AS amortised FROM mapped GROUP BY ALL ORDER BY ALL"
    ).pl()
    submitted = datetime.fromtimestamp(landed.modified_ns / 1e9, UTC).replace(tzinfo=None)
    return rows.with_columns(
        pl.lit(landed.source.name).alias("source"),
        pl.lit(f"{landed.source.name}/{landed.location}").alias("export_scope"),
        pl.lit(version).alias("dataset"),
        pl.lit(submitted).alias("submitted_utc"),
        pl.lit(1).alias("files"),
        pl.lit(False).alias("net_basis"),
    )
