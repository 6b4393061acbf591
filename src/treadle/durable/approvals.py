"""The wait for the decision of a person: `current().approve`.

Its row is a child of the job, so it ends with the job. The row decides: the end of its time and its withdrawal are
outcomes of the row, which a decision that came first refuses.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw

from treadle.core import defaults, ids
from treadle.core.errors import BadOption, TooLarge
from treadle.core.model import EXPIRED, SUPERSEDED, Outcome, Record, State
from treadle.durable.backend import EARLY
from treadle.durable.checkpoints import WAIT, Checkpoint, StepRequest
from treadle.durable.children import is_ended
from treadle.durable.fingerprints import checksum_of
from treadle.durable.pending import Pending
from treadle.durable.step_taker import StepTaker
from treadle.policy.retry import seconds, until
from treadle.serialization.call_codec import Unstorable, encode_any
from treadle.workflow.approvals import (
    MOST_SHOWN,
    Approval,
    Decided,
    RequestHeader,
    check_by,
    decision_of,
    expired,
    first_request_id,
    next_request_id,
    request_row,
)

APPROVE: Final = "approve:"

_read = msgspec.json.Decoder(Decided).decode


class Question:
    """The content of a request: the persons that may decide it, and the data that they see, as JSON."""

    def __init__(self, name: str, by: str, show: object) -> None:
        self.name, self.by = name, check_by(by)
        try:
            self.shown = encode_any(show)
        except Unstorable as error:
            raise BadOption("show", str(error)) from None
        if (size := len(self.shown.encode())) > MOST_SHOWN:
            raise TooLarge(f"show= of the request {name!r}", size, MOST_SHOWN)

    @property
    def checksum(self) -> Any:
        """A later run must ask the same: the decision is about what was shown."""
        return checksum_of((ids.digest(self.by, self.shown),), {})


class ApprovalWait:
    """The wait for a decision. Its entry has the decision, or says that the time was over; before, the id of the row
    and the end of the time.

    A wait that was dropped without a withdrawal leaves its row open. The next wait of that name takes the row, if it
    asks the same.
    """

    kind = WAIT

    def __init__(
        self, run: StepTaker, request: StepRequest, question: Question, ends: float | timedelta | datetime | None
    ) -> None:
        self._run, self.request, self._question = run, request, question
        self._moment = ends if isinstance(ends, datetime) else None
        self._length = None if ends is None or isinstance(ends, datetime) else seconds(ends, "until")
        if self._moment is not None:
            until(self._moment, "until", 0.0)

    async def look(self) -> Pending | None:
        """See `Wait`."""
        run, request = self._run, self.request
        entry = run.checkpoints.entries.get(request.key)
        if is_ended(entry):
            return None
        ends = self._ends(entry)
        id, row = await self._row(entry, ends)
        if row is not None and not row.state.final and ends is not None and ends - run.moment() <= EARLY:
            row = await self._ended(row, expired(row))
        if row is not None and (decision := decision_of(row)) is not None:
            value = Raw(msgspec.json.encode(decision))
            run.keep_or_fail(request, lambda: request.entry_of(child=id, value=value))
            return None
        if row is not None and row.state.final:
            run.checkpoints.keep(request, request.entry_of(child=id, gave_up=True, life=run.checkpoints.round))
            return None
        if entry is None or entry.child != id or entry.until is UNSET:
            begun = request.entry_of(child=id, until=UNSET if ends is None else ends, life=run.checkpoints.round)
            if begun != entry:
                run.checkpoints.keep(request, begun)
        if row is not None:
            return Pending((id,), until=ends)
        record, question = run.run.record, self._question
        header = RequestHeader(record.id, question.name, record.job.task, question.by, ends)
        moments = [instant for instant in (ends, record.deadline_at) if instant is not None]
        time_left = max(EARLY, min(moments) - run.moment()) if moments else None
        return Pending((id,), (request_row(id, record, header, question.shown, time_left),), ends)

    def _ends(self, entry: Checkpoint | None) -> float | None:
        """The end of the time, by the storage's clock."""
        run = self._run
        if entry is not None and isinstance(entry.until, float):
            return entry.until
        if self._moment is not None:
            return min(self._moment.timestamp(), run.moment() + defaults.MAX_DELAY)
        return None if self._length is None else run.latest_moment() + self._length

    async def _row(self, entry: Checkpoint | None, ends: float | None) -> tuple[str, Record | None]:
        """The row of this wait. One that was cancelled is followed by another: the job asks again."""
        run = self._run
        id = self._left_open() if entry is None or not entry.child else entry.child
        if not id:
            job, life = run.run.record.id, run.run.record.reopenings
            id = first_request_id(job, run.round.number, self.request.key, life)
        while True:
            [row] = await run.backend.get([id])
            if row is None or not row.state.final or decision_of(row) is not None:
                return id, row
            if row.reason == EXPIRED and ends is not None and ends - run.latest_moment() <= EARLY:
                return id, row
            id = next_request_id(id)

    def _left_open(self) -> str:
        """The row of an earlier wait that asked the same and was dropped; "": there is none."""
        name = self.request.key.partition("#")[0]
        for number in range(self.request.number - 1, 0, -1):
            entry = self._run.checkpoints.entries.get(name if number == 1 else f"{name}#{number}")
            if entry is not None and entry.child:
                is_open = not is_ended(entry) and entry.args == self.request.args
                return entry.child if is_open else ""
        return ""

    async def _ended(self, row: Record, outcome: Outcome) -> Record | None:
        """The row after this outcome, or after the decision that came before it."""
        await self._run.backend.settle([outcome])
        [row_then] = await self._run.backend.get([row.id])
        return row_then

    def value(self) -> Approval:
        """See `Wait`."""
        run, request = self._run, self.request
        entry = run.checkpoints.entries[request.key]
        if entry.gave_up:
            if entry.life is not UNSET:
                run.checkpoints.timed_out(request)
            job = run.run.record.job
            raise run.timed_out(request, f"{job.task} {job.id}: nobody has decided {self._question.name!r} in time")
        result = run.recorded(request).result
        assert result is not None
        return _read(result).shown()

    async def conclude(self) -> None:
        """Let the storage prune the row of the decision before this one: a job that lives for months keeps one."""
        before = ""
        for key, entry in self._run.checkpoints.entries.items():
            if key == self.request.key:
                break
            if key.startswith(APPROVE) and entry.child and entry.has_value and not entry.taken_over:
                before = entry.child
        [row] = await self._run.backend.get([before]) if before else [None]
        if row is not None and decision_of(row) is not None:
            released = Outcome(id=row.id, version=row.version, state=State.SUCCEEDED, keep=0.0)
            await self._run.backend.settle([released])

    async def withdraw(self) -> bool:
        """Withdraw the request, which is about to lose a race. False: it was decided before."""
        entry = self._run.checkpoints.entries.get(self.request.key)
        [row] = await self._run.backend.get([entry.child]) if entry is not None and entry.child else [None]
        if row is None or row.state.final:
            return row is None or decision_of(row) is None
        error = f"job {self._run.run.record.id} waits for it no longer"
        withdrawn = Outcome(id=row.id, version=row.version, state=State.CANCELLED, reason=SUPERSEDED, error=error)
        row = await self._ended(row, withdrawn)
        return row is None or decision_of(row) is None

    def lose(self) -> None:
        """The row ends with the job, or by its withdrawal."""

    async def drop(self) -> None:
        """See `Wait`."""
        await self.withdraw()
