"""Did a published week change, and what changed (R2): digests of its numbers, and rows of before and after.

The comparison is between the mart and the archived revision of the week, on the days that both know; days that were
added to a week that is still under way are growth, not restatement.
"""

from __future__ import annotations

import json
import re
from datetime import date, datetime
from pathlib import Path

import duckdb
import polars as pl

from models.contracts import TABLES
from reports.weeks import Week, week_of

RESTATEMENT = "mart.fact_restatement"
_REVISION = re.compile(r"r([1-9][0-9]*)")
# Facts whose rows are a week's numbers. Status of bills, whole-period reconciliation and dimensions are not.
DATED_FACTS = ("fact_coverage", "fact_cost_ledger", "fact_gpu_hours", "fact_transfer_cost", "fact_zone_traffic")
# Lines of days that were not run yet stand in the ledger; they are no numbers of their week
_WAS_RUN = {"fact_cost_ledger": "reason IS DISTINCT FROM 'not_run'"}
# Money by job and scope, for the rows of before and after
_COMPARED = {
    "fact_gpu_hours": "'gpu_compute'",
    "fact_transfer_cost": "'inter_az_transfer'",
    "fact_cost_ledger": "charge_scope",
}


def week_digests(con: duckdb.DuckDBPyConnection) -> dict[str, tuple[str, tuple[str, ...]]]:
    """`week -> (digest, days with numbers)`. A digest does not depend on the order of rows or of summation."""
    parts: dict[str, dict[str, str]] = {}
    days: dict[str, set[str]] = {}
    for short_name in DATED_FACTS:
        rows = con.sql(
            f'SELECT strftime("date", \'%G-W%V\') AS week, list_sort(list(DISTINCT CAST("date" AS VARCHAR))) AS days,'
            f" {_digest_of(short_name)} AS digest FROM mart.{short_name}"
            f" WHERE {_WAS_RUN.get(short_name, 'true')} GROUP BY ALL"
        ).fetchall()
        for week, week_days, digest in rows:
            parts.setdefault(week, {})[short_name] = digest
            days.setdefault(week, set()).update(week_days)
    for week, digest in _finding_digests(con):
        if week in parts:
            parts[week]["fact_finding"] = digest
    return {
        week: (";".join(f"{name}={digest}" for name, digest in sorted(found.items())), tuple(sorted(days[week])))
        for week, found in sorted(parts.items())
    }


def _digest_of(short_name: str) -> str:
    """Sum of 64-bit row digests, and their count; doubles to nine places, since the order of a sum changes the last."""
    fields = []
    for column in TABLES[f"mart.{short_name}"].columns:
        value = f'round("{column.name}", 9)' if column.type == "double" else f'"{column.name}"'
        fields.append(f"coalesce(CAST({value} AS VARCHAR), chr(30))")
    text = f"concat_ws(chr(31), {', '.join(fields)})"
    return f"concat(CAST(sum(CAST(md5_number_lower({text}) AS HUGEINT)) AS VARCHAR), '/', CAST(count(*) AS VARCHAR))"


def _finding_digests(con: duckdb.DuckDBPyConnection) -> list[tuple[str, str]]:
    """Which findings opened in a week. What they have cost so far grows with later weeks and is no restatement."""
    identity = "concat_ws(chr(31), finding_id, kind, CAST(job_key AS VARCHAR))"
    return con.sql(
        f"SELECT strftime(opened_utc, '%G-W%V') AS week,"
        f" md5(string_agg({identity}, chr(30) ORDER BY {identity})) AS digest"
        " FROM mart.fact_finding WHERE opened_utc IS NOT NULL GROUP BY ALL"
    ).fetchall()


def restated_rows(con: duckdb.DuckDBPyConnection, archive: Path, weeks: dict[str, Week], now: datetime) -> pl.DataFrame:
    """Every row of `fact_restatement` to publish: the mart's own, those published before, and those new now."""
    table = TABLES[RESTATEMENT]
    rows = [con.sql(f"SELECT {table.cast_list()} FROM {RESTATEMENT}").pl()]
    for week_folder in sorted(archive.glob("*-W*")):
        old = latest_archived(archive, week_folder.name)
        if old is None:
            continue
        revision = week_folder / f"r{old.revision}"
        rows.append(_kept_rows(con, revision))
        new = weeks.get(old.name)
        if new is not None and new.revision != old.revision:
            rows.append(_compare(con, revision, old, new, now))
    return pl.concat(rows).unique(maintain_order=True)


