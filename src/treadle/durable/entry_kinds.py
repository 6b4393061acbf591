"""The kind of a stored entry, for everything that shows or rewrites histories.

The key alone does not tell it: a step may have any name, also that of a sleep.
"""

from __future__ import annotations

from typing import Final, Literal

from msgspec import UNSET

from treadle.durable.approvals import APPROVE
from treadle.durable.checkpoints import Checkpoint
from treadle.durable.failures import CUT_OFF

Kind = Literal["step", "sleep", "timeout", "signal", "child", "patch", "lock", "approval"]

WAITS: Final[dict[str, Kind]] = {  # how the keys of waits and marks begin
    "sleep": "sleep",
    "timeout": "timeout",
    "wait": "signal",
    "receive": "signal",
    "call": "child",
    "map": "child",
    "as_completed": "child",
    "ended": "child",
    "patched": "patch",
    "lock": "lock",
    "approve": "approval",
}


def kind_of(key: str, entry: Checkpoint) -> Kind:
    """The kind of this entry. `timeout`: a time limit, `current().timeout`."""
    if entry.lock:
        return "lock"
    if entry.child:
        return "approval" if key.startswith(APPROVE) and entry.tries is UNSET else "child"
    if entry.gave_up or entry.turn is not UNSET:
        return "signal"
    if entry.has_value or entry.tries is not UNSET or entry.failure not in (UNSET, CUT_OFF):
        return "step"
    return WAITS.get(key.partition("#")[0].partition(":")[0], "step")
