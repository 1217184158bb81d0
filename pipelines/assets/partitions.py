"""Partitions of the graph and their windows: days for flows, placement and GPUs, months for bills, weeks for reports."""

from datetime import date, timedelta

import dagster as dg

from models.engine.warehouse import Window

FIRST_DAY = "2024-01-01"  # a Monday: no partition starts before it
daily = dg.DailyPartitionsDefinition(start_date=FIRST_DAY, end_offset=1)
monthly = dg.MonthlyPartitionsDefinition(start_date=FIRST_DAY, end_offset=1)
weekly = dg.WeeklyPartitionsDefinition(start_date=FIRST_DAY, day_offset=1, end_offset=1)


def window_of(keys: dg.PartitionKeyRange, partitions: dg.PartitionsDefinition) -> Window:
    """The whole UTC days that a range of partition keys covers."""
    start, last = date.fromisoformat(keys.start), date.fromisoformat(keys.end)
    if partitions is monthly:
        return Window(start, first_of_next_month(last))
    return Window(start, last + timedelta(days=7 if partitions is weekly else 1))


def keys_of(window: Window, partitions: dg.PartitionsDefinition) -> dg.PartitionKeyRange:
    """The partition keys that touch a window."""
    first, last = window.from_date, window.to_date - timedelta(days=1)
    if partitions is monthly:
        first, last = first.replace(day=1), last.replace(day=1)
    elif partitions is weekly:
        first, last = monday_of(first), monday_of(last)
    return dg.PartitionKeyRange(first.isoformat(), last.isoformat())


def first_of_next_month(day: date) -> date:
    return (day.replace(day=1) + timedelta(days=32)).replace(day=1)


def monday_of(day: date) -> date:
    return day - timedelta(days=day.weekday())
