"""The weekly report: what it says, that it says the mart's numbers, and what it does with what is not known."""

from __future__ import annotations

import re
from datetime import date, timedelta
from decimal import Decimal
from functools import cache
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest

from models.contracts import TABLES
from models.engine.warehouse import Warehouse
from reports import weekly_data as data
from reports import weekly_sections as sections
from reports import words as w
from reports.publish import mart_tables, open_published, publish
from reports.weekly import render_week, week_context, weekly_report
from reports.weeks import week_containing, week_of
from tests.reports.conftest import NOW, WINDOW
from tests.reports.mart_sample import EMPTY_WEEK, HOSTILE_NAMES, LONG_NAME

WEEK = "2026-W47"
FULL = "date BETWEEN '2026-11-16' AND '2026-11-22'"

APART = {"td", "th", "p", "div", "li", "dt", "dd", "h1", "h2", "h3", "h4", "span", "caption", "figcaption", "article"}


class Page(HTMLParser):
    """The text of each section by its heading's id, and every tag and attribute."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.sections: dict[str, str] = {"top": ""}
        self._section = "top"
        self._silent = 0
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.tags.append((tag, attributes))
        if tag == "section":
            self._section = attributes["aria-labelledby"] or ""
            self.sections[self._section] = ""
        self._silent += tag in ("style", "svg")
        self.sections[self._section] += " " if tag in APART else ""

    def handle_endtag(self, tag: str) -> None:
        self._silent -= tag in ("style", "svg")

    def handle_data(self, text: str) -> None:
        if not self._silent:
            self.sections[self._section] += text

    def __getitem__(self, section: str) -> str:
        return re.sub(r"\s+", " ", self.sections[section]).replace("\u00a0", " ")


def page_of(mart: Warehouse, week: str = WEEK) -> Page:
    return Page(render_week(mart.con, week))


@cache
def read(sample: Warehouse, week: str) -> Page:
    """A page of the shared mart, drawn once."""
    return page_of(sample, week)


def cost(mart: Warehouse, where: str, table: str = "fact_gpu_hours") -> Decimal:
    total = mart.query(f"SELECT sum(effective_cost) AS cost FROM mart.{table} WHERE {FULL} AND {where}")["cost"][0]
    assert isinstance(total, Decimal)
    return total


# --- what it says ----------------------------------------------------------------------------------------------
def test_the_headline_names_the_cost_and_the_idle_part(sample: Warehouse) -> None:
    gpu, idle = cost(sample, "currency = 'USD'"), cost(sample, "currency = 'USD' AND state = 'idle'")
    transfer = cost(sample, "currency = 'USD'", "fact_transfer_cost")
    said = read(sample, WEEK)["headline"]
    assert (
        f"GPU and inter-AZ cost this week: USD {gpu + transfer:,.2f}, of which USD {idle:,.2f} (31 %) was idle GPU time."
        in said
    )
    assert "Largest cause of idle time: blocked by a network policy, USD 6,674.84" in said


def test_completeness_comes_before_any_amount(sample: Warehouse) -> None:
    page = read(sample, WEEK)
    assert list(page.sections)[:2] == ["top", "complete"]
    assert "USD" not in page["top"]


def test_n3_completeness_states_days_rows_and_shares(sample: Warehouse) -> None:
    said = read(sample, WEEK)["complete"]
    assert "7 of 7 of the 7 days: 5 settled, 2 bill open" in said
    rows = sample.query(
        f"SELECT sum(rows_read) AS n, sum(rows_rejected) AS bad FROM mart.fact_coverage WHERE {FULL}"
    ).row(0)
    assert f"Rows rejected {rows[1]:,} of {rows[0]:,} rows read" in said
    assert "vpc_flow_logs train-1 5 of 7" in said and "unknown" in said
    held = sample.query(f"SELECT sum(gpu_hours) FILTER (WHERE state <> 'unmeasured') AS known, sum(gpu_hours) AS held"
                      f" FROM mart.fact_gpu_hours WHERE {FULL} AND state <> 'unallocated'").row(0)  # fmt: skip
    assert f"GPU time measured 98 % {held[0]:,.1f} GPU-hours of {held[1]:,.1f} GPU-hours that jobs held" in said


def test_counts_that_do_not_close_are_named(mart: Warehouse) -> None:
    assert "do not close" not in page_of(mart)["complete"]
    mart.con.execute(
        "UPDATE mart.fact_coverage SET rows_kept = rows_kept - 1 WHERE source = 'hubble' AND date = '2026-11-18'"
    )
    assert "do not close" in page_of(mart)["complete"]


def test_a_source_dated_outside_the_week_is_listed_all_the_same(mart: Warehouse) -> None:
    mart.con.execute("UPDATE mart.fact_coverage SET date = '2026-11-01' WHERE source = 'billing'")
    said = page_of(mart)["complete"]
    assert "billing nothing dated in this week; its last records are of Sun 1 Nov train-1 0 of 7" in said


def test_the_share_that_names_a_job_is_of_gpu_and_inter_az_money(sample: Warehouse) -> None:
    (euro, dollar) = data.attributable(sample.con, week_of(WEEK))
    assert (euro["currency"], dollar["currency"]) == ("EUR", "USD")
    everything = cost(
        sample, "currency = 'USD' AND charge_scope IN ('gpu_compute', 'inter_az_transfer')", "fact_cost_ledger"
    )
    assert dollar["total"] == everything
    assert dollar["to_jobs"] + dollar["unallocated"] + dollar["unattributed"] == everything
    assert "EUR 69 %, USD 88 %" in read(sample, WEEK)["complete"]


def test_gpu_states_and_causes_sum_to_the_gpu_cost(sample: Warehouse) -> None:
    usd, eur, unpriced = sections.by_currency(data.gpu_states(sample.con, week_of(WEEK)), [], [])
    assert (usd.currency, eur.currency, unpriced.currency) == ("USD", "EUR", None)
    assert sum((usd.cost(state) for state in w.STATES), Decimal(0)) == usd.cost() == cost(sample, "currency = 'USD'")
    idle = sum(row[0] for row in sections.cause_costs(usd, ("idle",)).values())
    assert idle == usd.cost("idle")
    assert "idle, starting, communication stall, underused): USD 18,111.53, 50 %" in read(sample, WEEK)["gpu"]


def test_g6_cost_per_busy_gpu_hour_of_the_fleet_and_a_job(sample: Warehouse) -> None:
    hours, busy_cost = sample.query(
        f"SELECT sum(gpu_hours) FILTER (WHERE state = 'busy') AS h, CAST(sum(effective_cost) FILTER (WHERE state <> 'unmeasured')"
        f" AS DECIMAL(18,6)) AS c FROM mart.fact_gpu_hours WHERE {FULL} AND currency = 'USD'"
    ).row(0)
    assert f"USD 11.28 {hours:,.1f} GPU-hours busy" in read(sample, WEEK)["headline"]
    assert abs(busy_cost / Decimal(hours) - Decimal("11.28")) < Decimal("0.005")
    rows = {
        row["job"]["name"]: row["unit"]
        for block in week_context(sample.con, week_of(WEEK))["jobs"]
        for row in block["rows"]
        if block["priced"]
    }
    assert (
        rows["eval-sweep"] == "4.10"
    )  # 40 % of its GPU time is unmeasured and stays out of the cost as out of the hours
    assert rows[HOSTILE_NAMES[0]] == "n/a"


def test_g6_no_busy_hour_gives_null() -> None:
    assert sections.per_hour(Decimal(5), 0.0) is None
    assert sections.per_hour(None, 3.0) is None
    assert sections.per_hour(Decimal("7.5"), 3.0) == Decimal("2.5")


def test_job_rows_sum_to_all_gpu_time(mart: Warehouse) -> None:
    extra = mart.query(
        "SELECT * FROM mart.fact_gpu_hours WHERE job_key = 101 AND date = '2026-11-17' LIMIT 1"
    ).to_dicts()[0]
    for key in range(300, 330):
        mart.append("mart.fact_gpu_hours", TABLES["mart.fact_gpu_hours"].frame([extra | {"job_key": key}]))
    week = week_of(WEEK)
    usd = sections.by_currency(data.gpu_states(mart.con, week), data.gpu_models(mart.con, week), [])[0]
    block = sections.jobs_section(data.jobs(mart.con, week), usd)
    assert len(block["rows"]) == sections.TOP_JOBS + 1
    assert block["rows"][-1]["job"]["name"] == "26\u00a0other jobs"
    amounts = [_read(row["cost"]) for row in block["rows"]] + [_read(block["nobody"]["cost"])]
    assert abs(sum(amounts) - _read(block["total_cost"])) <= Decimal("0.01") * len(amounts)
    assert _read(block["total_cost"]) == round(cost(mart, "currency = 'USD'"), 2)


def _read(text: str) -> Decimal:
    return Decimal(text.replace(",", "").replace("\u2212", "-"))


def test_a3_measured_money_and_flow_share_money_stand_apart(sample: Warehouse) -> None:
    page = read(sample, WEEK)
    sentence = (
        "Inter-AZ transfer: USD 66.20, of which USD 59.04 was attributed by measured bytes, USD 4.20 estimated by flow"
        " shares, and USD 2.96 attributed to no job."
    )
    assert sentence in page["headline"] and sentence in page["transfer"]
    assert cost(sample, "reason IS NULL AND basis = 'flow_share'", "fact_transfer_cost") == Decimal("4.2")


def test_a2_volume_that_is_not_charged_is_told_once(sample: Warehouse) -> None:
    said = read(sample, WEEK)["transfer"]
    assert "6.3 TB crossed zones in train-2 and its provider does not charge for it" in said


def test_an_inter_az_row_names_both_ends_zones_and_way(sample: Warehouse) -> None:
    said = read(sample, WEEK)["transfer"]
    assert "worker → its worker us-east-1a → us-east-1b, sent" in said
    assert "worker ← its worker us-east-1b → us-east-1a, received" in said
    assert "worker → storage/minio" in said


def test_findings_carry_money_evidence_and_remedy(sample: Warehouse) -> None:
    said = read(sample, WEEK)["findings"]
    assert "Blocked by a closed door" in said
    assert "1,396.8 GPU-hours idle or stalled" in said
    assert "USD 5,721.29" in said and "attempts denied by policy (5,684 rows)" in said
    assert "What to do: Pin the job to us-east-1a" in said
    assert "Evidence against half-hours in which one worker alone was busy (2 rows)" in said
    assert "price unknown" in said and "its money counts elsewhere" in said
    assert "not json at all <b>" in said


def test_a_finding_outside_the_week_is_not_shown(sample: Warehouse) -> None:
    assert "No finding was open in this week." in read(sample, "2026-W46")["findings"]
    assert "Waiting for members" not in read(sample, "2026-W48")["findings"]


def test_what_is_unattributed_is_said_with_its_reason(sample: Warehouse) -> None:
    said = read(sample, WEEK)["bill"]
    assert "GPU compute GPUs that no job asked for 4,472.83" in said
    assert "inter-AZ transfer billed traffic beyond what was measured 2.45" in said
    assert "inter-AZ transfer no traffic records cover the line 0.51" in said
    assert "storage outside GPU compute and inter-AZ transfer 87.50" in said


def test_n6_a_charge_of_a_month_stands_beside_the_week(sample: Warehouse) -> None:
    said = read(sample, WEEK)["bill"]
    assert "charges that span more than a day and start in it, −USD 189.93 together" in said
    assert "credits USD −500.00" in said
    daily = cost(sample, "currency = 'USD' AND charge_span <> 'period'", "fact_cost_ledger")
    assert f"Bill lines of a day or less: USD {daily:,.2f} effective cost." in said


def test_n6_the_reconciliation_is_exact_and_a_difference_is_loud(mart: Warehouse) -> None:
    page = page_of(mart)
    assert "The ledger equals the bill to the last digit." in page["reconciliation"]
    assert "Reconciled with the bill, difference 0" in page["top"]
    mart.con.execute("UPDATE mart.fact_reconciliation SET difference = -0.000000000001 WHERE currency = 'EUR'")
    page = page_of(mart)
    assert "EUR −0.000000000001 ⚠" in page["reconciliation"]
    assert "Not reconciled" in page["top"]


def test_week_over_week_shows_both_weeks_and_the_change(sample: Warehouse) -> None:
    said = read(sample, WEEK)["change"]
    assert "USD 2,555.90 (8 %) more than the week before." in said
    assert "idle (USD) 11,078.86 9,743.89 ▲ +1,334.97 +14 %" in said
    assert "The same as the week before, to the cent." in said


# --- what is not known -----------------------------------------------------------------------------------------
def test_r1_a_partial_week_is_flagged_and_not_compared(sample: Warehouse) -> None:
    page = read(sample, "2026-W48")
    assert "Partial week: 2 of 7 days" in page["top"]
    assert "No comparison. 2026-W48 is not whole yet" in page["change"]


def test_a_week_after_a_partial_one_is_not_compared(mart: Warehouse) -> None:
    for name in ("fact_gpu_hours", "fact_zone_traffic", "fact_cost_ledger"):
        mart.con.execute(f"DELETE FROM mart.{name} WHERE date = '2026-11-10'")
    assert "Only 6 of the 7 days of 2026-W46 were processed" in page_of(mart)["change"]


def test_a_first_week_has_nothing_to_compare_with(sample: Warehouse) -> None:
    assert "Nothing is known of 2026-W45" in read(sample, "2026-W46")["change"]


def test_n3_an_empty_week_is_unknown_and_not_zero(sample: Warehouse) -> None:
    page = read(sample, EMPTY_WEEK)
    everything = " ".join(page[name] for name in page.sections if name != "terms")
    assert "No GPU or inter-AZ cost is known for this week." in page["headline"]
    assert "GPU time measured unknown" in page["complete"] and "Rows rejected unknown" in page["complete"]
    assert "0.00" not in everything and "0 %" not in everything
    assert "No bill covers this week" in page["reconciliation"]


def test_a_mart_without_rows_gives_a_page(warehouse: Warehouse) -> None:
    assert "No GPU or inter-AZ cost is known" in page_of(warehouse)["headline"]


def test_n3_gpu_time_without_a_price_is_counted_and_in_no_amount(sample: Warehouse) -> None:
    page = read(sample, WEEK)
    assert "48.0 GPU-hours have no price and are in no total" in page["complete"]
    assert "48.0 GPU-hours have no known price." in page["gpu"]
    assert "eval-sweep rl · Job · train-1 Vision 48.0 unknown" in page["jobs"]


def test_gpu_time_without_any_bill_is_drawn_in_hours(warehouse: Warehouse) -> None:
    row = {"date": date(2026, 11, 17), "cluster_key": -1, "node_key": -1, "zone_key": -1, "job_key": 7, "state": "idle",
           "cause": "no_work", "gpu_hours": 3.0, "cost_basis": "unpriced"}  # fmt: skip
    warehouse.append("mart.fact_gpu_hours", TABLES["mart.fact_gpu_hours"].frame([row]))
    page = page_of(warehouse)
    assert "3.0 GPU-hours have no known price" in page["gpu"]
    assert "Where GPU time went (GPU-hours)" in page["gpu"]
    assert "Cost unknown" in page["gpu"] or "unknown" in page["gpu"]
    assert "job key 7" in page["jobs"]
    assert "No GPU or inter-AZ cost is known" in page["headline"]


def test_a_finding_without_a_price_is_unknown_and_not_zero(sample: Warehouse) -> None:
    assert "1 finding below carries idle or stalled GPU time of unknown cost." in read(sample, WEEK)["headline"]


def test_b3_an_unknown_effective_cost_makes_the_total_incomplete(mart: Warehouse) -> None:
    mart.con.execute(
        "UPDATE mart.fact_transfer_cost SET effective_cost = NULL WHERE basis = 'flow_share' AND date = '2026-11-17'"
    )
    mart.con.execute(
        "UPDATE mart.fact_cost_ledger SET effective_cost = NULL WHERE charge_scope = 'storage' AND date = '2026-11-17'"
    )
    page = page_of(mart)
    assert "1 inter-AZ row without a known effective cost: the total is incomplete." in page["headline"]
    assert "Incomplete: the effective cost of 1 ledger row is not known." in page["bill"]


def test_b6_an_estimate_is_its_own_subtotal(sample: Warehouse) -> None:
    said = read(sample, "2026-W48")["gpu"]
    assert "of which USD 5,160.96 is estimated and not billed yet" in said
    assert "estimated and not billed" not in read(sample, WEEK)["gpu"]


def test_n5_two_currencies_never_meet_in_one_amount(sample: Warehouse) -> None:
    page = read(sample, WEEK)
    usd, eur = cost(sample, "currency = 'USD'"), cost(sample, "currency = 'EUR'")
    everything = " ".join(page[name] for name in page.sections)
    assert f"{usd:,.2f}" in everything and f"{eur:,.2f}" in everything
    assert f"{usd + eur:,.2f}" not in everything
    assert "Amounts in different currencies are never added" in page["headline"]


def test_a_currency_with_a_bill_and_no_inter_az_line_has_none_and_one_without_bill_is_unknown() -> None:
    week = sections.CurrencyWeek("EUR")
    assert [tile["value"] for tile in sections.tiles(week, billed=True)] == ["none", "none"]
    assert [tile["value"] for tile in sections.tiles(week, billed=False)] == ["unknown", "unknown"]


def test_a_negative_gpu_cost_is_drawn_and_not_clamped(mart: Warehouse) -> None:
    mart.con.execute("UPDATE mart.fact_gpu_hours SET effective_cost = -effective_cost WHERE state = 'unallocated'")
    page = page_of(mart)
    assert "Unallocated: −USD 4,472.83" in page["gpu"]


# --- one file, safe, the same everywhere -----------------------------------------------------------------------
def test_the_page_is_self_contained(sample: Warehouse, tmp_path: Path) -> None:
    path = weekly_report(sample.con, WEEK, tmp_path / "reports" / "week.html")
    html = path.read_text(encoding="utf-8")
    assert path.stat().st_size < 1_500_000
    page = Page(html)
    assert {tag for tag, _ in page.tags} & {
        "script",
        "link",
        "img",
        "iframe",
        "object",
        "embed",
        "base",
        "form",
    } == set()
    for tag, attributes in page.tags:
        assert not {"src", "href", "srcset", "data", "action", "poster"} & set(attributes), tag
        assert not [name for name in attributes if name.startswith("on")], tag
    assert re.findall(r"https?://[^\"' ]+", html.replace('xmlns="http://www.w3.org/2000/svg"', "")) == []
    assert "url(" not in html and "@import" not in html
    policy = next(
        a["content"] for tag, a in page.tags if tag == "meta" and a.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy is not None and policy.startswith("default-src 'none'")
    assert [path.name for path in (tmp_path / "reports").iterdir()] == ["week.html"]


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_hostile_names_are_text(sample: Warehouse, name: str) -> None:
    html = render_week(sample.con, WEEK)
    if "<" in name:
        assert name not in html
    page = Page(html)
    assert name in page["jobs"]
    assert {"img", "script"} & {tag for tag, _ in page.tags} == set()


TEXT_COLUMNS = [
    (table.name, column.name) for table in mart_tables() for column in table.columns
    if column.type == "text" and column.name not in ("currency", "billing_period", "week", "month")
]  # fmt: skip


def test_no_text_of_the_mart_becomes_markup(mart: Warehouse) -> None:
    planted = '"><img src=x onerror=alert(9)>'
    for number, (table, column) in enumerate(TEXT_COLUMNS):
        if column not in ("state", "bucket", "charge_span", "basis", "reason"):  # these choose what is shown at all
            mart.con.execute(f'UPDATE {table} SET "{column}" = $text', {"text": f"{planted}{number}"})
    page = page_of(mart)
    assert "img" not in {tag for tag, _ in page.tags}
    said = " ".join(page[name] for name in page.sections)
    assert said.count(planted) > 30
    for column in ("state", "bucket", "basis", "reason"):
        for table in (table for table, name in TEXT_COLUMNS if name == column):
            mart.con.execute(f'UPDATE {table} SET "{column}" = $text', {"text": planted})
    assert "img" not in {tag for tag, _ in page_of(mart).tags}


def test_characters_that_are_not_seen_are_made_visible(mart: Warehouse) -> None:
    mart.con.execute("UPDATE mart.dim_job SET name = 'safe' || chr(8238) || 'gnp.exe' WHERE job_key = 101")
    html = render_week(mart.con, WEEK)
    assert "\u202e" not in html and "safe\ufffdgnp.exe" in html


def test_the_same_mart_gives_the_same_bytes(sample: Warehouse) -> None:
    assert render_week(sample.con, WEEK) == render_week(sample.con, WEEK)


def test_r4_the_snapshot_and_the_warehouse_give_the_same_report(sample: Warehouse, published_home: Path) -> None:
    with open_published(published_home) as published:
        html = render_week(published.connection, WEEK)
    badge = '    <li class="badge">Revision 1, published 25 Nov 2026, 06:00 UTC</li>\n'
    assert badge in html
    assert html.replace(badge, "") == render_week(sample.con, WEEK)


def test_r2_a_restated_week_says_what_changed_and_why(mart: Warehouse, tmp_path: Path) -> None:
    publish(mart, tmp_path, NOW, WINDOW)
    mart.con.execute("UPDATE mart.fact_gpu_hours SET effective_cost = effective_cost + 1, gpu_hours = gpu_hours + 0.5"
                     " WHERE job_key = 101 AND state = 'busy' AND date = '2026-11-18'")  # fmt: skip
    mart.con.execute("UPDATE mart.fact_bill_status SET delivery_id = 'd-9' WHERE date = '2026-11-18'")
    publish(mart, tmp_path, NOW + timedelta(days=2), WINDOW)
    with open_published(tmp_path) as published:
        page = Page(render_week(published.connection, WEEK))
        other = Page(render_week(published.connection, "2026-W46"))
    assert "Revision 2, published 27 Nov 2026, 06:00 UTC" in page["top"]
    assert (
        "GPU time, GPU compute resnet-nightly 2 USD 11,010.05 11,014.05 +4.00 newer bill delivery (d-9)"
        in page["restated"]
    )
    assert "resnet-nightly 2 GPU-hours 2,688.00 2,690.00 +2.00" in page["restated"]
    assert "restated" not in other.sections


def test_r2_a_comparison_with_a_restated_week_says_so(mart: Warehouse, tmp_path: Path) -> None:
    publish(mart, tmp_path, NOW, WINDOW)
    mart.con.execute("UPDATE mart.fact_gpu_hours SET effective_cost = effective_cost + 1 WHERE date = '2026-11-12'")
    publish(mart, tmp_path, NOW, WINDOW)
    with open_published(tmp_path) as published:
        said = Page(render_week(published.connection, WEEK))["change"]
    assert "2026-W46 stands here as restated (revision 2)" in said


def test_the_report_is_replaced_in_one_step(sample: Warehouse, tmp_path: Path) -> None:
    out = tmp_path / "week.html"
    out.write_text("old", encoding="utf-8")
    with pytest.raises(ValueError, match="not an ISO week"):
        weekly_report(sample.con, "2026-W54", out)
    assert out.read_text(encoding="utf-8") == "old"


@pytest.mark.parametrize("week", ["2026-47", "2026-W60", "2025-W53", "W47", "2026-W47; DROP", "../2026-W47", ""])
def test_r1_what_is_no_iso_week_is_refused(week: str) -> None:
    with pytest.raises(ValueError, match="not an ISO week"):
        week_of(week)


def test_r1_weeks_are_iso_weeks_over_a_year_end() -> None:
    assert week_of("2026-W53").monday == date(2026, 12, 28)
    assert week_of("2026-W53").billing_periods == ["2026-12", "2027-01"]
    assert week_containing(date(2027, 1, 3)).name == "2026-W53"
    assert week_of("2027-W01").previous.name == "2026-W53"


# --- for every reader ------------------------------------------------------------------------------------------
def test_every_chart_has_a_title_a_description_and_unique_ids(sample: Warehouse) -> None:
    page = read(sample, WEEK)
    identifiers = [attributes["id"] for _, attributes in page.tags if attributes.get("id")]
    assert len(identifiers) == len(set(identifiers))
    drawings = [attributes for tag, attributes in page.tags if tag == "svg"]
    assert len(drawings) >= 12
    for attributes in drawings:
        assert attributes["role"] == "img"
        assert set((attributes["aria-labelledby"] or "").split()) <= set(identifiers)


def test_headings_are_in_order_and_cells_have_headers(sample: Warehouse) -> None:
    page = read(sample, WEEK)
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(later - earlier <= 1 for earlier, later in pairwise(levels))
    assert all(attributes.get("scope") in ("col", "row") for tag, attributes in page.tags if tag == "th")


def test_a_long_name_is_whole_for_those_who_search_it(sample: Warehouse) -> None:
    assert LONG_NAME in read(sample, WEEK)["jobs"]
