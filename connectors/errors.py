"""Errors of the connectors: one base, one class per situation, the data in attributes. Messages say what, where, how to fix."""

from __future__ import annotations


class ConnectorError(Exception):
    """A source could not be read. `transient` says whether trying again may help."""

    transient = False

    def __init__(self, what: str, *, where: str, fix: str) -> None:
        super().__init__(f"{what}\n  where: {where}\n  fix:   {fix}")
        self.what, self.where, self.fix = what, where, fix


class SourceMissing(ConnectorError):
    """The configured location does not exist or holds nothing of this kind."""


class FormatUnknown(ConnectorError):
    """The object is not in a format that this connector reads."""


class DeliveryIncomplete(ConnectorError):
    """A bill's manifest names parts that are missing or do not match (B5)."""


class BillUnreadable(ConnectorError):
    """A row whose cost, currency or billing period can't be read, or an empty or collapsed bill (B5)."""


class UnsafePath(ConnectorError):
    """A name in a manifest or archive leads out of its folder."""
