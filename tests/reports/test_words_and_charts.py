"""Words, numbers and drawings of the report, apart from any data."""

from __future__ import annotations

import re
from decimal import Decimal

import pytest

from models.contracts import TABLES
from reports import charts
from reports import words as w
from reports.charts import Bar, Series, contrast
from reports.weekly_sections import BUCKET_COLOURS, evidence_items


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("1234.565", "1,234.56"), ("0", "0.00"), ("-12.3", "−12.30"), ("0.5", "0.50"), ("0.0068094198", "0.0068"),
        ("0.000004", "0.000004"), ("-0.0412", "−0.041"), ("0.0000001", "0.000000"),
    ],
)  # fmt: skip
def test_amounts_keep_their_first_digits(value: str, text: str) -> None:
    assert w.amount(Decimal(value)) == text


def test_n3_unknown_is_a_word() -> None:
    assert (
        w.amount(None)
        == w.money(None, "USD")
        == w.money(Decimal(1), None)
        == w.hours(None)
        == w.volume(None)
        == "unknown"
    )
    assert w.percent(None) == "n/a"
    assert w.share(Decimal(1), Decimal(0)) is None and w.share(None, Decimal(1)) is None
    assert w.share(Decimal(1), Decimal(-5)) is None


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.0, "0 %"),
        (0.001, "< 1 %"),
        (0.994, "99 %"),
        (0.9999, "99.9 %"),
        (1.0, "100 %"),
        (-0.14, "−14 %"),
        (1.5, "150 %"),
    ],
)
def test_a_share_is_never_rounded_to_nothing_or_all(share: float, text: str) -> None:
    assert w.percent(share).replace("\u00a0", " ") == text


def test_exact_totals_show_every_digit() -> None:
    assert w.exact(Decimal("75546.120000000001")) == "75,546.120000000001"
    assert w.exact(Decimal("75546.120000000000")) == "75,546.12"
    assert w.exact(Decimal("-0.000000000001")) == "−0.000000000001"
    assert w.exact(Decimal("0E-12")) == "0.00"


@pytest.mark.parametrize(
    ("size", "text"), [(0.0, "0 B"), (999.0, "999 B"), (1e9, "1.0 GB"), (6.3e12, "6.3 TB"), (5e18, "5,000.0 PB")]
)
def test_volumes_are_decimal(size: float, text: str) -> None:
    assert w.volume(size).replace("\u00a0", " ") == text


@pytest.mark.parametrize(
    ("table", "column", "known"),
    [
        ("fact_gpu_hours", "state", w.STATES), ("fact_gpu_hours", "cause", w.CAUSES), ("fact_transfer_cost", "basis", w.BASES),
        ("fact_transfer_cost", "reason", w.REASONS), ("fact_cost_ledger", "bucket", w.BUCKETS), ("fact_finding", "kind", w.FINDING_KINDS),
        ("fact_bill_status", "status", w.BILL_STATUS), ("fact_gpu_hours", "cost_basis", w.COST_BASES),
    ],
)  # fmt: skip
def test_every_term_of_the_contract_has_words(table: str, column: str, known: dict[str, object]) -> None:
    meaning = next(c.meaning for c in TABLES[f"mart.{table}"].columns if c.name == column)
    terms = set(re.findall(r"\b[a-z][a-z_]+\b", meaning)) - {"null", "or", "when", "attributed", "else"}
    assert terms and terms <= set(known)


def test_a_term_without_words_is_shown_as_it_is() -> None:
    assert w.words(w.CAUSES, "some_new_cause") == "some new cause"
    assert w.words(w.CAUSES, None) == "unknown"


