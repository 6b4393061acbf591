"""A limit that rests for a while because a job said so: `raise Defer(30, limit="smtp")`.

Without it a 429 would be met by every job that is next, or somebody would have to remember to open the limit again. A
hold is a job: stored with the deferral it comes from, it shuts the limit, comes back when the time is over by the
storage's clock, and opens it.
"""

from __future__ import annotations

from msgspec import json

from treadle.admin.limits import Limits
from treadle.core.model import ABORTED, Outcome, Record, State
from treadle.errors import UNREADABLE
from treadle.execution.runner import OwnTask
from treadle.policy.judge import HOLD, Held
from treadle.policy.retry import seconds
from treadle.tasks.options import name_of


def _read(text: str) -> Held:
    """What is asked for, checked as the public call checks it."""
    held = json.decode(text, type=Held)
    name_of(held.limit, "limit")
    seconds(held.seconds, "seconds")
    return held


class LimitHolds:
    """Runs holds. A newer one of a limit takes the place of the one before."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.task = OwnTask(HOLD, self.run)

    async def run(self, record: Record, now: float) -> Outcome:
        """Shut, or open: as the storage's moment `now` says. Either may be repeated."""
        try:
            held = _read(record.job.payload)
        except UNREADABLE as error:
            text = f"this row asks for no rest of a limit that could be given: {error}"
            return Outcome(
                id=record.job.id, version=record.version, state=State.FAILED, attempt=1, reason=ABORTED, error=text
            )
        until = record.created_at + held.seconds
        left = until - now
        await self._limits.hold(held.limit, until, left > 0)
        if left > 0:
            return Outcome(id=record.job.id, version=record.version, state=State.READY, delay=left)
        return Outcome(id=record.job.id, version=record.version, state=State.SUCCEEDED, result="null")
