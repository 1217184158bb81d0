"""Words, units and colours: how states, causes, reasons and amounts are said to people who pay.

Every term of the rules that a report may show has its plain words here, once, for the report and the figures alike.
Unknown is a word of its own and never a number (N3).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date, datetime
from decimal import ROUND_HALF_EVEN, Decimal

UNKNOWN = "unknown"
NOT_APPLICABLE = "n/a"
_SPACE = "\u00a0"
_MINUS = "\u2212"
# Control characters and direction overrides: a name must not hide or reorder the text around it
_UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]")


@dataclass(frozen=True)
class State:
    """A GPU state (G1): its short label, what it means, and its colour (3:1 or more on white)."""

    label: str
    meaning: str
    colour: str


STATES = {
    "busy": State("Busy", "held by a job and computing", "#00805d"),
    "underused": State("Underused", "active, but for the part of its capacity that did no work", "#4f9a8a"),
    "comm_stall": State("Communication stall", "busy waiting for other members of the job", "#b3578b"),
    "idle": State("Idle", "held by a job and doing nothing", "#c94c05"),
    "starting": State("Starting", "held by a job whose program had not started yet", "#8f6b00"),
    "unmeasured": State("Unmeasured", "held, but nothing measured what it did", "#68717a"),
    "unallocated": State("Unallocated", "paid for, and asked for by no job", "#0072b2"),
    "reserved_unused": State("Reserved, not run", "bought as a reservation and never started", "#3d4a57"),
}
WASTED = ("idle", "starting", "comm_stall", "underused")

CAUSES = {
    "creating": "pod being created",
    "image_pull": "image being pulled",
    "blocked_by_policy": "blocked by a network policy",
    "init": "init containers running",
    "restarting": "restarting",
    "finished_not_released": "finished, GPUs not released",
    "waiting_for_members": "waiting for members of the job",
    "pause": "short pause between work",
    "no_work": "never any work since start",
    "unexplained": "no cause found",
    "cross_zone_sync": "synchronising across zones",
    "not_in_cluster": "billed, not yet or no longer in the cluster",
    "free": "free, no job asked",
    "unschedulable": "node closed for scheduling",
    "unhealthy": "unhealthy device",
    "no_placement": "no record of what ran there",
}

REASONS = {
    "unallocated": "GPUs that no job asked for",
    "unexplained": "billed traffic beyond what was measured",
    "no_evidence": "no traffic records cover the line",
    "no_resource_id": "the bill line names no resource",
    "not_a_node": "the billed resource is no node of a configured cluster",
    "not_charged": "the provider does not charge this traffic",
    "unknown_zone": "the zone of one end is not known",
    "no_zone": "the zone of one end is not known",
    "no_live_owner": "no live pod owned the address at that time",
    "ambiguous": "two pods could own the address",
    "host_network": "host-network traffic that names no job",
    "service_ip": "a Service address that stands for more than one job",
    "no_node": "a GPU instance that never joined a cluster",
    "not_run": "the day has not been processed yet",
    "rejected": "a bill row with a readable cost but other fields that could not be read",
    "effective_unknown": "the bill does not say the amortised cost",
    "not_in_cluster": "billed outside the node's life in the cluster",
    "no_placement": "no record of what ran there",
    "unpriced": "no price is known",
}

SCOPES = {
    "gpu_compute": "GPU compute",
    "other_compute": "other compute",
    "inter_az_transfer": "inter-AZ transfer",
    "regional_other": "other regional traffic",
    "peering": "peering",
    "inter_region_transfer": "inter-region transfer",
    "internet_transfer": "internet transfer",
    "nat": "NAT",
    "private_link": "private link",
    "transit_gateway": "transit gateway",
    "public_ip": "public IP",
    "load_balancer": "load balancers",
    "commitment_purchase": "commitment purchases",
    "commitment_unused": "unused commitments",
    "capacity_unused": "unused reserved capacity",
    "control_plane": "control plane",
    "software": "software",
    "storage": "storage",
    "tax": "tax",
    "credit": "credits",
    "refund": "refunds",
    "support": "support",
    "other": "other",
}

BUCKETS = {
    "job": "Attributed to jobs",
    "shared": "Shared by a rule",
    "unattributed": "Not attributed",
    "out_of_scope": "Outside GPU and inter-AZ",
}

FINDING_KINDS = {
    "blocked": "Blocked by a closed door",
    "stalled": "Stalled in communication",
    "slow": "Slowed by crossing zones",
    "billed": "Billed for crossing zones",
    "split": "Spread over zones",
    "waiting": "Waiting for members",
    "unreleased": "Finished, GPUs not released",
    "doors": "A door the framework needs is closed",
    "label_mismatch": "Declared zone is not the actual one",
    "spread_constraint": "A constraint spreads the job over zones",
}

CONFIDENCE = {
    "complete": "evidence complete",
    "partial": "evidence partial",
    "impact_unmeasured": "impact not measured",
    "insufficient": "evidence insufficient",
}

BASES = {
    "measured_bytes": "measured bytes",
    "counter_bytes": "byte counters",
    "flow_share": "estimated by flow shares",
    "none": "not attributed",
}

COST_BASES = {
    "billed": "billed by line",
    "pooled": "billed, shared over a pool of nodes",
    "estimated": "estimated, not billed yet",
    "not_billed": "missing in the bill",
    "unpriced": "no price known",
}

BILL_STATUS = {
    "open": "bill open",
    "settled": "settled",
    "invoiced": "invoiced",
    "none": "no bill",
}


def words(table: dict[str, str], term: str | None, absent: str = UNKNOWN) -> str:
    """The plain words of a term; a term that has none is shown as it is, with spaces."""
    return absent if term is None else table.get(term, term.replace("_", " "))


def clean(text: str) -> str:
    """Text of the outside world without characters that are not seen."""
    return _UNSEEN.sub("\ufffd", text)


def shorten(text: str, length: int) -> str:
    """The text, or its start and end around an ellipsis."""
    if len(text) <= length:
        return text
    head = (length - 1) * 2 // 3
    return f"{text[:head]}…{text[len(text) - (length - 1 - head) :]}"


# --- numbers ---------------------------------------------------------------------------------------------------
def amount(value: Decimal | None) -> str:
    """Money without its currency: two places, or more while an amount below 1 would lose its first digits."""
    if value is None:
        return UNKNOWN
    places = 2
    if value and abs(value) < 1:
        places = min(6, max(2, 1 - value.adjusted()))
    rounded = value.quantize(Decimal(1).scaleb(-places), ROUND_HALF_EVEN)
    return f"{abs(rounded):,.{places}f}" if rounded >= 0 else f"{_MINUS}{abs(rounded):,.{places}f}"


def money(value: Decimal | None, currency: str | None) -> str:
    """`USD 1,234.56`; unknown where the amount or its currency is."""
    if value is None or currency is None:
        return UNKNOWN
    text = amount(value)
    sign = _MINUS if text.startswith(_MINUS) else ""
    return f"{sign}{currency}{_SPACE}{text.removeprefix(_MINUS)}"


def exact(value: Decimal | None) -> str:
    """Money to its last digit, for totals that must be equal."""
    if value is None:
        return UNKNOWN
    text = f"{abs(value):,f}"
    if "." in text:
        whole, _, fraction = text.partition(".")
        text = f"{whole}.{fraction.rstrip('0').ljust(2, '0')}"
    return f"{_MINUS}{text}" if value < 0 else text


def signed(value: Decimal | None) -> str:
    """A difference with its sign; no sign for none."""
    if value is None:
        return UNKNOWN
    text = amount(value)
    return f"+{text}" if value > 0 else text


def number(value: float | int | None, places: int = 1) -> str:
    if value is None:
        return UNKNOWN
    text = f"{abs(value):,.{places}f}"
    return f"{_MINUS}{text}" if value < 0 and float(text.replace(",", "")) else text


def count(value: int | None) -> str:
    return number(value, 0)


def hours(value: float | None) -> str:
    return UNKNOWN if value is None else f"{number(value)}{_SPACE}GPU-hours"


def percent(share: float | Decimal | None) -> str:
    """A share of 1 as a percentage; never rounded to 0 or 100 when it is neither."""
    if share is None:
        return NOT_APPLICABLE
    value = float(share) * 100
    if 0 < value < 0.5:
        return f"<{_SPACE}1{_SPACE}%"
    if 99.5 <= value < 100:
        return f"{int(value * 10) / 10}{_SPACE}%"
    text = f"{abs(value):,.0f}{_SPACE}%"
    return f"{_MINUS}{text}" if round(value) < 0 else text


def share(part: Decimal | float | None, whole: Decimal | float | None) -> float | None:
    """part / whole; None where either is unknown or the whole is not positive."""
    if part is None or whole is None or whole <= 0:
        return None
    return float(part) / float(whole)


def volume(size: float | None) -> str:
    """Bytes in decimal units."""
    if size is None:
        return UNKNOWN
    value, unit = abs(size), "B"
    for larger in ("kB", "MB", "GB", "TB", "PB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{value:,.0f}{_SPACE}{unit}" if unit == "B" else f"{value:,.1f}{_SPACE}{unit}"


def duration(seconds: float | None) -> str:
    if seconds is None:
        return UNKNOWN
    if seconds < 120:
        return f"{seconds:.0f}{_SPACE}seconds"
    if seconds < 7200:
        return f"{seconds / 60:.0f}{_SPACE}minutes"
    return f"{seconds / 3600:.1f}{_SPACE}hours"


def day(value: date) -> str:
    return f"{value:%a} {value.day} {value:%b}"


def moment(value: datetime | None) -> str:
    """`16 Nov 2026, 09:04 UTC`."""
    return UNKNOWN if value is None else f"{value.day} {value:%b %Y, %H:%M} UTC"


def plural(number_of: int, one: str, many: str | None = None) -> str:
    return f"{number_of:,}{_SPACE}{one if number_of == 1 else many or one + 's'}"
