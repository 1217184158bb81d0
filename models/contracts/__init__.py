"""One object per table: name, grain, key, columns with type and meaning, partition. Everything else is derived.

`TABLES` maps `schema.name` to its `Table`.
"""

from models.contracts import core, mart, staging
from models.contracts.table import Column, Table

TABLES: dict[str, Table] = {
    table.name: table for module in (staging, core, mart) for table in vars(module).values() if isinstance(table, Table)
}

__all__ = ["TABLES", "Column", "Table"]
