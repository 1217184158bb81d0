"""FOCUS 1.0 to 1.2 files, CSV or parquet, as providers and converters write them (FinOps Open Cost and Usage Specification).

With manifests of AWS Data Exports, the files that they name are deliveries of their billing period. Without, each file is
a scope of its own: a newer version of a file replaces the days in it, and files add up. Read as text and cast strictly;
the literal `NULL` and empty text are null, columns may be missing, extra or differ in case. A row whose cost, currency or
period can't be read refuses the delivery; other broken rows are kept aside, repaired and marked (B5).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import duckdb
import polars as pl

from connectors import data_exports
from connectors.errors import BillUnreadable, FormatUnknown
from connectors.objects import LandedObject, Source, compression_of, csv_header, list_objects
from connectors.sink import Batch, Lake, keep_as_received, keep_delivery
from models.contracts import TABLES

LINE, DELIVERY = "staging.bill_line", "staging.bill_delivery"
REQUIRED = ("BilledCost", "BillingCurrency", "BillingPeriodStart", "BillingPeriodEnd", "ChargePeriodStart", "ChargeCategory",
            "BillingAccountId")  # fmt: skip
COLLAPSE_RATIO = 0.5
VERSION_1_2 = ("InvoiceId", "SkuMeter", "BillingAccountType")
# ProviderName as exports write it -> provider of our tables
PROVIDERS = {"aws": "aws", "amazon web services": "aws", "microsoft": "azure", "microsoft azure": "azure", "azure": "azure",
             "google cloud": "gcp", "google": "gcp", "gcp": "gcp", "google cloud platform": "gcp"}  # fmt: skip
_DATE_FORMATS = ("%Y-%m-%dT%H:%M:%S.%fZ", "%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%d %H:%M:%S.%f", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S",
                 "%Y-%m-%d", "%Y-%m-%d %H:%M:%S.%f UTC", "%Y-%m-%d %H:%M:%S UTC", "%Y-%m-%d %H:%M:%S%z",
                 "%Y-%m-%dT%H:%M:%S%z")  # fmt: skip


@dataclass(frozen=True)
class Submission:
    """Files that came together. `record` is the object whose load says that they were read; `scope` what a newer one replaces."""

    record: LandedObject
    files: tuple[LandedObject, ...]
    scope: str
    submitted_utc: datetime
    period: str | None  # of its manifest

    @property
    def objects(self) -> tuple[LandedObject, ...]:
        return self.files if self.record in self.files else (self.record, *self.files)


def stage(source: Source, lake: Lake, progress: Callable[[str], None]) -> None:
    """Stage each submission that is new. Raises FormatUnknown, DeliveryIncomplete or BillUnreadable; then nothing of it is kept."""
    known = set(lake.loads()["object_id"])
    submissions = _submissions(source)
    if not submissions:
        raise FormatUnknown(
            f"source {source.name!r} holds no FOCUS file",
            where=str(source.location),
            fix="put .csv, .csv.gz or .parquet files of a FOCUS export there",
        )
    for submission in submissions:
        if submission.record.object_id not in known:
            progress(f"{source.name}: {submission.record.location}")
            _stage(submission, lake)


def _submissions(source: Source) -> list[Submission]:
    """By manifest where there is one, else file by file; oldest first."""
    by_manifest = [
        Submission(found.manifest, found.files, found.scope, found.submitted_utc, found.period)
        for found in data_exports.deliveries(source)
    ]
    if by_manifest:
        return by_manifest
    files = [entry for entry in list_objects(source) if _kind(entry) is not None]
    return [
        Submission(entry, (entry,), f"{source.name}/{entry.location}", _utc(entry.modified_ns), None)
        for entry in sorted(files, key=lambda entry: (entry.modified_ns, entry.location))
    ]


def _utc(ns: int) -> datetime:
    return datetime.fromtimestamp(ns / 1e9, UTC).replace(tzinfo=None)


def _kind(landed: LandedObject) -> str | None:
    name = landed.location.lower()
    if name.endswith(".parquet"):
        return "parquet"
    return "csv" if name.endswith((".csv", ".csv.gz", ".csv.zst")) else None


def _stage(submission: Submission, lake: Lake) -> None:
    batch = lake.batch(*submission.objects)
    try:
        with duckdb.connect(config={"memory_limit": "2GB"}) as con:
            con.execute("SET TimeZone = 'UTC'")
            for landed in submission.files:
                _read(con, submission, landed, batch)
            deliveries = _deliveries(con, submission)
            _refuse_collapse(con, submission, lake)
    except duckdb.Error as error:
        raise BillUnreadable(
            f"the file can't be read: {str(error).splitlines()[0]}",
            where=submission.record.location,
            fix="export it again; the version before stays in force",
        ) from error
    batch.count(submission.record, DELIVERY).read += deliveries.height
    batch.write(submission.record, DELIVERY, deliveries)
    for landed in submission.objects:
        keep_as_received(lake, landed)
    record = {
        "delivery_ids": deliveries["delivery_id"].to_list(), "dataset": "focus", "export_scope": submission.scope,
        "billing_period": submission.period, "submitted_utc": submission.submitted_utc.isoformat(),
        "objects": [landed.object_id for landed in submission.files],
    }  # fmt: skip
    keep_delivery(lake, submission.record.source.name, record)
    batch.commit()


def _refuse_collapse(con: duckdb.DuckDBPyConnection, submission: Submission, lake: Lake) -> None:
    """Far fewer rows than the version before has on the same days is an error, not a small bill (B4, B5)."""
    held = [str(file) for file in lake.held_files(LINE)]
    known = [str(file) for file in lake.held_files(DELIVERY)]
    if not held or not known or submission.record.source.options.get("allow_collapse"):
        return
    join = "LEFT JOIN" if submission.period else "JOIN"  # without manifest, days that are gone are not covered
    fewer = con.execute(
        f"""
        WITH before AS (
            SELECT line.delivery_id, line.provider, line.billing_period, CAST(line.charge_period_start AS DATE) AS day, count(*) AS rows
            FROM read_parquet($held) AS line
            SEMI JOIN (SELECT delivery_id FROM read_parquet($known, union_by_name => true) WHERE export_scope = $scope) AS same
                USING (delivery_id)
            GROUP BY ALL
        ),
        now AS (
            SELECT provider, billing_period, CAST(charge_period_start AS DATE) AS day, count(*) AS rows FROM mapped GROUP BY ALL
        )
        SELECT sum(before.rows) AS rows_before, coalesce(sum(now.rows), 0) AS rows_now
        FROM before {join} now USING (provider, billing_period, day)
        WHERE before.billing_period IN (SELECT billing_period FROM now)
        GROUP BY before.delivery_id
        HAVING coalesce(sum(now.rows), 0) < sum(before.rows) * $ratio
        """,
        {"held": held, "known": known, "scope": submission.scope, "ratio": COLLAPSE_RATIO},
    ).fetchall()
    if fewer:
        raise BillUnreadable(
            f"the delivery has {fewer[0][1]} rows where the one before had {fewer[0][0]}, on the same days",
            where=submission.record.location,
            fix="check the export; if the bill really shrank, set allow_collapse = true in this source",
        )


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
        # null_padding reads short rows; with it, line ends inside quotes need one reader
        f"(SELECT *, row_number() OVER () AS source_row FROM read_csv({path}, header => true, auto_detect => false, delim => ',',"
        f" quote => '\"', escape => '\"', null_padding => true, parallel => false, compression => '{compression_of(landed.path)}',"
        f" columns => {{{typed}}}))",
        names,
    )


def _read(con: duckdb.DuckDBPyConnection, submission: Submission, landed: LandedObject, batch: Batch) -> None:
    """Map one file into the lake, and append it to table `mapped`."""
    reader, names = _reader(landed)
    by_name = {name.lower().replace("_", ""): name for name in names}
    missing = [name for name in REQUIRED if name.lower() not in by_name]
    if missing:
        raise FormatUnknown(
            f"columns {', '.join(missing)} are missing: this is no FOCUS export",
            where=landed.location,
            fix="name the source's kind (aws-cur2 for CUR 2.0), or export FOCUS 1.0 or later",
        )
    types = _types(con, reader)
    con.execute(f"CREATE OR REPLACE TEMP TABLE file_rows AS {_select(submission, landed, by_name, types, reader)}")
    con.execute("CREATE TEMP TABLE IF NOT EXISTS mapped AS SELECT * FROM file_rows LIMIT 0")
    _refuse(con, landed)
    counts = batch.count(landed, LINE)
    counts.read = int(con.execute("SELECT count(*) FROM file_rows").fetchall()[0][0])
    bad = con.sql("SELECT row_number, problem AS reason, raw FROM file_rows WHERE problem IS NOT NULL ORDER BY 1").pl()
    for row in bad.iter_rows(named=True):
        batch.reject(landed, LINE, row["row_number"] + 1, row["reason"], row["raw"], cost_readable=True)
    counts.kept = counts.read - counts.rejected
    if counts.read == 0 and submission.period is None:
        raise BillUnreadable(
            "the file has no rows", where=landed.location, fix="check the export: an empty bill is an error"
        )
    if counts.read:  # rejected rows go along, repaired and marked: their money must reach the ledger (B5)
        target = batch.scratch(landed, LINE)
        con.execute(
            f"COPY (SELECT {TABLES[LINE].cast_list()} FROM file_rows ORDER BY row_number)"
            f" TO {_quoted(str(target))} (FORMAT parquet, COMPRESSION zstd)"
        )
    con.execute("INSERT INTO mapped SELECT * FROM file_rows")


def _types(con: duckdb.DuckDBPyConnection, reader: str) -> dict[str, str]:
    """Column types by lower-case name: text for CSV, the file's own for parquet."""
    return {str(row[0]).lower(): str(row[1]) for row in con.execute(f"DESCRIBE SELECT * FROM {reader}").fetchall()}


