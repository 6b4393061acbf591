"""Durable code: steps that run once, sleeps and waits that free the slot, and locks that only one job gets.

A sleep or a wait ends the run with an exception (`Suspend`). The next run starts at the top, and each stored step
returns its stored value, or raises its stored error.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime, timedelta
from typing import Any, NoReturn

from msgspec.structs import replace

from treadle.concurrency.uncut import shielded
from treadle.core.errors import BadOption, BadStep, ForeignRow, KeyHeld, StepMismatch, StorageError, TooLarge
from treadle.core.model import OURS, ROUND, Outcome, State
from treadle.durable.backend import EARLY, IN_BATCH, DurableBackend, DurableRun
from treadle.durable.checkpoints import Checkpoint, StepRequest
from treadle.durable.mailbox import Mailboxes
from treadle.durable.run_locks import RunLocks
from treadle.durable.step_taker import StepTaker
from treadle.policy import judge
from treadle.policy.retry import Defer, seconds, until
from treadle.policy.rounds import Round, restarted
from treadle.serialization.call_codec import Codec

log = logging.getLogger("treadle")

FOREIGN_LOCK = 30.0  # s until a job asks again for a lock that a job of another queue holds


class Durable(StepTaker):
    """The durable code of one run."""

    def __init__(self, run: DurableRun, backend: DurableBackend, codec: Codec | None) -> None:
        super().__init__(run, backend, codec)
        self.mailboxes = Mailboxes(self)
        self._locks = RunLocks(run.record, backend, self._moment, self.checkpoints.note, lambda: backend.save(run))

    # --- sleeping and waiting

    async def sleep(self, request: StepRequest, length: float | timedelta | None, moment: datetime | None) -> None:
        now, entry = self._moment(), request.entry
        if (length is None) == (moment is None):
            raise BadOption("sleep", "give seconds or until=, not both")
        if entry is None:
            remaining = seconds(length, "sleep") if length is not None else until(moment, "sleep", now)
        elif isinstance(entry.until, float):
            remaining = 0.0 if self._came_due(request.key) else entry.until - now
            if length is not None:
                remaining = min(remaining, seconds(length, "sleep"))
        else:
            raise StepMismatch(self.run.record.job.id, request.key, request.after, "another step of that name")
        if remaining > EARLY:
            self.checkpoints.keep(request, Checkpoint(request.after, until=now + remaining))
            self._leave(judge.asleep(self.run.record, request.key, remaining, now))
        if entry is not None and isinstance(entry.until, float) and entry.until > now + EARLY:
            # The storage's clock was set back, and this time was written before: for later runs the sleep is over, too.
            self.checkpoints.keep(request, Checkpoint(entry.after, until=now))

    def restart(self, args: Any, kwargs: Any) -> NoReturn:
        """End this round: the function begins anew with these arguments, and without the steps of this round."""
        record = self.run.record
        payload = self.backend.arguments(record, args, kwargs)
        if (size := len(payload.encode())) > (most := self.backend.sizes.payload):
            raise TooLarge(f"the arguments of a restart of job {record.job.id}", size, most)
        self._leave(restarted(record, Round(self._round.number + 1), payload))

    def alone(self, what: str, here: bool = False) -> None:
        """Raise BadStep unless the function itself calls: a sleep in one of its tasks could not suspend the others."""
        self._stay(what)
        if self.run.place is IN_BATCH:
            raise BadStep(what, "a job of a batch cannot sleep; return Defer(...) as its result instead")
        if here:
            return
        self._on_loop(what)
        if self.run.place is not None and asyncio.current_task() is not self.run.place:
            # Stored, because the error of the task may never be retrieved: asyncio.wait does not raise it.
            self._misused = BadStep(
                what,
                "this suspends the whole function, so await it in the function itself, not in a task of gather, "
                "wait_for or a TaskGroup",
            )
            raise self._misused

    # --- once-locks

    async def win(self, key: str, keep: float | timedelta) -> bool:
        """Whether this job holds the lock. Stores the lock if it is free.

        Raises Defer while a job of another queue holds it: that job does not do the work of this one, and it must not
        make this one fail.
        """
        self.checkpoints.decide(self.checkpoints.here())
        try:
            return await self._locks.win(key, seconds(keep, "once.keep"))
        except (ForeignRow, KeyHeld) as error:
            job = self.run.record.job
            log.warning("%s %s waits for the once-lock %r, which another queue holds", job.task, job.id, key)
            raise Defer(FOREIGN_LOCK) from error

    async def give_back(self, key: str) -> None:
        """Release the lock, if this run got it."""
        await self._locks.give_back(key)

    async def concluded(self, outcome: Outcome) -> Outcome:
        """The outcome with the checkpoints that are not known to be stored. If the attempt failed, its locks are
        released first: after a crash in between, no job could get them until they expire."""
        counted = outcome.attempt > self.run.record.attempt
        failed = outcome.state is State.FAILED or (counted and outcome.state is not State.SUCCEEDED)
        if self._locks.remaining(failed):
            try:
                await shielded(self._locks.conclude(failed))
            except (asyncio.CancelledError, StorageError):
                log.warning("could not release the once-locks of job %s; they will expire", outcome.id)
        pairs = tuple(self.checkpoints.unsaved.items())
        if pairs and any(name == ROUND for name, _ in outcome.checkpoints):
            pairs = tuple([pair for pair in pairs if pair[0].startswith(OURS)])  # the steps end with their round
        return replace(outcome, checkpoints=(*outcome.checkpoints, *pairs)) if pairs else outcome

    def lost(self) -> None:
        """The job no longer belongs to this run: stop repeating its calls."""
        self._locks.lost()
