"""A limit that rests for a while because a job said so: `raise Defer(30, limit="smtp")`.

Without it a 429 would be met by every job that is next, or somebody would have to remember to open the limit again. A
hold is a job: stored with the deferral it comes from, it shuts the limit, comes back when the time is over by the
storage's clock, and opens it.
"""

from __future__ import annotations

from msgspec import json

from treadle.judge import HOLD, Held
from treadle.model import Outcome, Record, State
from treadle.operate.limits import Limits
from treadle.runner import OwnTask


class Holds:
    """Runs holds. A newer one of a limit takes the place of the one before."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.task = OwnTask(HOLD, self.run)

    async def run(self, record: Record, now: float) -> Outcome:
        """Shut, or open: as the storage's moment `now` says. Either may be repeated."""
        held = json.decode(record.job.payload, type=Held)
        left = record.created_at + held.seconds - now
        await self._limits.shut(held.limit, "held", left > 0)
        if left > 0:
            return Outcome(id=record.job.id, version=record.version, state=State.READY, delay=left)
        return Outcome(id=record.job.id, version=record.version, state=State.SUCCEEDED, result="null")
