"""Runs suspects alone: jobs that may have killed their worker, see `policy/guilt.py`.

A suspect keeps its lease while it waits. A worker inside a program runs it when nothing else runs there; the workers
of a fleet offer it to a process that runs nothing else. Before its function is called, the row says that it is alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from treadle.core.errors import StorageError
from treadle.core.model import LeaseRenewal, Outcome, Pairs, Record, State
from treadle.execution import SystemTask
from treadle.policy import guilt, judge
from treadle.worker.census import Census, Waiting
from treadle.worker.handoff import HandOff
from treadle.worker.parts import Suspect, WorkerParts
from treadle.worker.running_job import RunningJob

__all__ = ["Offer", "Suspect", "Trials"]

log = logging.getLogger("treadle")

LABEL: Final = "trials"  # the name of these calls in StorageOutage
MOST: Final = 1_000  # suspects that a worker holds for another process
LONGEST: Final = 3_600.0  # s for which nothing else may begin next to a suspect
WAITS: Final = 3  # times that a suspect waits to be alone; then it runs next to others
PAUSE: Final = 0.05  # s before a note is stored again because its row was locked


Offer = Callable[[Sequence[Suspect]], None]


class _Held:
    """A suspect that this worker holds for another process. `back`: it runs here after all."""

    __slots__ = ("back", "run")

    def __init__(self, run: RunningJob, back: asyncio.Future[None]) -> None:
        self.run, self.back = run, back


class _Expected:
    """A suspect of another worker that runs here."""

    __slots__ = ("begun", "over", "taken")

    def __init__(self, taken: Callable[[], None], over: asyncio.Future[bool]) -> None:
        self.taken, self.over, self.begun = taken, over, False


class Trials:
    """The suspects of one worker, from its start to its stop.

    offer    passes suspects to another process; None: they run here
    handoff  whose outstanding request may still bring a job
    on_open  called when claims may begin again
    """

    def __init__(self, parts: WorkerParts, census: Census, offer: Offer | None) -> None:
        self._state, self._storage, self._outage = parts.state, parts.storage, parts.outage
        self._lease, self._has_turns = parts.config.lease, parts.config.ordered
        self._heartbeat, self.census, self._offer = parts.heartbeat, census, offer
        self.handoff: HandOff | None = None
        self.on_open: Callable[[], None] = lambda: None
        self.loop, self.claims = parts.state.loop, 0
        self._waiting: dict[RunningJob, Waiting] = {}  # suspects that wait to run here, or run here alone
        self._held: dict[tuple[str, int], _Held] = {}
        self._new: list[Suspect] = []  # suspects that are not offered yet
        self._ended: RunningJob | None = None  # its outcome is not stored yet
        self._sharing: dict[RunningJob, asyncio.Task[None]] = {}  # other jobs may soon begin next to it
        self._expected: dict[tuple[str, int], _Expected] = {}
        self._explained = deque[str](maxlen=guilt.EXPLAINED)  # workers whose end a suspect has explained

    def open(self) -> None:
        self.census.join(self)

    def close(self) -> None:
        for task in self._sharing.values():
            task.cancel()
        self.census.leave(self)

    # --- what the census asks

    def runs(self, but: str) -> int:
        running, arriving = self._state.running, self.handoff is not None and self.handoff.outstanding
        return len(running) - (but in running) - len(self._held) + arriving

    def changed(self) -> None:
        self._state.demand.notify()
        if not self.census.closed:
            self.on_open()

    def look(self) -> bool:
        """Whether the worker may claim nothing now. A dispatcher calls this after each request and each run."""
        if not self.census.closed:
            return False
        ended = self._ended
        if ended is not None and ended not in self._state.unconfirmed.runs():
            self._ended = None
            self._over(ended)
        self.census.look()
        return self.census.closed

    # --- the life of a suspect

    @staticmethod
    def is_due(run: RunningJob) -> bool:
        """Whether this job runs alone. A system task is code of Treadle, and never a suspect."""
        return not isinstance(run.task, SystemTask) and guilt.is_suspect(run.record)

    def waits(self, run: RunningJob) -> bool:
        """Whether this suspect waits, so that its function was not called."""
        waiting = self._waiting.get(run)
        return _key(run) in self._held or (waiting is not None and not self.census.is_alone(waiting))

    async def turn(self, run: RunningJob) -> Outcome | None:
        """Wait until this suspect may run alone, and note that it does. Returns the outcome of a suspect that waits too
        long, or that another one clears meanwhile, and None for one that may run. Raises CancelledError if another
        process has taken it, if its lease is lost, or if the worker stops."""
        noted = guilt.guilt_of(run.record)
        if noted.kind is not None or noted.shares:  # an earlier run left it, which another program settled
            await self._store(run, guilt.plain_note(run.record))
        self.explain(guilt.culprit_of(run.record))
        if self._state.stopping:  # the stop has ended the waits of others, and knows nothing of this one
            return self._put_off(run, 0.0, guilt.plain_note(run.record))
        if self._may_offer(run) and not self._is_cleared(run):
            if len(self._held) >= MOST:
                return self._put_off(run, self._lease, guilt.plain_note(run.record))
            await self._hold(run)
        outcome = self._cleared(run) if self._is_cleared(run) else await self._wait(run)
        if outcome is None and run in self._waiting:
            # The note has the lost runs so far, because a job that kills each worker has no outcome that could carry
            # them.
            await self._store(run, (*guilt.trial_note(run.record), *run.job_run.carried))
            log.info("%s %s runs alone: its last worker was lost", run.record.job.task, run.record.job.id)
            expected = self._expected.get(_key(run))
            if expected is not None:
                expected.begun = True
                expected.taken()
            else:
                run.job_run.on_wait = partial(self._share_soon, run)
                self.loop.call_later(LONGEST, self._share, run)
        return outcome

    def end(self, run: RunningJob, outcome: Outcome | None) -> None:
        """End a run, in whose row a note may stand. While a note says that it is alone, nothing else may begin: its
        lease would count if it were lost now."""
        if run.noted and outcome is not None:
            outcome = guilt.without_kind(run.record, outcome)
        self._state.end(run, outcome)
        if run not in self._waiting:
            return
        if outcome is None:
            self._over(run)
        else:
            self._ended = run
            self._state.wake.set()

    def _share_soon(self, run: RunningJob) -> None:
        """The suspect is going to wait for another job, which may need this process. May be called in any thread."""
        with suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(self._share, run)

    def _share(self, run: RunningJob) -> None:
        if run in self._waiting and run is not self._ended and run not in self._sharing:
            self._sharing[run] = asyncio.create_task(self._begin_sharing(run))

    async def _begin_sharing(self, run: RunningJob) -> None:
        """Let other jobs begin next to a suspect, once its row no longer says that it is alone."""
        try:
            await self._store(run, guilt.sharing_note(run.record))
            if run in self._waiting and run is not self._ended:
                self._over(run)
        finally:
            del self._sharing[run]

    def _over(self, run: RunningJob) -> None:
        self.census.over(self._waiting.pop(run))
        self._end_expected(run.record)

    def _end_expected(self, record: Record) -> None:
        expected = self._expected.pop((record.job.id, record.version), None)
        if expected is not None and not expected.over.done():
            expected.over.set_result(expected.begun)

    # --- in this process

    async def _wait(self, run: RunningJob) -> Outcome | None:
        """Wait until nothing else runs for this app in this process. Waits for the length of a lease at most, because a
        job that never ends must not hold up the others, and a suspect that is never alone must not wait for ever."""
        waits = guilt.guilt_of(run.record).waits
        if waits >= WAITS and not self.is_expected(run.record):
            await self._store(run, guilt.sharing_note(run.record))
            log.warning("%s %s runs next to other jobs: they left it no time alone", run.task.name, run.record.job.id)
            return None
        granted = self.loop.create_future()

        def grant() -> None:
            if not granted.done():
                granted.set_result(None)

        waiting = self._waiting[run] = Waiting(self, run.record.job.id, grant)
        self.census.wait(waiting)
        behind = self.census.tries
        try:
            async with asyncio.timeout(self._lease):
                await asyncio.shield(granted)
            if self.census.is_alone(waiting):
                return None
            self._over(run)
            return self._cleared(run)
        except TimeoutError:
            if self.census.is_alone(waiting):  # `grant` is about to be called
                return None
            waited = not behind and not self.census.tries  # too long, unless another suspect was ahead of it
        except asyncio.CancelledError:
            self._over(run)
            raise
        self._over(run)
        note = guilt.plain_note(run.record, waited)
        return self._put_off(run, self._lease * 2**waits if waited else 0.0, note)

    def _put_off(self, run: RunningJob, delay: float, note: Pairs) -> Outcome:
        """Release a suspect uncounted, to a worker that runs less or for later."""
        self._state.troubles[run.job_run] = None
        return judge.released(run.record, delay, (*run.job_run.carried, *note))

    async def _store(self, run: RunningJob, note: Pairs) -> None:
        """Store a note, and return when it is stored. Raises CancelledError if the lease is lost."""
        run.noted, run.record = True, guilt.with_note(run.record, note)
        renewal = LeaseRenewal(run.record.job.id, run.record.version, checkpoints=note)
        while True:
            try:
                answer = await self._heartbeat.send([renewal], self._heartbeat.lease_of(run))
            except StorageError as error:
                await self._outage.failed(LABEL, error)
                continue
            self._outage.answered(LABEL)
            if renewal.id in answer.lost:
                self._heartbeat.lose(run)
                raise asyncio.CancelledError
            if renewal.id not in answer.unsaved:
                return
            await asyncio.sleep(PAUSE)

    # --- suspects that another suspect clears

    def explain(self, workers: Collection[str]) -> None:
        """Note workers whose end another suspect explains: it has killed a worker while it ran alone, and it ran on
        these workers, too. The suspects that ran next to it need not wait any more; they are released, because that
        suspect may be running alone now."""
        new = [worker for worker in workers if worker not in self._explained]
        if not new:
            return
        self._explained += new
        for held in self._held.values():
            if self._is_cleared(held.run) and not held.back.done():
                held.back.set_result(None)
        for run, waiting in self._waiting.items():
            if self._is_cleared(run) and not self.census.is_alone(waiting):
                waiting.granted()

    def _is_cleared(self, run: RunningJob) -> bool:
        return guilt.is_cleared_by(run.record, self._explained) and not self.is_expected(run.record)

    def _cleared(self, run: RunningJob) -> Outcome:
        log.info("%s %s is no suspect any more: another job has killed its worker", run.task.name, run.record.job.id)
        return self._put_off(run, 0.0, guilt.cleared_note(run.record))

    # --- in another process

    def _may_offer(self, run: RunningJob) -> bool:
        """Whether another process may run this suspect. It may not if the job needs the order or the resources of this
        worker."""
        return self._offer is not None and not self._has_turns and run.uses is None

    async def _hold(self, run: RunningJob) -> None:
        """Keep the lease, without a slot, until another process runs the job. Returns if none does."""
        key = _key(run)
        held = self._held[key] = _Held(run, self.loop.create_future())
        if not self._new:
            self.loop.call_soon(self._offer_new)
        times = run.job_run.sent, run.job_run.came
        self._new.append(Suspect(*key, run.record.job.task, *times, guilt.culprit_of(run.record)))
        slots = 0 if run.in_batch else 1
        self._state.slots.release(slots)
        self._state.wake.set()
        try:
            await held.back
        finally:
            self._held.pop(key, None)
            self._state.slots.take(slots)

    def _offer_new(self) -> None:
        new, self._new = self._new, []
        new = [suspect for suspect in new if (suspect.id, suspect.version) in self._held]
        if new and self._offer is not None:
            self._offer(new)

    def hand_over(self, id: str, version: int) -> bool:
        """Leave this suspect to another process, which renews its lease from now on. Returns False if it is not held
        any more. This worker must give it up first: if both held it, this one would release it while it runs there."""
        held = self._held.get((id, version))
        if held is None or held.run.cancelled or held.back.done():
            return False
        del self._held[id, version], self._state.running[id]
        held.run.stop("lost")
        return True

    def failed(self) -> None:
        """No other process runs suspects: they run here from now on."""
        self._offer = None
        for held in self._held.values():
            if not held.back.done():
                held.back.set_result(None)

    # --- for the worker of another process

    async def held(self, suspect: Suspect) -> Record | None:
        """The row of a suspect that another worker holds; None: it holds it no longer."""
        while True:
            try:
                [row] = await self._storage.get([suspect.id])
            except StorageError as error:
                await self._outage.failed(LABEL, error)
                continue
            self._outage.answered(LABEL)
            is_held = row is not None and (row.version, row.state) == (suspect.version, State.RUNNING)
            return row if is_held else None

    def expect(self, record: Record, taken: Callable[[], None]) -> asyncio.Future[bool]:
        """The executor is going to start this suspect of another worker. Calls `taken` when it runs alone. The future
        ends when its outcome is stored; with False if it did not run."""
        expected = _Expected(taken, self.loop.create_future())
        self._expected[record.job.id, record.version] = expected
        return expected.over

    def follow(self, record: Record) -> None:
        """The executor has started this suspect of another worker, or has refused to. Its future ends, however its run
        does: the other process waits for it."""
        run = self._state.running.get(record.job.id)
        if run is None or run.record is not record or run.handle is None:
            self._end_expected(record)
        else:
            run.handle.add_done_callback(lambda _: None if run in self._waiting else self._end_expected(record))

    def is_expected(self, record: Record) -> bool:
        """Whether another worker has claimed this job, and has reported the leases it lost."""
        return (record.job.id, record.version) in self._expected


def _key(run: RunningJob) -> tuple[str, int]:
    return run.record.job.id, run.record.version
