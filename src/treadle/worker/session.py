"""One start of a worker: makes its parts, starts and restarts its loops, and stops them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final

from treadle.concurrency.spawn import started
from treadle.concurrency.uncut import UncutCalls, ended_or_cut
from treadle.core.errors import StorageError
from treadle.policy import guilt, judge
from treadle.policy.throttle import AIMD
from treadle.storage import hand_offs
from treadle.worker import job_log
from treadle.worker.claim_builder import ClaimBuilder
from treadle.worker.claims_by_id import ClaimsById
from treadle.worker.dispatcher import Dispatcher, dispatchers_for
from treadle.worker.executor import Executor
from treadle.worker.handoff import HandOff
from treadle.worker.job_events import tell
from treadle.worker.parts import Opened, WorkerParts
from treadle.worker.settler import Settler
from treadle.worker.side_loops import Throttler, side_loops
from treadle.worker.trials import Trials

log = logging.getLogger("treadle")

HEALTHY = 60.0  # s without an error, after which a loop's failures are forgotten
EXIT = 2.0  # s from the release of jobs whose threads still run, in a process that exits, until they are queued
HANGING = 5  # looks of a stop after which a worker that holds no job no longer waits for an answer of its storage
LOOK = 1.0  # s between two checks of a stop; it ends after two if the storage is away and nothing is left to settle
HURRY: Final = 1.0  # s for each step of a stop without grace

LastCall = Callable[[], Coroutine[Any, Any, object]]


class WorkerSession:
    """The loops of a worker, from one start to its stop.

    The jobs that its dispatchers claim go to the executor; the outcomes of these go back to storage with the next
    request, whose answers the settler handles. `ClaimsById` claims inline jobs, and `Trials` lets suspects run alone.
    """

    def __init__(self, parts: WorkerParts, opened: Opened) -> None:
        self.parts, self.app, self.config, self.state = parts, parts.app, parts.config, parts.state
        self.loop, self.outage = parts.state.loop, parts.outage
        self.loops: list[asyncio.Task[None]] = []  # a stop waits for them
        self.side_loops: list[asyncio.Task[None]] = []
        settler, self.trials = Settler(parts), Trials(parts, opened.census, opened.offer)
        self.executor = executor = Executor(parts, settler, self.trials)
        self.by_id = ClaimsById(parts, executor, self.trials, self.loops)
        wait = min(self.config.poll, self.config.lease / 2)
        self.handoff = self.trials.handoff = HandOff(self.state, executor.start_all, hand_offs(parts.storage), wait)
        build = ClaimBuilder(parts, self.handoff)
        others = [
            HandOff(self.state, executor.start_all) for _ in range(dispatchers_for(self.config, parts.storage) - 1)
        ]
        self.dispatchers = [
            Dispatcher(number, parts, build, handoff, executor, settler, self.trials)
            for number, handoff in enumerate((self.handoff, *others))
        ]
        self.hurry = asyncio.Event()  # a second signal: no grace
        self._grace_ends = float("inf")  # the loop's time when running jobs are cancelled
        self._stop_logging: Callable[[], None] = lambda: None

    def start(self) -> None:
        """Start all loops; each is restarted when it fails."""
        self.trials.open()
        throttle = self.config.throttle
        self._stop_logging = job_log.follow(self.app.emitter, self.config.name)
        if self.parts.run_logs is not None:
            self.parts.run_logs.capture.attach()
        self.state.claiming = bool(self.parts.queues)
        if throttle is not None:
            self.state.pause = Throttler.UNASKED
        if isinstance(throttle, AIMD):
            throttle.attach(self.app.emitter)
        self.loops += [asyncio.Task(self.supervise("dispatcher", dispatcher.run)) for dispatcher in self.dispatchers]
        self.side_loops = [asyncio.Task(self.supervise(name, loop)) for name, loop in side_loops(self.parts).items()]

    async def supervise(self, name: str, loop: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a loop, and restart it after an error with growing pauses, which `HEALTHY` s without an error reset."""
        failures, retry = 0, self.config.recovery
        while True:
            started_at = self.loop.time()
            # Not every loop reports an answer of the storage: one that has run for this long had an answer.
            healthy = self.loop.call_later(HEALTHY, self.outage.answered, name) if failures else None
            try:
                return await loop()
            except Exception as error:
                failures = 1 if self.loop.time() - started_at > HEALTHY else failures + 1
                if isinstance(error, StorageError):
                    await self.outage.failed(name, error)
                else:
                    log.exception("a loop of worker %s failed; restarting it", self.config.name)
                    tell(self.app.emitter, self.config.name, "worker.error", error)
                    await asyncio.sleep(retry.delay(failures, self.app.random()))
            finally:
                if healthy is not None:
                    healthy.cancel()

    def cancel_runs(self) -> None:
        for run in list(self.state.running.values()):
            run.stop("stop")

    def claim_no_more(self) -> None:
        """Claim and start nothing more, and request the running functions to stop."""
        self.state.stop()
        self.state.heartbeat_now.set()  # it notes the stop in the running jobs
        for run in list(self.state.running.values()):
            if self.parts.batches.waits(run.job_run) or self.trials.waits(run):
                run.stop("stop")  # its call has not begun, so another worker may run it
            else:
                run.request_stop()

    async def stop(self, grace: float, exits: bool = False) -> None:
        """Wait for the running jobs, release those that do not end, and end the loops. Call `claim_no_more` first.

        exits  the process exits right after
        """
        state, parts, hangs = self.state, self.parts, False
        self.outage.stop(self.loop.time() + grace + self.config.lease)
        try:
            hangs = await self._let_end(grace)
        finally:  # also if this is cancelled: a loop left behind would renew leases for ever
            logs = () if parts.run_logs is None else parts.run_logs.close()
            ending = (*self.loops, *self.side_loops, *state.apart, *logs)
            for task in ending:
                task.cancel()
            self.handoff.close()
            self.trials.close()
            self._stop_logging()
            if isinstance(self.config.throttle, AIMD):
                self.config.throttle.detach(self.app.emitter)
            self.executor.timeouts.close()
            await asyncio.gather(*ending, return_exceptions=True)
        if state.running:
            names = ", ".join(sorted({run.record.job.task for run in state.running.values()}))
            text = "worker %s stops while %d jobs are still running (%s); they are queued again, uncounted, when %s"
            when = "this process is gone" if exits else "their leases have expired"
            log.warning(text, state.name, len(state.running), names, when)
        parts.heartbeat.gone = True
        last: list[LastCall] = [parts.election.leave]
        if parts.metrics is not None and self.config.metrics:
            last.append(partial(parts.metrics.store, parts.storage))
        last.append(parts.heartbeat.once)
        try:
            if not await sign_off(parts.heartbeat.calls, last, self.hurry, hangs):
                log.info("worker %s could not sign off; it stays listed until its lease expires", state.name)
        finally:
            if parts.metrics is not None:
                parts.metrics.end()
        await parts.lost.settled()

    async def leave(self) -> None:
        """Release the jobs that still run in threads, to be queued once this process is gone: its last act."""
        released = [
            guilt.without_kind(run.record, judge.released(run.record, EXIT, run.job_run.carried))
            for run in self.state.running.values()
        ]
        if released:
            await sign_off(self.parts.heartbeat.calls, [partial(self.parts.storage.settle, released)], self.hurry)

    def shorten_grace(self, grace: float) -> None:
        """During a stop, cancel the running jobs after at most this many seconds. The stop notices it at its next
        look."""
        ends = self.loop.time() + grace
        if ends < self._grace_ends:
            self._grace_ends = ends
            self.outage.stop(ends + self.config.lease)

    async def _let_end(self, grace: float) -> bool:
        """Wait `grace` seconds for the running jobs; then cancel them, and wait until they are released. Returns
        whether the storage does not answer a worker that holds no job: then a loop can only repeat a lost claim, and
        it is not waited for."""
        self._grace_ends = min(self._grace_ends, self.loop.time() + grace)
        hurry, done = asyncio.Task(self.hurry.wait()), asyncio.Task(asyncio.wait(list(self.loops)))
        idle = 0  # looks in a row at which the worker held no job
        try:
            while not done.done() and not hurry.done() and (remaining := self._grace_ends - self.loop.time()) > 0:
                await asyncio.wait([done, hurry], timeout=min(remaining, LOOK), return_when=asyncio.FIRST_COMPLETED)
                idle = idle + 1 if self.state.holds_nothing else 0
                if idle > (HANGING if self.outage.away is None else 1):
                    return not done.done()
            if not done.done():
                self.cancel_runs()
                # Async functions end now. A function in a thread keeps its slot until it returns.
                await asyncio.wait([done], timeout=HURRY if self.hurry.is_set() else max(1.0, min(grace, 5.0)))
            return False
        finally:
            hurry.cancel()
            done.cancel()


async def sign_off(calls: UncutCalls, last: Sequence[LastCall], hurry: asyncio.Event, hangs: bool = False) -> bool:
    """Wait for the calls in progress, and make the last ones. Returns whether all were made.

    Once `hurry` is set, both have `HURRY` s together, and the calls in progress only half of that: one call without an
    answer must not use up the time of the others.

    hangs  the storage answers nothing, so it is as if `hurry` were set
    """
    if hangs:
        hurry = asyncio.Event()
        hurry.set()

    async def leave() -> bool:
        try:
            await calls.ended(hurry, HURRY / 2)
            for call in last:
                await call()
        except (StorageError, asyncio.CancelledError):
            return False
        return True

    leaving = started(leave())
    await ended_or_cut([leaving], hurry, HURRY)
    return leaving.result()