def _refuse(con: duckdb.DuckDBPyConnection, landed: LandedObject) -> None:
    """A row whose cost, currency or billing period can't be read refuses the file (B5)."""
    bad = con.execute(
        "SELECT row_number, CASE WHEN billed_cost IS NULL OR cost_unreadable THEN 'cost' WHEN billing_currency IS NULL"
        " THEN 'currency' ELSE 'billing period' END FROM file_rows"
        " WHERE billed_cost IS NULL OR cost_unreadable OR billing_currency IS NULL OR billing_period_start IS NULL"
        " ORDER BY 1 LIMIT 1"
    ).fetchall()
    if bad:
        raise BillUnreadable(
            f"row {bad[0][0]} has no readable {bad[0][1]}",
            where=f"{landed.location}, line {bad[0][0] + 1}",
            fix="correct the export; the version before stays in force",
        )


def _select(
    submission: Submission, landed: LandedObject, by_name: dict[str, str], types: dict[str, str], reader: str
) -> str:
    """The SELECT that maps a FOCUS file to `staging.bill_line`, with `problem` where a row is repaired."""

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
    if types.get("tags", "").startswith(("MAP", "STRUCT")):
        tags = f'CAST(to_json("{by_name["tags"]}") AS VARCHAR)'
    provider = "CASE lower({0}) {1} ELSE coalesce(lower({0}), 'unknown') END".format(
        text("ProviderName"), " ".join(f"WHEN {_quoted(k)} THEN {_quoted(v)}" for k, v in PROVIDERS.items())
    )
    start, end = moment("ChargePeriodStart"), moment("ChargePeriodEnd")

    def unreadable(*names: str) -> str:
        return " OR ".join(f"({text(name)} IS NOT NULL AND {money(name)} IS NULL)" for name in names)

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
            {text("x_ServiceCode")} AS x_service_code,
            {unreadable("EffectiveCost")} AS cost_unreadable,
            {unreadable("PricingQuantity", "ConsumedQuantity", "ListCost", "ContractedCost")} AS other_unreadable
        FROM {reader}
    ),
    judged AS (
        SELECT
            *,
            CASE WHEN charge_period_start IS NULL THEN 'bad_value: ChargePeriodStart is missing or no date'
                 WHEN charge_category IS NULL THEN 'bad_value: ChargeCategory is missing'
                 WHEN billing_account_id IS NULL THEN 'bad_value: BillingAccountId is missing'
                 WHEN other_unreadable THEN 'bad_value: a quantity, list or contracted cost is no number'
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
        substr(sha256('{submission.record.object_id}' || strftime(billing_period_start, '%Y-%m') || provider), 1, 32) AS delivery_id,
        '{landed.object_id}' AS object_id,
        strftime(billing_period_start, '%Y-%m') AS billing_period,
        greatest(coalesce(stated_end, charge_period_start), coalesce(charge_period_start, billing_period_start))
            AS charge_period_end,
        CASE WHEN problem IS NOT NULL THEN 'rejected: ' || problem
             WHEN stated_end IS NULL THEN 'charge_period_end taken from its start' END AS x_source_changes
    FROM judged"""


def _deliveries(con: duckdb.DuckDBPyConnection, submission: Submission) -> pl.DataFrame:
    """One delivery a billing period and provider. It covers its manifest's period where that has every row, else its days (B4)."""
    is_1_2 = any(name in _reader(landed)[1] for landed in submission.files for name in VERSION_1_2)
    rows = con.sql(
        "SELECT delivery_id, provider, billing_period, CAST(min(CAST(charge_period_start AS DATE)) AS TIMESTAMP) AS covers_from,"
        " CAST(max(CAST(charge_period_start AS DATE)) + INTERVAL 1 DAY AS TIMESTAMP) AS covers_to, count(*) AS rows_read,"
        " count(effective_cost) > 0 AS amortised FROM mapped GROUP BY ALL ORDER BY ALL"
    ).pl()
    if rows.is_empty():
        raise BillUnreadable(
            "the delivery has no rows",
            where=submission.record.location,
            fix="check the export: an empty bill is an error",
        )
    whole = pl.lit(False)
    if submission.period is not None:
        low, high = (pl.lit(at, dtype=pl.Datetime("us")) for at in data_exports.period_bounds(submission.period))
        whole = (
            (pl.col("billing_period") == submission.period)
            & (pl.col("covers_from") >= low)
            & (pl.col("covers_to") <= high)
        )
        rows = rows.with_columns(
            pl.when(whole).then(low).otherwise("covers_from").alias("covers_from"),
            pl.when(whole).then(high).otherwise("covers_to").alias("covers_to"),
            whole.alias("covers_range"),
        )
    else:
        rows = rows.with_columns(whole.alias("covers_range"))
    return rows.with_columns(
        pl.lit(submission.record.source.name).alias("source"),
        pl.lit(submission.scope).alias("export_scope"),
        pl.lit("focus-1.2" if is_1_2 else "focus-1.0").alias("dataset"),
        pl.lit(submission.submitted_utc).alias("submitted_utc"),
        pl.lit(len(submission.files)).alias("files"),
        pl.lit(False).alias("net_basis"),
    )
