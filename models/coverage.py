"""What the numbers rest on: records read, kept, rejected and lost for each source and day (N3, T6), and days processed."""

from __future__ import annotations

import hashlib

import polars as pl

from models.contracts import TABLES
from models.engine.run import Model
from models.engine.warehouse import Warehouse, Window
from models.parameters import Parameters


def build_processed_days(warehouse: Warehouse, window: Window, parameters: Parameters) -> None:
    """Mark the window's days as processed; days that are not marked are `not_run` in the ledger (N6)."""
    objects = warehouse.query("SELECT DISTINCT object_id FROM staging.load ORDER BY 1")["object_id"].to_list()
    digest = hashlib.sha256("".join(objects).encode()).hexdigest()[:32]
    frame = TABLES["core.processed_day"].frame([{"date": day, "input_digest": digest} for day in window.days])
    warehouse.replace("core.processed_day", frame, window=window)


def build_coverage(warehouse: Warehouse, window: Window, parameters: Parameters) -> None:
    """Fill `mart.fact_coverage`, whole: one row a day, cluster and source, with counts that close."""
    warehouse.run_sql_model("mart.fact_coverage", {})
    broken = warehouse.query(
        "SELECT * FROM mart.fact_coverage WHERE rows_read <> rows_kept + rows_rejected + rows_duplicate + rows_control"
    )
    if broken.height:
        raise AssertionError(f"counts of {broken.height} sources do not close, first {broken.row(0, named=True)}")


def rejected_rows(warehouse: Warehouse, limit: int = 20) -> pl.DataFrame:
    """Rejected records by source, file and reason, most first: (source, location, reason, rows, first_line)."""
    return warehouse.query(
        "SELECT l.source, l.location, r.reason, count(*) AS rows, min(r.line_number) AS first_line"
        " FROM staging.rejected_row AS r"
        " JOIN (SELECT DISTINCT object_id, source, location FROM staging.load) AS l USING (object_id)"
        " GROUP BY ALL ORDER BY rows DESC, source, location, reason LIMIT $limit",
        {"limit": limit},
    )


PROCESSED_DAYS = Model(
    "processed_days", ("core.processed_day",), ("staging.load",), build_processed_days, "Days that were run."
)
COVERAGE = Model(
    "coverage",
    ("mart.fact_coverage",),
    ("staging.load", "core.placement_coverage", "core.flow_coverage_hourly", "core.gpu_state_hourly", "core.bill_line"),
    build_coverage,
    "Records and coverage of each source and day.",
)
MODELS = (PROCESSED_DAYS, COVERAGE)
