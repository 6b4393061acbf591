"""Ends the rests of limits (`Defer(limit=)`) whose time is over, as a part of the maintenance.

Normally the job that paused the limit resumes it. That job may be gone: an operator cancelled it, or a worker stalled
with the pause in flight until another worker had ended the rest, because no version fences a change of a limit.
"""

from __future__ import annotations

from typing import Final

from treadle.core.limit_model import Resume
from treadle.storage.contract import Storage

STEP: Final = 500  # changes in one call: bounds the time for which it blocks the storage


async def end_rests(storage: Storage) -> None:
    """End each rest that is over by the storage's clock. A rest that is prolonged meanwhile stays."""
    pauses = [pause for use in await storage.limits(use=False) for pause in use.pauses]
    ends = {pause.name: pause.until for pause in pauses if pause.why == "held" and pause.until is not None}
    if not ends:
        return
    now = (await storage.glance(1)).at
    over = [Resume(name, "held", until) for name, until in ends.items() if until <= now]
    for first in range(0, len(over), STEP):
        await storage.set_limits(over[first : first + STEP])
