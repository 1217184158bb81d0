"""Publishes a small mart and kills itself at a named step: `killed_publisher.py HOME MARK STEP {exchange|rename}`.

Every table holds MARK, so a reader can tell which publication a row came from. Prints the steps that it passed.
"""

from __future__ import annotations

import os
import signal
import sys
from datetime import date, datetime
from pathlib import Path

from models.contracts import TABLES
from models.engine.warehouse import Warehouse, Window
from reports import swap
from reports.publish import publish


def marked_mart(mark: int) -> Warehouse:
    """A mart in which each of four tables carries `mark`."""
    warehouse = Warehouse()
    day = date(2026, 11, 16)
    none: dict[str, object] = {"cluster_key": -1}
    rows: dict[str, dict[str, object]] = {
        "dim_owner": {"owner_key": mark, "team": f"mark-{mark}"},
        "dim_zone": {"zone_key": mark, "zone": f"mark-{mark}"},
        "fact_gpu_hours": {"date": day, **none, "node_key": -1, "zone_key": -1, "job_key": mark, "gpu_hours": 1.0},
        "fact_cost_ledger": {"date": day, "billing_period": "2026-11", **none, "job_key": mark, "owner_key": -1},
    }  # fmt: skip
    for name, row in rows.items():
        warehouse.append(f"mart.{name}", TABLES[f"mart.{name}"].frame([row]))
    return warehouse


MARKED = {"dim_owner": "owner_key", "dim_zone": "zone_key", "fact_gpu_hours": "job_key", "fact_cost_ledger": "job_key"}
WINDOW = Window(date(2026, 11, 16), date(2026, 11, 17))


def main(home: str, mark: str, step: str, way: str) -> None:
    if way == "rename":
        swap._exchange = lambda first, second: False

    def at_step(name: str) -> None:
        print(name, flush=True)
        if name == step:
            os.kill(os.getpid(), signal.SIGKILL)

    with marked_mart(int(mark)) as warehouse:
        publish(warehouse, Path(home), datetime(2026, 11, 18), WINDOW, at_step=at_step)


if __name__ == "__main__":
    main(*sys.argv[1:])
