"""ISO weeks in UTC (R1): their names and bounds, and which published rows belong to one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any

from models.contracts import Table

_WEEK = re.compile(r"([0-9]{4})-W([0-9]{2})")


@dataclass(frozen=True)
class IsoWeek:
    """Monday 00:00 to the next Monday 00:00, UTC, half open."""

    name: str
    monday: date

    @property
    def end(self) -> date:
        return self.monday + timedelta(days=7)

    @property
    def days(self) -> list[date]:
        return [self.monday + timedelta(days=n) for n in range(7)]

    @property
    def billing_periods(self) -> list[str]:
        return sorted({f"{day:%Y-%m}" for day in self.days})

    @property
    def previous(self) -> IsoWeek:
        return week_containing(self.monday - timedelta(days=1))


def week_of(name: str) -> IsoWeek:
    """`2026-W47`; anything else is a ValueError that says so."""
    match = _WEEK.fullmatch(name)
    if match is None:
        raise ValueError(f"{name!r} is not an ISO week (like 2026-W47)")
    try:
        return IsoWeek(name, date.fromisocalendar(int(match[1]), int(match[2]), 1))
    except ValueError as error:
        raise ValueError(f"{name!r} is not an ISO week: {error}") from error


def week_containing(day: date) -> IsoWeek:
    year, week, _ = day.isocalendar()
    return IsoWeek(f"{year}-W{week:02d}", date.fromisocalendar(year, week, 1))


@dataclass(frozen=True)
class Week:
    """One published revision of a week; `digest` is of its numbers, `days` are those that had any."""

    name: str
    revision: int
    digest: str
    published_utc: str
    days: tuple[str, ...]

    def entry(self) -> dict[str, Any]:
        return {
            "revision": self.revision,
            "digest": self.digest,
            "published_utc": self.published_utc,
            "days": list(self.days),
        }

    @classmethod
    def from_entry(cls, name: str, entry: dict[str, Any]) -> Week:
        week_of(name)  # a name becomes a folder: refuse what is not a week
        return cls(
            name, int(entry["revision"]), str(entry["digest"]), str(entry["published_utc"]), tuple(entry["days"])
        )


def archived_rows(table: Table, week: Week, source: str) -> tuple[str, dict[str, object]]:
    """The SELECT (parenthesised) and parameters of the rows of a published table that belong to a week.

    Dimensions are kept whole; findings by overlap of evidence and week; bill-wide facts by billing period.
    """
    iso = week_of(week.name)
    names = set(table.column_names)
    if table.short_name == "fact_finding":
        return (
            f"(SELECT * FROM {source} WHERE coalesce(first_evidence_utc, opened_utc) < $to"
            " AND coalesce(closed_utc, $to) >= $from)",
            {"from": _midnight(iso.monday), "to": _midnight(iso.end)},
        )
    if "date" in names:
        bounds: dict[str, object] = {"from": _midnight(iso.monday), "to": _midnight(iso.end)}
        return f'(SELECT * FROM {source} WHERE "date" >= $from AND "date" < $to)', bounds
    if "week" in names:
        return f"(SELECT * FROM {source} WHERE week = $week)", {"week": iso.name}
    if "billing_period" in names:
        return f"(SELECT * FROM {source} WHERE list_contains($periods, billing_period))", {
            "periods": iso.billing_periods
        }
    return f"(SELECT * FROM {source})", {}


def _midnight(day: date) -> datetime:
    return datetime(day.year, day.month, day.day)
