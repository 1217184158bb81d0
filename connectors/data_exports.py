"""Deliveries of AWS Data Exports: which files are in force, by manifest and never by glob. What a row means is not here.

Layout: the AWS Data Exports user guide. The manifest directly below `metadata/BILLING_PERIOD=YYYY-MM/` names the files in
force; older executions, orphans and blanked chunks are in none and are left alone. The case of the partition was changed
by AWS more than once, and copies keep the bucket of their origin: a file is found by the tail `data/BILLING_PERIOD=...`.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import PurePosixPath

from connectors.errors import DeliveryIncomplete, UnsafePath
from connectors.objects import LandedObject, Source, list_objects

_MANIFEST = re.compile(
    r"^(?P<root>(?:.*/)?)metadata/billing_period=(?P<period>20\d{2}-(?:0[1-9]|1[0-2]))/[^/]+-manifest\.json$",
    re.IGNORECASE,
)
_DATA_TAIL = re.compile(r"(?:^|/)(data/billing_period=\d{4}-\d{2}/.*)$", re.IGNORECASE)


@dataclass(frozen=True)
class Delivery:
    """One manifest and the data files that it names, all present. `scope` is what a newer delivery replaces."""

    manifest: LandedObject
    period: str
    scope: str
    files: tuple[LandedObject, ...]

    @property
    def delivery_id(self) -> str:
        parts = [self.scope, self.period, self.manifest.digest, *(f.digest for f in self.files)]
        return hashlib.sha256("\x1f".join(parts).encode()).hexdigest()[:32]

    @property
    def submitted_utc(self) -> datetime:
        """The manifest is written last: its time is the delivery's."""
        return datetime.fromtimestamp(self.manifest.modified_ns / 1e9, UTC).replace(tzinfo=None)


def deliveries(source: Source) -> list[Delivery]:
    """Every period-level manifest of the source with its files, oldest submission first; empty without manifests.

    Raises DeliveryIncomplete (a part is missing or blank) or UnsafePath.
    """
    landed = list_objects(source)
    by_name = {entry.location: entry for entry in landed}
    found = []
    for entry in landed:
        match = _MANIFEST.match(entry.location)
        if match and not entry.location.lower().endswith("-manifest-focus.json"):
            found.append(_delivery(source, entry, match["root"], match["period"], by_name))
    return sorted(found, key=lambda d: (d.period, d.manifest.modified_ns, d.manifest.location))


def period_bounds(period: str) -> tuple[datetime, datetime]:
    """First moment of a billing period and of the next (`2026-11`)."""
    start = datetime.strptime(period, "%Y-%m")
    return start, (start + timedelta(days=32)).replace(day=1)


def _delivery(
    source: Source, entry: LandedObject, root: str, period: str, by_name: dict[str, LandedObject]
) -> Delivery:
    files: dict[str, LandedObject] = {}
    for name in _named_files(entry):
        tail = _DATA_TAIL.search(name)
        if tail is None or ".." in PurePosixPath(name).parts:
            raise UnsafePath(
                f"the manifest names {name!r}, which is not below data/BILLING_PERIOD=...",
                where=entry.location,
                fix="copy the delivery again from its bucket",
            )
        found = _find(f"{root}{tail[1]}", by_name)
        if found is None or found.size_bytes == 0:
            raise DeliveryIncomplete(
                f"data file {tail[1]} is {'empty' if found else 'missing'}",
                where=f"{source.name}: {entry.location}",
                fix="wait for the delivery to finish, or copy that file; until then the previous delivery stays in force",
            )
        files[found.location] = found
    if not files:
        raise DeliveryIncomplete(
            "the manifest names no data files", where=entry.location, fix="check the export in AWS"
        )
    return _named_apart(Delivery(entry, period, f"{source.name}/{root or '.'}", tuple(files.values())))


def _named_files(entry: LandedObject) -> list[str]:
    try:
        manifest = json.loads(entry.path.read_text(encoding="utf-8"))
        names = manifest.get("dataFiles") or manifest.get("reportKeys") or []
    except (ValueError, AttributeError) as error:
        raise DeliveryIncomplete(
            f"the manifest can't be read: {error}", where=entry.location, fix="copy the delivery again"
        ) from error
    if not isinstance(names, list):
        raise DeliveryIncomplete(
            "the manifest's dataFiles is no list", where=entry.location, fix="copy the delivery again"
        )
    return [str(name) for name in names]


def _find(location: str, by_name: dict[str, LandedObject]) -> LandedObject | None:
    """The listed object of that name; when none has its very case, the one that differs in case alone."""
    if location in by_name:
        return by_name[location]
    alike = [entry for name, entry in by_name.items() if name.lower() == location.lower()]
    return alike[0] if len(alike) == 1 else None


def _named_apart(delivery: Delivery) -> Delivery:
    """Each delivery has objects of its own, though a file or the manifest may be the same as in the one before."""

    def own(landed: LandedObject) -> LandedObject:
        identity = f"{delivery.delivery_id}\x1f{landed.object_id}"
        return replace(landed, object_id=hashlib.sha256(identity.encode()).hexdigest()[:32])

    return replace(delivery, manifest=own(delivery.manifest), files=tuple(own(landed) for landed in delivery.files))
