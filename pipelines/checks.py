"""The blocking check between the warehouse and its readers: every promise of `models/checks`, and conservation (N6)."""

import dagster as dg

from models.reconcile import violations
from pipelines.resources import Workspace

# the last table that is built: when its check fails, nothing is published
CHECKED_ASSET = dg.AssetKey(["mart", "dim_date"])


def warehouse_checks() -> list[dg.AssetChecksDefinition]:
    """One blocking check over the whole warehouse, so that it is opened once."""

    @dg.asset_check(asset=CHECKED_ASSET, blocking=True, name="every_promise_holds")
    def every_promise_holds(workspace: dg.ResourceParam[Workspace]) -> dg.AssetCheckResult:
        workspace.say("checking conservation, keys and totals")
        broken = broken_promises(workspace)
        return dg.AssetCheckResult(
            passed=not broken, description="\n".join(broken) or "ledger and bill agree to the last digit"
        )

    return [every_promise_holds]


def broken_promises(workspace: Workspace) -> list[str]:
    """Every violated check of the warehouse, one sentence each."""
    with workspace.warehouse() as warehouse:
        return violations(warehouse)
