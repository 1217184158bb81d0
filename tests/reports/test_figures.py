"""Figures: pure functions of their frame, in plain words, with the amounts that the frame holds."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal

import polars as pl

from reports import figures
from tests.reports.mart_sample import HOSTILE_NAMES

HOUR = datetime(2026, 11, 16, 9)


def test_states_are_stacked_in_the_order_of_the_rules() -> None:
    frame = pl.DataFrame(
        {"hour_utc": [HOUR] * 4, "state": ["idle", "busy", "novel", "busy"], "gpu_hours": [1.0, 2.0, 4.0, 3.0]}
    )
    figure = figures.gpu_states_by_hour(frame)
    assert [(trace.name, list(trace.y)) for trace in figure.data] == [
        ("Busy", [5.0]),
        ("Idle", [1.0]),
        ("novel", [4.0]),
    ]
    assert figure.layout.barmode == "relative"
    assert figure.layout.yaxis.title.text == "GPU-hours per hour (UTC)"


def test_n5_a_figure_holds_one_currency() -> None:
    frame = pl.DataFrame({"date": [date(2026, 11, 16)] * 2, "state": ["busy"] * 2, "cost": [Decimal("1.5"), Decimal("9")],
                          "currency": ["USD", "EUR"]})  # fmt: skip
    figure = figures.gpu_cost_by_day(frame, "USD")
    assert [list(trace.y) for trace in figure.data] == [[1.5]]
    assert "USD" in figure.layout.title.text


def test_causes_are_said_in_words_with_the_largest_on_top() -> None:
    frame = pl.DataFrame({"state": ["idle", "starting", "busy", "idle"], "cause": ["blocked_by_policy", "image_pull", None, ""],
                          "gpu_hours": [5.0, 1.0, 9.0, 2.0]})  # fmt: skip
    (bars,) = figures.idle_by_cause(frame).data
    assert list(bars.y) == [
        "Starting: image being pulled",
        "Idle: no cause recorded",
        "Idle: blocked by a network policy",
    ]
    assert bars.text[-1] == "5.0\u00a0GPU-hours"


def test_jobs_beyond_the_top_are_one_bar_so_that_the_bars_sum_to_the_whole() -> None:
    frame = pl.DataFrame(
        {"name": ["a", "b", "c", "d"], "cost": [Decimal(n) for n in (1, 4, 3, 2)], "currency": ["USD"] * 4}
    )
    (bars,) = figures.cost_by_job(frame, "USD", top=2).data
    assert list(zip(bars.y, bars.x, strict=True)) == [("2 other jobs", 3.0), ("c", 3.0), ("b", 4.0)]


def test_hostile_names_are_text_to_plotly() -> None:
    frame = pl.DataFrame({"name": [HOSTILE_NAMES[0]], "cost": [Decimal(1)], "currency": ["USD"]})
    figure = figures.cost_by_job(frame, "USD")
    assert figure.data[0].y[0] == "&lt;img src=x onerror=alert(1)&gt;"


def test_n3_an_unknown_zone_is_a_zone_of_its_own_and_no_cost_is_empty() -> None:
    frame = pl.DataFrame({"source_zone": ["a", None], "destination_zone": ["b", "b"], "cost": [Decimal(2), Decimal(3)],
                          "currency": ["USD", "USD"]})  # fmt: skip
    (matrix,) = figures.zone_pairs(frame, "USD").data
    assert list(matrix.x) == ["a", "b", "unknown"]
    assert [list(row) for row in matrix.z] == [[None, 2.0, None], [None, None, None], [None, 3.0, None]]
    assert matrix.text[2][1] == "USD\u00a03.00"
