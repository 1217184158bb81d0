"""Figures for notebooks: a frame in, a plotly figure out. No files, no network, no clock.

The weekly report draws its own charts (`charts`), which need no script. Colours and words are the same.
"""

from __future__ import annotations

import html

import plotly.graph_objects as go
import polars as pl

from reports import words as w

# The mode bar offers to send figures to a cloud service: cost data stays here
CONFIG = {"displayModeBar": False, "responsive": True}
_UNIT = "GPU-hours"


def gpu_states_by_hour(frame: pl.DataFrame) -> go.Figure:
    """Stacked bars of GPU-hours over time from columns `hour_utc`, `state`, `gpu_hours`."""
    figure = go.Figure()
    for state in _in_order(frame):
        part = (
            frame.filter(pl.col("state") == state).group_by("hour_utc").agg(pl.col("gpu_hours").sum()).sort("hour_utc")
        )
        figure.add_bar(
            x=part["hour_utc"].to_list(),
            y=part["gpu_hours"].to_list(),
            name=_state_label(state),
            marker_color=_colour(state),
        )
    return _laid_out(figure, "GPU time by state", y_title=f"{_UNIT} per hour (UTC)", stacked=True)


def gpu_cost_by_day(frame: pl.DataFrame, currency: str) -> go.Figure:
    """Stacked bars of cost from columns `date`, `state`, `cost`, `currency`; other currencies are left out (N5)."""
    mine = frame.filter(pl.col("currency") == currency)
    figure = go.Figure()
    for state in _in_order(mine):
        part = mine.filter(pl.col("state") == state).group_by("date").agg(pl.col("cost").sum()).sort("date")
        figure.add_bar(
            x=part["date"].to_list(), y=_floats(part["cost"]), name=_state_label(state), marker_color=_colour(state)
        )
    return _laid_out(figure, f"GPU cost by day and state ({currency})", y_title=f"{currency} per day", stacked=True)


def idle_by_cause(frame: pl.DataFrame) -> go.Figure:
    """Horizontal bars of GPU-hours by state and cause from columns `state`, `cause`, `gpu_hours`; largest on top."""
    wasted = frame.filter(pl.col("state").is_in(["idle", "starting", "comm_stall"]))
    bars = wasted.group_by("state", "cause").agg(pl.col("gpu_hours").sum()).sort("gpu_hours", "state", "cause")
    figure = go.Figure(
        go.Bar(
            x=bars["gpu_hours"].to_list(),
            y=[_cause_label(state, cause) for state, cause in bars.select("state", "cause").rows()],
            marker_color=[_colour(state) for state in bars["state"]],
            orientation="h",
            text=[w.hours(hours) for hours in bars["gpu_hours"]],
        )
    )
    return _laid_out(figure, "Held GPU time without useful work, by cause", x_title=_UNIT)


def cost_by_job(frame: pl.DataFrame, currency: str, top: int = 10) -> go.Figure:
    """Horizontal bars of the dearest jobs from columns `name`, `cost`, `currency`; the rest is one bar of its own."""
    mine = frame.filter((pl.col("currency") == currency) & pl.col("cost").is_not_null()).sort("cost", descending=True)
    rows = [
        (_literal(w.shorten(name or w.UNKNOWN, 48)), cost)
        for name, cost in mine.select("name", "cost").head(top).rows()
    ]
    rest = mine.slice(top)
    if rest.height:
        rows.append((f"{rest.height} other jobs", rest["cost"].sum()))
    rows.reverse()
    figure = go.Figure(
        go.Bar(
            x=[float(cost) for _, cost in rows], y=[name for name, _ in rows], orientation="h",
            text=[w.money(cost, currency) for _, cost in rows], marker_color=w.STATES["unallocated"].colour,
        )
    )  # fmt: skip
    return _laid_out(figure, f"GPU cost by job ({currency})", x_title=currency)


def zone_pairs(frame: pl.DataFrame, currency: str) -> go.Figure:
    """A matrix of inter-AZ cost from columns `source_zone`, `destination_zone`, `cost`, `currency`.

    Pairs without cost stay empty; a null zone is a row or column of its own, called unknown (N3).
    """
    named = frame.filter(pl.col("currency") == currency).with_columns(
        pl.col("source_zone", "destination_zone").fill_null(w.UNKNOWN)
    )
    zones = sorted({*named["source_zone"], *named["destination_zone"]})
    costs = {
        (source, destination): cost
        for source, destination, cost in named.group_by("source_zone", "destination_zone")
        .agg(pl.col("cost").sum())
        .rows()
    }
    cells = [[costs.get((source, destination)) for destination in zones] for source in zones]
    labels = [_literal(zone) for zone in zones]
    figure = go.Figure(
        go.Heatmap(
            x=labels, y=labels, z=[[None if cost is None else float(cost) for cost in row] for row in cells],
            text=[["" if cost is None else w.money(cost, currency) for cost in row] for row in cells], texttemplate="%{text}",
            colorscale=[[0, "#eef5fa"], [1, "#0072b2"]], colorbar_title=currency, hoverongaps=False,
        )
    )  # fmt: skip
    figure.update_yaxes(autorange="reversed")
    return _laid_out(figure, f"Inter-AZ cost by zone pair ({currency})", x_title="to zone", y_title="from zone")


def _in_order(frame: pl.DataFrame) -> list[str]:
    present = set(frame["state"].drop_nulls())
    return [state for state in w.STATES if state in present] + sorted(present - set(w.STATES))


def _state_label(state: str) -> str:
    return w.STATES[state].label if state in w.STATES else _literal(state)


def _colour(state: str) -> str:
    return w.STATES[state].colour if state in w.STATES else "#55606b"


def _cause_label(state: str, cause: str | None) -> str:
    return f"{_state_label(state)}: {_literal(w.words(w.CAUSES, cause or None, 'no cause recorded'))}"


def _floats(values: pl.Series) -> list[float | None]:
    return [None if value is None else float(value) for value in values]


def _literal(text: str) -> str:
    """Text that plotly must not read as its pseudo-HTML."""
    return html.escape(w.clean(text), quote=False)


def _laid_out(
    figure: go.Figure, title: str, *, x_title: str | None = None, y_title: str | None = None, stacked: bool = False
) -> go.Figure:
    figure.update_layout(
        title=title, template="plotly_white", barmode="relative" if stacked else "group", legend_traceorder="normal",
        font_family="Inter, Segoe UI, Helvetica, Arial, sans-serif", margin={"l": 60, "r": 20, "t": 60, "b": 50},
    )  # fmt: skip
    figure.update_xaxes(title=x_title, automargin=True)
    figure.update_yaxes(title=y_title, automargin=True)
    return figure
