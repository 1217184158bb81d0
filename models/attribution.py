"""Inter-AZ cost of jobs (rules A1 to A6, B10): every billed line between zones, split over the traffic that it charges.

The bill gives the amount, traffic gives the shares. The steps are SQL, one file each (`sql/core/transfer_cost__*.sql`);
all weights are integers, so that the parts of a line sum to it at 12 places in any order of evaluation (N4, N6).
What does not belong here: how traffic is measured (`traffic`), and which lines are inter-AZ (`bill`).
"""

from __future__ import annotations

import json

import polars as pl

from models.engine.run import Model
from models.engine.warehouse import Warehouse, Window, load_sql
from models.money import split_sql
from models.parameters import Parameters

GIBIBYTE = 2**30
# bytes of a billed unit, by provider and unit as written, lower case (B10); AWS gigabytes are a parameter
UNIT_BYTES: dict[tuple[str, str], int] = {
    ("aws", "byte"): 1,
    ("aws", "bytes"): 1,
    ("aws", "gib"): GIBIBYTE,
    ("azure", "1 gb"): 1_000_000_000,
    ("azure", "gb"): 1_000_000_000,
    ("gcp", "byte"): 1,
    ("gcp", "bytes"): 1,
    ("gcp", "by"): 1,
    ("gcp", "gb"): GIBIBYTE,
    ("gcp", "gib"): GIBIBYTE,
    ("gcp", "giby"): GIBIBYTE,
    ("gcp", "gibibyte"): GIBIBYTE,
    ("gcp", "gibibytes"): GIBIBYTE,
}
_AWS_GIGABYTE = ("gb", "gigabyte", "gigabytes")
# directions that a provider does not charge (A2): facts of each provider's price list
UNCHARGED: tuple[tuple[str, str], ...] = (
    ("azure", "out"),
    ("azure", "in"),
    ("gcp", "in"),
    ("on_prem", "out"),
    ("on_prem", "in"),
)
# a measured-to-billed ratio near 2^30 / 1e9, or its inverse, is a unit mismatch rather than a loss (B10)
MISMATCH_RATIOS = (1.074, 0.931)
MISMATCH_TOLERANCE = 0.01

_STEPS = ("line", "pair", "traffic", "slot", "weight", "only_flows", "share")
_SPLIT = split_sql(
    "transfer_share", group=("line_id",), key=("pair_key",), weight="weight", amounts=("billed_cost", "effective_cost")
)


def build_transfer_cost(warehouse: Warehouse, window: Window, parameters: Parameters) -> None:
    """Fill core.transfer_cost for the window's days. Each line's parts sum exactly to its billed and effective cost."""
    bound = {**window.parameters(), "dedicated_accounts": _dedicated_accounts(warehouse)}
    names = ["transfer_unit", "uncharged_direction", "transfer_split", *(f"transfer_{step}" for step in _STEPS)]
    try:
        warehouse.scratch_frame("transfer_unit", _units(parameters))
        uncharged = pl.DataFrame(UNCHARGED, schema=["provider", "direction"], orient="row")
        warehouse.scratch_frame("uncharged_direction", uncharged)
        for step in _STEPS:
            warehouse.scratch_sql(f"transfer_{step}", load_sql(f"core.transfer_cost__{step}"), bound)
        warehouse.scratch_sql("transfer_split", _SPLIT)
        warehouse.run_sql_model("core.transfer_cost", bound, window=window)
    finally:
        warehouse.drop_scratch(*names)


def measured_over_billed(warehouse: Warehouse) -> pl.DataFrame:
    """Measured over billed gigabytes per billing account, sub-account and month, over lines with byte evidence (B10).

    Columns: billing_period, billing_account, sub_account, billed_gb, measured_gb, ratio, likely_unit_mismatch.
    `measured_gb` is in the billed unit and not capped by what was billed.
    """
    ratios = warehouse.query(
        "SELECT billing_period, billing_account, sub_account, CAST(sum(billed_gb) AS DOUBLE) AS billed_gb,"
        " CAST(sum(billed_gb * estimate_ratio) AS DOUBLE) AS measured_gb"
        " FROM core.transfer_cost WHERE estimate_ratio IS NOT NULL AND billed_gb IS NOT NULL GROUP BY ALL"
        " HAVING sum(billed_gb) > 0 ORDER BY ALL"
    ).with_columns(ratio=pl.col("measured_gb") / pl.col("billed_gb"))
    near = [(pl.col("ratio") / known - 1).abs() <= MISMATCH_TOLERANCE for known in MISMATCH_RATIOS]
    return ratios.with_columns(likely_unit_mismatch=pl.any_horizontal(near))


def _units(parameters: Parameters) -> pl.DataFrame:
    rows = [(provider, unit, size) for (provider, unit), size in UNIT_BYTES.items()]
    rows += [("aws", unit, parameters.aws_gigabyte_bytes) for unit in _AWS_GIGABYTE]
    return pl.DataFrame(rows, schema={"provider": pl.String, "unit": pl.String, "unit_bytes": pl.Int64}, orient="row")


def _dedicated_accounts(warehouse: Warehouse) -> list[str]:
    texts = warehouse.query("SELECT accounts FROM staging.cluster WHERE accounts IS NOT NULL")["accounts"]
    return sorted({str(account) for text in texts for account in json.loads(text)})


MODELS: tuple[Model, ...] = (
    Model(
        "transfer_cost",
        ("core.transfer_cost",),
        ("core.bill_line", "core.node_life", "core.node_traffic_hourly", "staging.cluster"),
        build_transfer_cost,
        "split each inter-AZ bill line over the traffic that it charges",
    ),
)
