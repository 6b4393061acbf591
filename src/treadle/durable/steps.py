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
from treadle.core import defaults
from treadle.core.command_lines import command
from treadle.core.errors import BadOption, BadStep, ForeignRow, KeyHeld, StepMismatch, StorageError, TooLarge
from treadle.core.model import OURS, ROUND, Outcome, Record, State
from treadle.durable.backend import EARLY, IN_BATCH, DurableBackend, DurableRun
from treadle.durable.checkpoints import Checkpoint, StepRequest, valued
from treadle.durable.patches import Patches
from treadle.durable.run_locks import RunLocks
from treadle.durable.step_codec import signature_of_kind
from treadle.durable.step_taker import StepTaker
from treadle.policy import judge
from treadle.policy.retry import Defer, seconds, until
from treadle.policy.rounds import Round, restarted
from treadle.serialization.call_codec import Codec, decode_any
from treadle.workflow.signals import SEEN_AT_ONCE, check_signal, signal_id, signal_row, usable

log = logging.getLogger("treadle")

FOREIGN_LOCK = 30.0  # s until a job asks again for a lock that a job of another queue holds


class Durable(StepTaker):
    """The durable code of one run."""

    def __init__(self, run: DurableRun, backend: DurableBackend, codec: Codec | None) -> None:
        super().__init__(run, backend, codec)
        self._waited = dict(self._round.turns)  # signals received or no longer waited for -> the last row used
        self._received: set[str] = set()
        self._patches = Patches(self)
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
        self._leave(restarted(record, Round(self._round.number + 1, self._waited), payload))

    def patched(self, name: str) -> bool:
        """Whether this job takes the code of a change."""
        self._stay(name)
        return self._patches.has(name)

    async def wait_for(self, name: str, request: StepRequest, timeout: float | timedelta | None, kind: Any) -> Any:
        entry = request.entry
        if entry is None:
            entry = await self._arrived(name, request, None if timeout is None else seconds(timeout, "timeout"))
            self.checkpoints.keep(request, entry)
            await self.backend.save(self.run)
        if isinstance(entry.turn, int):
            self._waited[name] = entry.turn
        if entry.gave_up:
            job = self.run.record.job
            within = "in time" if timeout is None else f"within {seconds(timeout, 'timeout'):g} s"
            raise TimeoutError(
                f"{job.task} {job.id} did not receive the signal {name!r} {within}; "
                f"{command('jobs', 'signal', job.id, name)} sends it to a later wait"
            )
        self._received.add(name)
        text = entry.result
        if text is None:
            raise StepMismatch(self.run.record.job.id, request.key, request.after, "another step of that name")
        return decode_any(text) if kind is Any else signature_of_kind(kind, "wait_for").decode_result(text)

    async def _arrived(self, name: str, request: StepRequest, timeout: float | None) -> Checkpoint:
        """The entry for a signal that has arrived, or for a wait that timed out. Raises Suspend to wait for it."""
        if name in self._received:
            raise BadStep(name, f"this run has already received the signal; wait for another name, such as '{name}:2'")
        row, used = self.run.record, self._waited.get(name, 0)
        turn, signal = await self._row(name, used, timeout is not None)
        if signal is None and timeout != 0:
            to_deadline = None if row.deadline_at is None else max(EARLY, row.deadline_at - self._moment())
            limits = [limit for limit in (timeout, to_deadline) if limit is not None]
            # The row of an ended job ends at its deadline: while it is open, the workflow cannot be pruned.
            new = signal_row(row, name, turn, min(limits, default=defaults.SIGNAL_ROW))
            self._leave(judge.awaiting(row, (new.id,), (new,)))
        if signal is not None and signal.state is State.SUCCEEDED:
            return valued(request, signal.result or "null", False, turn=turn)
        if signal is not None and not signal.state.final and timeout != 0:
            self._leave(judge.awaiting(row, (signal.id,)))
        return Checkpoint(request.after, gave_up=True, turn=turn if signal is not None and signal.state.final else used)

    async def _row(self, name: str, used: int, timed: bool) -> tuple[int, Record | None]:
        """The row in which this wait and the signal are joined. A wait without a timeout uses the next row when a row
        has expired."""
        row, start = self.run.record, used + 1
        while True:
            turns = range(start, start + SEEN_AT_ONCE)
            rows = await self.backend.get([signal_id(row.job.id, name, turn) for turn in turns])
            for turn, signal in zip(turns, rows, strict=True):
                if signal is not None:
                    check_signal(signal, row)
                if signal is None or usable(signal, row, timed):
                    return turn, signal
            start += SEEN_AT_ONCE

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