def latest_archived(archive: Path, week: str) -> Week | None:
    """The newest kept revision of a week."""
    folder = archive / week_of(week).name
    revisions = [int(match[1]) for path in folder.glob("r*") if (match := _REVISION.fullmatch(path.name))]
    if not revisions:
        return None
    manifest = json.loads((folder / f"r{max(revisions)}" / "manifest.json").read_text(encoding="utf-8"))
    return Week.from_entry(week, manifest["week"])


def _kept_rows(con: duckdb.DuckDBPyConnection, revision: Path) -> pl.DataFrame:
    """The restatements that a kept revision published; columns that are younger than it are null."""
    schema = TABLES[RESTATEMENT].polars_schema()
    kept = con.sql("SELECT * FROM read_parquet($files)", params={"files": _files(revision, "fact_restatement")}).pl()
    absent = [pl.lit(None).alias(name) for name in schema if name not in kept.columns]
    return kept.with_columns(absent).select(list(schema)).cast(dict(schema))


def _files(revision: Path, short_name: str) -> list[str]:
    return [str(path) for path in sorted((revision / short_name).glob("*.parquet"))]


def _compare(con: duckdb.DuckDBPyConnection, folder: Path, old: Week, new: Week, now: datetime) -> pl.DataFrame:
    """Before and after by table, job, scope, currency and measure, where they differ, on days that both hold."""
    days = [date.fromisoformat(day) for day in sorted(set(old.days) & set(new.days))]
    cause, delivery_id = _cause(con, folder, days)
    rows: list[dict[str, object]] = []
    for short_name, scope in _COMPARED.items():
        files = _files(folder, short_name)
        for measure in ("billed_cost", "effective_cost", *(("gpu_hours",) if short_name == "fact_gpu_hours" else ())):
            currency = "CAST(NULL AS VARCHAR)" if measure == "gpu_hours" else "currency"
            found = con.sql(
                _COMPARISON.format(table=f"mart.{short_name}", scope=scope, measure=measure, currency=currency),
                params={"files": files, "days": days},
            ).fetchall()
            rows += [
                {
                    "week": new.name, "revision": new.revision, "published_utc": now.replace(microsecond=0),
                    "table": short_name, "job_key": job_key, "charge_scope": charge_scope, "measure": measure,
                    "before": before, "after": after, "delta": delta, "currency": row_currency,
                    "cause": cause, "delivery_id": delivery_id,
                }
                for job_key, charge_scope, row_currency, before, after, delta in found
            ]  # fmt: skip
    return TABLES[RESTATEMENT].frame(rows)


# A job without rows had 0; a job whose rows have no amount is unknown, and so is its difference (N3).
_COMPARISON = """
WITH old AS (
    SELECT job_key, {scope} AS scope, {currency} AS currency, CAST(sum({measure}) AS DECIMAL(18,6)) AS amount,
           true AS present
    FROM read_parquet($files) WHERE list_contains($days, CAST("date" AS DATE)) GROUP BY ALL
), new AS (
    SELECT job_key, {scope} AS scope, {currency} AS currency, CAST(sum({measure}) AS DECIMAL(18,6)) AS amount,
           true AS present
    FROM {table} WHERE list_contains($days, "date") GROUP BY ALL
), both_sides AS (
    SELECT coalesce(old.job_key, new.job_key) AS job_key, coalesce(old.scope, new.scope) AS scope,
           coalesce(old.currency, new.currency) AS currency,
           CASE WHEN old.present THEN old.amount ELSE 0 END AS before,
           CASE WHEN new.present THEN new.amount ELSE 0 END AS after
    FROM old FULL JOIN new
      ON old.job_key = new.job_key AND old.scope IS NOT DISTINCT FROM new.scope
     AND old.currency IS NOT DISTINCT FROM new.currency
)
SELECT job_key, scope, currency, before, after, CAST(after - before AS DECIMAL(18,6)) AS delta
FROM both_sides WHERE before IS DISTINCT FROM after ORDER BY ALL
"""


def _cause(con: duckdb.DuckDBPyConnection, old: Path, days: list[date]) -> tuple[str, str | None]:
    """A newer bill delivery for these days, else late or corrected telemetry."""
    newer = con.sql(
        "SELECT max(delivery_id) FROM mart.fact_bill_status"
        ' WHERE list_contains($days, "date") AND delivery_id IS NOT NULL'
        " AND delivery_id NOT IN (SELECT delivery_id FROM read_parquet($files) WHERE delivery_id IS NOT NULL)",
        params={"files": _files(old, "fact_bill_status"), "days": days},
    ).fetchall()[0][0]
    return ("newer bill delivery", newer) if newer is not None else ("late or corrected data", None)
