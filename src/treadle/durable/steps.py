"""Durable code: steps that run once, sleeps and waits that free the slot, and locks that only one job gets.

A sleep or a wait ends the run with an exception (`Suspend`). The next run starts at the top, and each stored step
returns its stored value, or raises its stored error.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, NoReturn

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from treadle.concurrency.uncut import shielded
from treadle.core.errors import BadStep, ForeignRow, KeyHeld, StorageError, TooLarge
from treadle.core.model import KEPT_FROM, OURS, ROUND, Outcome, State
from treadle.durable import time_limits
from treadle.durable.backend import IN_BATCH, DurableBackend, DurableRun, Suspend
from treadle.durable.children import cancel_all, open_children, read
from treadle.durable.mailbox import end_signals
from treadle.durable.parking import Parking
from treadle.durable.patches import Patches
from treadle.durable.pending import Pending, first_of
from treadle.durable.races import parts_of
from treadle.durable.run_locks import RunLocks
from treadle.durable.step_taker import StepTaker
from treadle.durable.step_tries import StepTry
from treadle.durable.streams import RunStreams, StreamWriter
from treadle.durable.tries import StepCall
from treadle.durable.waits import Wait, Waiting
from treadle.policy.cleanups import with_cleanup
from treadle.policy.retry import Defer, seconds
from treadle.policy.rounds import Round, restarted
from treadle.serialization.call_codec import Codec

log = logging.getLogger("treadle")

FOREIGN_LOCK = 30.0  # s until a job asks again for a lock that a job of another queue holds


class Durable(StepTaker):
    """The durable code of one run."""

    def __init__(self, run: DurableRun, backend: DurableBackend, codec: Codec | None) -> None:
        super().__init__(run, backend, codec)
        self._parking = Parking(self)
        self._patches = Patches(self)
        self._locks = RunLocks(run.record, backend, self.moment, self.checkpoints.note, lambda: backend.save(run))

    # --- sleeping and waiting

    def waiting(self, wait: Wait) -> Waiting[Any]:
        """The wait as the function awaits it."""
        return Waiting(wait, self._unawaited.add(wait.request.key, self.over(wait)))

    def trust(self, *packages: str) -> None:
        """Code of these packages may take the first of several tasks of the run by `asyncio.wait`, and wait at locks
        and events that only tasks of the run open: what it does then does not depend on which one is the first."""
        self._parking.trusted |= {*packages}

    async def over(self, wait: Wait) -> Any:
        """The value of a wait that is over. Parks the task until then, or suspends the run."""
        request = wait.request
        self._unawaited.pop(request.key, None)
        self.stay(request.key)
        self.on_loop(request.key)
        self.checkpoints.decide_at(request)
        await self.leave_caught()
        await self.reached(request, wait.kind)
        try:
            while (pending := await self._look(wait)) is not None:
                await self._parking.park(request, wait, pending)
            return await self._value_of(wait)
        except asyncio.CancelledError as error:
            if not self.is_ending:
                self.cut_off(request, error)
                await wait.drop()
            raise
        finally:
            self.checkpoints.end(request)

    async def over_here(self, wait: Wait) -> Any:
        """`over`, on the event loop for a function in a thread, which is suspended at once."""
        await self.leave_caught()
        self.checkpoints.reach(wait.request, wait.kind)
        try:
            return await self._over_here(wait)
        finally:
            self.checkpoints.end(wait.request)

    async def _over_here(self, wait: Wait) -> Any:
        try:
            while (pending := await self._look(wait)) is not None:
                if not self.short_waits.fits(pending):
                    self.leave(self.suspended_for(pending))
                await self.short_waits.hold(pending)
            return await self._value_of(wait)
        except time_limits.TimePassed:
            await wait.drop()
            raise

    async def try_elsewhere(self, call: StepCall, here: bool = False) -> None:
        if self.undos.to_store:
            await self.undos.store(self.backend, self.checkpoints)
        wait = StepTry(self, call)
        if here:
            await self._over_here(wait)
            return
        try:
            while (pending := await self._look(wait)) is not None:
                await self._parking.park(wait.request, wait, pending)
        except asyncio.CancelledError:
            if not self.is_ending:
                await wait.drop()
            raise
        await self._value_of(wait)

    def end_with(self, outcome: Outcome) -> NoReturn:
        self._parking.suspend(outcome)
        raise Suspend

    @property
    def is_ending(self) -> bool:
        return super().is_ending or self._parking.has_ended

    async def _look(self, wait: Wait) -> Pending | None:
        await self.cut_again(wait.request)
        if not time_limits.in_time_limit():
            return await wait.look()
        await time_limits.check(self, wait.request, recorded_only=True)
        if (pending := await wait.look()) is None:
            return None
        await time_limits.check(self, wait.request)
        return time_limits.limited(pending)  # here, as the limits are those of this task

    def suspended_for(self, pending: Pending) -> Outcome:
        return super().suspended_for(first_of([pending, *self._parking.pending]))

    async def _value_of(self, wait: Wait) -> Any:
        is_new = wait.request.key in self.checkpoints.unsaved
        if is_new:
            await self.backend.save(self.run)
        if is_new or self.checkpoints.following(wait.request.key) is None:
            await wait.conclude()
        return wait.value()

    def parts_of(self, waits: Mapping[str, object]) -> dict[str, Wait]:
        """The waits that take part in a race; they are not awaited themselves. Raises BadOption."""
        parts = parts_of(waits)
        for name, part in parts.items():
            waiting: Any = waits[name]
            self._unawaited.pop(part.request.key, None)
            waiting.close()
        return parts

    def on_undo(self, function: Callable[..., Any], args: Any, kwargs: Any) -> None:
        if self.run.place is IN_BATCH:
            raise BadStep("on_undo", "a job of a batch has no undos: its function also runs for other jobs")
        if not callable(function):
            raise BadStep("on_undo", f"expected a function and its arguments, found {function!r:.60}")
        self.undos.add(function, args, kwargs, self.checkpoints.here())

    async def restart(self, args: Any, kwargs: Any) -> NoReturn:
        """End this round: the function starts over with these arguments, without the steps and children of this
        round."""
        await self.leave_caught()
        if self.locks:
            raise BadStep("restart", f"this job has the lock {next(iter(self.locks))!r}: leave its block first")
        if self.streams is not None:
            await self.streams.begin_round()
        record = self.run.record
        payload = self.backend.arguments(record, args, kwargs)
        if (size := len(payload.encode())) > (most := self.backend.sizes.payload):
            raise TooLarge(f"the arguments of a restart of job {record.job.id}", size, most)
        await cancel_all(self, self._open_children())
        self.leave(restarted(record, Round(self.round.number + 1), payload))

    def stream(self, name: str, keep: float | None = None) -> StreamWriter:
        """The writer of this stream."""
        if self.streams is None:
            self.streams = RunStreams(self)
        return self.streams.writer(name, keep)

    async def returned(self) -> None:
        """The function has returned: what it has written to streams is stored before its result."""
        if self.streams is not None and not self.is_suspended:
            await self.streams.complete()

    def patched(self, name: str) -> bool:
        """Whether this job takes the code of a change."""
        self.stay(name)
        return self._patches.has(name)

    def alone(self, what: str, here: bool = False) -> None:
        """Raise BadStep unless the function itself calls: a sleep in one of its tasks could not suspend the others."""
        self.stay(what)
        if self.run.place is IN_BATCH:
            raise BadStep(what, "a job of a batch cannot sleep; return Defer(...) as its result instead")
        if here:
            self.checkpoints.decide(self.checkpoints.here())
            return
        self.on_loop(what)
        if self.run.place is not None and asyncio.current_task() is not self.run.place:
            # Stored, because the error of the task may never be retrieved: asyncio.wait does not raise it.
            self._misused = BadStep(
                what,
                "this suspends the whole function, so await it in the function itself, not in a task of gather, "
                "wait_for or a TaskGroup",
            )
            raise self._misused
        self.checkpoints.decide(self.checkpoints.here())  # a message that was cut off is received in the next round

    # --- once-locks

    async def win(self, key: str, keep: float | timedelta) -> bool:
        """Whether this job holds the lock. Stores the lock if it is free.

        Raises Defer while a job of another queue holds it: that job does not do the work of this one, and it must not
        make this one fail.
        """
        self.checkpoints.decide(self.checkpoints.here())
        await self.leave_caught()
        try:
            return await self._locks.win(key, seconds(keep, "once.keep"))
        except (ForeignRow, KeyHeld) as error:
            raise self.kept_from(f"the once-lock {key!r}: another queue holds it", FOREIGN_LOCK) from error

    def kept_from(self, what: str, pause: float) -> Defer:
        """The job tries again after this time, as it may not take this lock. The log and `explain` name the cause."""
        job, deferral = self.run.record.job, Defer(pause)
        log.warning("%s %s is kept from %s", job.task, job.id, what)
        deferral.reason = KEPT_FROM + what
        return deferral

    async def give_back(self, key: str) -> None:
        """Release the lock, if this run got it."""
        await self._locks.give_back(key)

    async def concluded(self, outcome: Outcome) -> Outcome:
        """The outcome with the checkpoints that are not known to be stored. If the attempt failed, its locks are
        released first: after a crash in between, no job could get them until they expire."""
        self._parking.end(for_good=True)
        self._unawaited.close()
        if self.run.suspended_as is None and outcome.state is not State.SUCCEEDED:
            self._forget_failed_attempt()
        counted = outcome.attempt > self.run.record.attempt
        failed = outcome.state is State.FAILED or (counted and outcome.state is not State.SUCCEEDED)
        if self._locks.remaining(failed):
            try:
                await shielded(self._locks.conclude(failed))
            except (asyncio.CancelledError, StorageError):
                log.warning("could not release the once-locks of job %s; they will expire", outcome.id)
        if self.mailboxes.expected and outcome.state.final:
            try:
                await shielded(end_signals(self))
            except (asyncio.CancelledError, StorageError):
                log.warning("could not end the signals of job %s; they will expire", outcome.id)
        if self.streams is not None:
            try:
                await shielded(self.streams.conclude(outcome))
            except (asyncio.CancelledError, Exception) as error:
                log.warning("could not store the last chunks of job %s: %r", outcome.id, error)
        outcome = self.with_cleanup(outcome, await self._has_open_children(outcome))
        pairs = tuple(self.checkpoints.unsaved.items())
        if pairs and any(name == ROUND for name, _ in outcome.checkpoints):
            pairs = tuple([pair for pair in pairs if pair[0].startswith(OURS)])  # the steps end with their round
        return replace(outcome, checkpoints=(*outcome.checkpoints, *pairs)) if pairs else outcome

    def _forget_failed_attempt(self) -> None:
        """The attempt has ended, and the next one makes the next try of its steps with limits."""
        steps = self.checkpoints
        for key, entry in steps.entries.items():
            if entry.is_failed_attempt and self.is_own(key):
                steps.entries[key] = opened = replace(entry, failure=UNSET)
                steps.unsaved[key] = msgspec.json.encode(opened).decode()

    def with_cleanup(self, outcome: Outcome, has_children: bool = True) -> Outcome:
        """The outcome with the cleanup job, if the job may need it and this run has not stored it. The undos end with
        their round. `has_children`: children may be open of which the history does not say that they have ended."""
        if self.undos.is_stored or any(name == ROUND for name, _ in outcome.checkpoints):
            return outcome
        has_undo, has_children = bool(self.undos.registered), has_children and bool(self._open_children())
        return with_cleanup(self.run.record, outcome, bool(self.checkpoints.entries), has_undo, has_children)

    def _open_children(self) -> list[str]:
        record = self.run.record
        return open_children(record.job.id, self.round.number, record.reopenings, self.checkpoints.entries)

    async def _has_open_children(self, outcome: Outcome) -> bool:
        """Whether the function ends before some of its children. True if the storage does not answer."""
        if not (outcome.state.final or outcome.function_done) or not (ids := self._open_children()):
            return False
        try:
            rows = await shielded(read(self, ids))
        except (asyncio.CancelledError, StorageError):
            return True
        return any(row is not None and not row.state.final for row in rows)

    async def lost(self) -> None:
        """The job no longer belongs to this run: stop repeating its calls."""
        self._parking.end(for_good=True)
        self._locks.lost()
        if self.streams is not None:
            self.streams.lost()
            try:
                await self.streams.conclude_lost()
            except (asyncio.CancelledError, Exception) as error:
                log.warning("could not end the streams of job %s: %r", self.job, error)
