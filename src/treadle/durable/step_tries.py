"""The tries of a step that has limits: each is a job of its own, which obeys them, and runs that step alone.

The job runs the function over the history of this one (`parts.py`), and its result is the entry of the step.
This job waits for it without a slot, and copies the entry. The id of the job is in the entry until then.
"""

from __future__ import annotations

from msgspec import UNSET
from msgspec.structs import replace

from treadle.core.errors import UNREADABLE, BadStep
from treadle.core.model import LOST, Record, State
from treadle.durable.checkpoints import CALL, Checkpoint, read_entry
from treadle.durable.children import child_id, error_of_row
from treadle.durable.failures import Failure, failure_of
from treadle.durable.mailbox import publish_all_of
from treadle.durable.pending import Pending
from treadle.durable.step_taker import StepTaker
from treadle.durable.tries import StepCall, tries_of
from treadle.policy import judge
from treadle.policy.parts import step_job


class StepTry:
    """The wait for one try of a step."""

    kind = CALL

    def __init__(self, run: StepTaker, call: StepCall) -> None:
        self._run, self.request, self._call = run, call.request, call
        self._is_over = False
        self._failure: Failure | None = None  # what the function of this run is to raise

    async def look(self) -> Pending | None:
        """See `Wait`. The outcome of the try is kept once: then the entry is that of the next one."""
        if self._is_over:
            return None
        run, key, life = self._run, self.request.key, self._run.run.record.reopenings
        entry = run.checkpoints.entries.get(key)
        tries = tries_of(entry)
        if entry is not None and entry.is_failed_attempt:
            assert isinstance(entry.failure, Failure)
            self._failure = entry.failure  # an earlier run of this attempt has raised it, and was suspended
            return None
        row, id = None, "" if entry is None else entry.child
        due = child_id(run.run.record.id, run.round.number, key, life, tries)
        if id:
            [row] = await run.backend.get([id])
            if id != due and (row is None or (row.state.final and row.state is not State.SUCCEEDED)):
                row, id = None, ""  # the function has cut it off, or it ended with this job, which was reopened since
        if row is not None and row.state.final:
            self._keep(row, tries)
            return None
        if row is not None:
            return Pending((id,))
        id, job = id or due, run.run.record.job
        kept = await run.backend.kept_limits(job, run.limits_around)
        if (queue := f"queue:{job.queue}") in kept:
            why = f"each job keeps its slot of the limit {queue!r} until it has ended, and a try of this step needs one"
            raise BadStep(key, why)
        if entry is None or entry.child != id:
            run.checkpoints.keep(self.request, self._open(tries, id, life))
        limits = {**dict(job.limits), **dict(self._call.options.limits)}
        free = tuple([(name, cost) for name, cost in limits.items() if name not in kept])
        new = step_job(job, id, key, self.request.branch.outer, free)
        return Pending((id,), (new,))

    def _open(self, tries: int, id: str = "", life: int = 0) -> Checkpoint:
        """The entry of a step whose next try is due. It has an instant, as between any two tries."""
        return self.request.entry_of(tries=tries, until=0.0, child=id, life=life)

    def _keep(self, row: Record, tries: int) -> None:
        run, request = self._run, self.request
        self._is_over = True
        publish_all_of(run, row)
        if row.state is State.FAILED and row.reason == LOST:  # it must not be made again, and neither must the job
            run.end_with(judge.ended(run.run.record, LOST, row.error or ""))
        try:
            entry = None if row.result is None else read_entry(row.result)
        except UNREADABLE as error:
            raise BadStep(request.key, f"the result of job {row.id} cannot be read: {error}") from None
        if entry is not None and entry.failure is UNSET:
            run.keep_or_fail(request, lambda: replace(entry, after=request.after, args=request.args))
            return
        failure = None if entry is None else entry.failure
        if row.state is not State.SUCCEEDED:
            failure = failure_of(request.key, error_of_row(row))[0]
        elif entry is not None and isinstance(failure, Failure) and UNSET is failure.round is entry.tries:
            # Its value cannot be stored, which no further try would change.
            run.checkpoints.keep(request, request.entry_of(failure=failure), is_last=True)
            return
        if isinstance(failure, Failure):
            failure = replace(failure, round=run.checkpoints.round)
        if entry is not None and isinstance(failure, Failure) and entry.tries is not UNSET:
            tried = request.entry_of(failure=failure, tries=entry.tries, until=entry.until)
            run.checkpoints.keep(request, tried)
            return
        opened = self._open(tries + 1, life=run.run.record.reopenings)
        if isinstance(failure, Failure):
            opened, self._failure = replace(opened, failure=failure), failure
        run.checkpoints.keep(request, opened)

    def value(self) -> None:
        """Raises the error of a step without `retry`, which is stored if the function catches it."""
        if self._failure is not None:
            raise self._run.failed_with(self.request, self._failure)

    async def conclude(self) -> None:
        """Nothing is to be done when it has ended."""

    def lose(self) -> None:
        """A step takes part in no race."""

    async def drop(self) -> None:
        """The function has cut it off."""
        run, entry = self._run, self._run.checkpoints.entries.get(self.request.key)
        if entry is not None and entry.child:
            await run.backend.cancel(run.run.record, [entry.child])
            # The next attempt makes another try. The cleanup of the job finds this one, as it may still run.
            run.checkpoints.keep(self.request, replace(entry, tries=tries_of(entry) + 1))


def child_of(row: Record, key: str) -> str | None:
    """The job that is to make the next try of this step; None: the row has no such entry."""
    text = dict(row.checkpoints).get(key)
    try:
        return None if text is None else read_entry(text).child
    except UNREADABLE:
        return None
