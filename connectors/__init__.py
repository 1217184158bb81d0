"""Connectors: bytes of the outside world to typed staging rows. One module a system: list, fetch, parse.

Belongs here: everything that knows a source's format. Not here: SQL models, Dagster, what a number means.
May import `models.contracts` only; connectors never import each other (shared object access is `objects`).
"""