def test_colours_stand_out_on_white_and_letters_on_colours() -> None:
    colours = [state.colour for state in w.STATES.values()] + list(BUCKET_COLOURS.values())
    assert len({state.colour for state in w.STATES.values()}) == len(w.STATES)
    for colour in colours:
        assert contrast(colour, "#ffffff") >= 3, colour
        assert contrast(charts.readable_on(colour), colour) >= 4.5, colour
    for text in (charts.INK, charts.MUTED):
        assert contrast(text, "#ffffff") >= 4.5
    assert contrast("#000000", "#ffffff") == pytest.approx(21)


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [(0, 5160, [0, 2000, 4000, 6000]), (0, 0, [0, 1]), (-30, 70, [-40, -20, 0, 20, 40, 60, 80]), (0, 0.004, [0, 0.001, 0.002, 0.003, 0.004])],
)  # fmt: skip
def test_ticks_are_round_and_enclose_the_values(low: float, high: float, ticks: list[float]) -> None:
    assert charts.nice_ticks(low, high, 5) == pytest.approx(ticks)


def rectangles(svg: str) -> list[tuple[float, float, float, float]]:
    """(x, y, width, height) of the bars in the wide drawing."""
    wide = svg.split("</svg>")[0]
    pattern = r'<rect x="([-0-9.]+)" y="([-0-9.]+)" width="([0-9.]+)" height="([0-9.]+)"'
    return [tuple(float(part) for part in found) for found in re.findall(pattern, wide)]  # type: ignore[misc]


def test_bars_share_one_zero_and_one_scale() -> None:
    bars = [
        Bar("a", 100, "100", "#000000"),
        Bar("b", 50, "50", "#000000"),
        Bar("c", -25, "−25", "#000000"),
        Bar("d", 0, "0", "#000000"),
    ]
    (a, b, c, d) = rectangles(charts.bar_chart("x", "t", "d", bars))
    assert a[0] == b[0] == c[0] + c[2]
    assert b[2] == pytest.approx(a[2] / 2, abs=0.2) and c[2] == pytest.approx(a[2] / 4, abs=0.2)
    assert d[2] == 0


def test_columns_stack_upwards_and_downwards_from_zero() -> None:
    series = [
        Series("up", "#000000", (4.0, None)),
        Series("more", "#111111", (2.0, None)),
        Series("credit", "#222222", (-3.0, None)),
    ]
    svg = charts.column_chart("x", "t", "d", ["Mon 1 Nov", "Tue 2 Nov"], series, "USD per day")
    up, more, credit = rectangles(svg)
    assert more[1] + more[3] == pytest.approx(up[1], abs=0.2)
    assert credit[1] == pytest.approx(up[1] + up[3], abs=0.2)
    assert credit[3] == pytest.approx(up[3] * 3 / 4, abs=0.3)
    assert "no data" in svg


def test_shares_fill_the_width_and_negative_parts_are_refused() -> None:
    parts = rectangles(
        charts.share_chart("x", "t", "d", [Bar("a", 3, "3", "#000000", "75 %"), Bar("b", 1, "1", "#000000", "25 %")])
    )
    assert [part[2] for part in parts] == pytest.approx([charts.WIDE * 0.75, charts.WIDE * 0.25])
    with pytest.raises(ValueError, match="negative"):
        charts.share_chart("x", "t", "d", [Bar("a", -1, "−1", "#000000")])


def test_text_in_charts_is_escaped() -> None:
    svg = charts.bar_chart("x", "<t>", "<d>", [Bar("<script>alert(1)</script>", 1, "<b>", "#000000")])
    assert "<script" not in svg and "<b>" not in svg and "&lt;script&gt;" in svg


@pytest.mark.parametrize(
    ("text", "items"),
    [
        (None, []), ("", []), ("[]", []), ("plain words", ["plain words"]), ('{"what": "x"}', ['{"what": "x"}']),
        ('[{"what": "drops", "rows": 1, "query": "q"}, "more"]', ["drops (1\u00a0row)", "more"]),
        ('[{"what": "drops", "rows": null}]', ["drops"]), ("[1, null]", ["1", "None"]),
    ],
)  # fmt: skip
def test_evidence_is_read_with_care(text: str | None, items: list[str]) -> None:
    assert evidence_items(text) == items
