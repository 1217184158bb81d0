"""Charts of the weekly report as inline SVG: no script, no network, sharp in print and in a mail.

Each chart is drawn twice, for wide and for narrow screens, and the page shows the one that fits; so letters keep
their size. All text is escaped here. A chart has a title and a description for those who can't see it; the page puts
the numbers beside it as a table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from reports.words import clean, shorten

WIDE, NARROW = 946, 344
LABEL_LENGTH = 50  # letters that fit beside a bar on wide screens, above it on narrow ones
INK, MUTED, GRID = "#17212b", "#55606b", "#d5dbe1"
_CHARACTER = 6.6  # mean width of a letter at 12.5 px, on the wide side


@dataclass(frozen=True)
class Bar:
    """One bar: its value decides the length, its text is printed beside it."""

    label: str
    value: float
    text: str
    colour: str
    note: str = ""


@dataclass(frozen=True)
class Series:
    """Values of one colour over the columns of a chart; None is unknown and draws nothing."""

    label: str
    colour: str
    values: tuple[float | None, ...]


def bar_chart(chart_id: str, title: str, description: str, bars: Sequence[Bar]) -> Markup:
    """Horizontal bars from a common zero, which lies inside the chart when a value is negative."""
    return _both(chart_id, title, description, lambda width: _bars(bars, width))


def column_chart(
    chart_id: str, title: str, description: str, columns: Sequence[str], series: Sequence[Series], unit: str
) -> Markup:
    """Stacked columns; negative values stack downwards from zero."""
    return _both(chart_id, title, description, lambda width: _columns(columns, series, unit, width))


def share_chart(chart_id: str, title: str, description: str, bars: Sequence[Bar]) -> Markup:
    """One bar split by the shares of its parts; negative values can't be shares and are a ValueError."""
    if any(bar.value < 0 for bar in bars):
        raise ValueError("a share of a whole can't be negative: draw bars instead")
    return _both(chart_id, title, description, lambda width: _shares(bars, width))


def _both(chart_id: str, title: str, description: str, draw: Callable[[int], tuple[str, float]]) -> Markup:
    parts = []
    for name, width in (("wide", WIDE), ("narrow", NARROW)):
        body, height = draw(width)
        ids = f"{chart_id}-{name}"
        parts.append(
            f'<svg class="{name}" viewBox="0 0 {width} {height:.0f}" width="{width}" height="{height:.0f}" role="img"'
            f' aria-labelledby="{ids}-t {ids}-d" xmlns="http://www.w3.org/2000/svg">'
            f'<title id="{ids}-t">{_text(title)}</title><desc id="{ids}-d">{_text(description)}</desc>{body}</svg>'
        )
    return Markup("".join(parts))  # noqa: S704 - every text above went through _text


def _bars(bars: Sequence[Bar], width: int) -> tuple[str, float]:
    narrow = width == NARROW
    label_width = 0.0 if narrow else 310.0
    value_width = max([len(bar.text) for bar in bars], default=0) * 7.0 + 12
    row, thickness = (40.0, 15.0) if narrow else (28.0, 17.0)
    low, high = min([0.0, *(b.value for b in bars)]), max([0.0, *(b.value for b in bars)])
    room = width - label_width - value_width
    scale = room / (high - low) if high > low else 0.0
    zero = label_width - low * scale
    out = []
    for index, bar in enumerate(bars):
        top = index * row + (20.0 if narrow else (row - thickness) / 2)
        length = abs(bar.value) * scale
        left = zero if bar.value >= 0 else zero - length
        shown = escape(shorten(clean(bar.label), LABEL_LENGTH))
        if narrow:
            out.append(_label(0, top - 5, shown, "start"))
        else:
            out.append(_label(label_width - 12, top + thickness - 4, shown, "end"))
        tip = f"<title>{_text(bar.label)}: {_text(bar.text)}</title>"
        out.append(
            f'<rect x="{left:.1f}" y="{top:.1f}" width="{max(length, 1.0) if bar.value else 0:.1f}" height="{thickness}"'
            f' fill="{bar.colour}" rx="1.5">{tip}</rect>'
        )
        right = zero + max(bar.value, 0.0) * scale + 7
        out.append(_label(right, top + thickness - 3.5, escape(bar.text), "start", strong=True))
        edge = (top - 1, top + thickness + 1) if narrow else (index * row, (index + 1) * row)
        out.append(f'<line x1="{zero:.1f}" x2="{zero:.1f}" y1="{edge[0]:.1f}" y2="{edge[1]:.1f}" stroke="{MUTED}"/>')
    height = len(bars) * row + 4
    return "".join(out), height


