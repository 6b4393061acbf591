"""Pauses a limit for a time when a job asks for it: `raise Defer(30, limit="smtp")`.

A hold is a job that is stored with the deferral. Its first run pauses the limit; it becomes due again when the time is
over by the storage's clock, and then resumes the limit. No version fences a change of a limit, so a stalled run can
pause the limit after another run has resumed it. Maintenance ends such a pause: see `treadle.worker.maintenance`.
"""

from __future__ import annotations

from msgspec import json

from treadle.admin.limits import Limits
from treadle.core.errors import UNREADABLE
from treadle.core.model import ABORTED, Outcome, Record, State
from treadle.execution import SystemTask
from treadle.policy.judge import HOLD, Held
from treadle.policy.retry import seconds
from treadle.tasks.options import name_of


def _read(text: str) -> Held:
    """Decode and check the limit and the seconds of a hold."""
    held = json.decode(text, type=Held)
    name_of(held.limit, "limit")
    seconds(held.seconds, "seconds")
    return held


class LimitHolds:
    """Runs holds. A newer hold of a limit replaces the older one."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.task = SystemTask(HOLD, self.run)

    async def run(self, record: Record, now: float) -> Outcome:
        """Pause or resume the limit, depending on `now`, the storage's time. Both are idempotent."""
        try:
            held = _read(record.job.payload)
        except UNREADABLE as error:
            text = f"the payload of this row is no request to let a limit rest: {error}"
            return Outcome(
                id=record.job.id, version=record.version, state=State.FAILED, attempt=1, reason=ABORTED, error=text
            )
        until = record.created_at + held.seconds
        left = until - now
        await self._limits.hold(held.limit, until, left > 0)
        if left > 0:
            return Outcome(id=record.job.id, version=record.version, state=State.READY, delay=left)
        return Outcome(id=record.job.id, version=record.version, state=State.SUCCEEDED, result="null")