def _columns(columns: Sequence[str], series: Sequence[Series], unit: str, width: int) -> tuple[str, float]:
    narrow = width == NARROW
    left, top, bottom = (54.0, 22.0, 26.0) if narrow else (78.0, 24.0, 28.0)
    height = 240.0 if narrow else 270.0
    ups = [sum(max(s.values[i] or 0.0, 0.0) for s in series) for i in range(len(columns))]
    downs = [sum(min(s.values[i] or 0.0, 0.0) for s in series) for i in range(len(columns))]
    ticks = nice_ticks(min([0.0, *downs]), max([0.0, *ups]), 4 if narrow else 5)
    low, high = ticks[0], ticks[-1]
    scale = (height - top - bottom) / ((high - low) or 1.0)

    def y(value: float) -> float:
        return top + (high - value) * scale

    out = [_label(0, 11, escape(unit), "start")]
    for tick in ticks:
        out.append(
            f'<line x1="{left:.0f}" x2="{width}" y1="{y(tick):.1f}" y2="{y(tick):.1f}" stroke="{MUTED if tick == 0 else GRID}"/>'
        )
        out.append(_label(left - 7, y(tick) + 4, escape(_tick(tick, ticks[1] - ticks[0])), "end"))
    slot = (width - left) / max(len(columns), 1)
    for index, name in enumerate(columns):
        x, bar = left + slot * (index + 0.5), slot * 0.62
        up = down = 0.0
        for one in series:
            value = one.values[index]
            if not value:
                continue
            start, stop = (up, up + value) if value > 0 else (down + value, down)
            up, down = (up + value, down) if value > 0 else (up, down + value)
            tip = f"<title>{_text(name)}, {_text(one.label)}: {value:,.2f} {_text(unit)}</title>"
            out.append(
                f'<rect x="{x - bar / 2:.1f}" y="{y(stop):.1f}" width="{bar:.1f}" height="{max((stop - start) * scale, 0.5):.1f}"'
                f' fill="{one.colour}" stroke="#fff" stroke-width="0.75">{tip}</rect>'
            )
        if all(one.values[index] is None for one in series):
            out.append(_label(x, y(0) - 6, Markup("no data"), "middle"))
        shown = name.split(" ")[0] if narrow else name
        out.append(_label(x, height - 8, escape(shown), "middle"))
    return "".join(out), height


def _shares(bars: Sequence[Bar], width: int) -> tuple[str, float]:
    total = sum(bar.value for bar in bars)
    thickness = 40.0
    out, x = [], 0.0
    for bar in bars:
        length = bar.value / total * width if total else 0.0
        if not length:
            continue
        tip = f"<title>{_text(bar.label)}: {_text(bar.text)}</title>"
        out.append(
            f'<rect x="{x:.1f}" y="0" width="{length:.1f}" height="{thickness}" fill="{bar.colour}" stroke="#fff"'
            f' stroke-width="1.5">{tip}</rect>'
        )
        if length > len(bar.note) * _CHARACTER + 10:
            out.append(
                _label(x + length / 2, thickness / 2 + 4.5, escape(bar.note), "middle", strong=True, colour="#fff")
            )
        x += length
    return "".join(out), thickness


def nice_ticks(low: float, high: float, about: int) -> list[float]:
    """Round numbers that enclose [low, high] and contain 0; two at least."""
    span = high - low
    if span <= 0 or not math.isfinite(span):
        return [0.0, 1.0]
    raw = span / about
    magnitude = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * magnitude for factor in (1, 2, 2.5, 5, 10) if factor * magnitude >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [index * step for index in range(first, last + 1)]


def readable_on(background: str) -> str:
    """White or ink, whichever stands out more on a colour (WCAG contrast)."""
    return max(("#ffffff", INK), key=lambda colour: contrast(colour, background))


def contrast(first: str, second: str) -> float:
    """WCAG 2 contrast ratio of two `#rrggbb` colours, 1 to 21."""
    darker, lighter = sorted((_luminance(first), _luminance(second)))
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(colour: str) -> float:
    parts = (int(colour[index : index + 2], 16) / 255 for index in (1, 3, 5))
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _tick(value: float, step: float) -> str:
    places = max(0, -math.floor(math.log10(step))) if step < 1 else (1 if step % 1 else 0)
    text = f"{abs(value):,.{places}f}"
    return f"\u2212{text}" if value < 0 else text


def _label(x: float, y: float, text: Markup, anchor: str, *, strong: bool = False, colour: str | None = None) -> str:
    fill = colour or (INK if strong else MUTED)
    weight = ' font-weight="600"' if strong else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="12.5" fill="{fill}" text-anchor="{anchor}"{weight}>{text}</text>'


def _text(text: str) -> Markup:
    return escape(clean(text))
