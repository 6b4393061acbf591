"""Renews the leases of a worker's jobs, reports the worker to the storage, and detects lost jobs."""

from __future__ import annotations

import asyncio
import os
import platform
from collections.abc import Callable, Iterable, Sequence

from treadle.concurrency.uncut import UncutCalls
from treadle.core.model import HeartbeatResult, LeaseRenewal, Pairs, Presence
from treadle.core.ranges import LONGEST_TTL
from treadle.policy import guilt
from treadle.storage.contract import Storage
from treadle.worker.lost_job_reports import LostReporter
from treadle.worker.running_job import RunningJob
from treadle.worker.state import WorkerState


class Heartbeat:
    """One for each worker. `explain` and `treadle queues workers` show the Presence that it stores.

    gathering  the batch calls that wait for more items: (task, seconds so far, seconds at most)
    placed     adds its labels and resources, and the versions of its tasks
    calls      what the worker writes about itself, and takes back when it stops
    """

    def __init__(
        self,
        state: WorkerState,
        storage: Storage,
        lost: LostReporter,
        queues: Sequence[str],
        lease: float,
        tasks: Callable[[], Iterable[str]] = tuple,
        gathering: Callable[[], tuple[tuple[str, float, float], ...]] = tuple,
        placed: Callable[[Presence], Presence] = lambda presence: presence,
    ) -> None:
        self._state, self._storage, self.lost = state, storage, lost
        self._queues, self._lease, self._tasks, self._gathering = tuple(queues), lease, tasks, gathering
        self._placed, self.calls = placed, UncutCalls()
        self._loop = asyncio.get_running_loop()
        self._started_at = self._loop.time()
        self.gone = False  # the worker signs off: whatever it sends from now on does not list it

    async def run(self, answered: Callable[[str], None]) -> None:
        """Renew every third of the shortest lease, and at once when there is a note to save or a job may be lost."""
        state = self._state
        while True:
            state.heartbeat_now.clear()
            await self.calls.make(self.once())
            answered("beat")
            state.heartbeat_in = self._interval()
            try:
                async with asyncio.timeout(state.heartbeat_in):
                    await state.heartbeat_now.wait()
                await asyncio.sleep(0.05)  # one trip for many notes
            except TimeoutError:
                pass

    def _interval(self) -> float:
        shortest = min((run.lease for run in self._state.running.values() if run.lease), default=self._lease)
        return min(shortest, self._lease, LONGEST_TTL / 3) / 3

    def presence(self) -> Presence:
        """The state of this worker that each heartbeat stores. After the last one, a thread that is still running may
        store steps: they must not list the worker again."""
        state, now = self._state, self._loop.time()
        presence = Presence(
            worker=state.name,
            host=platform.node(),
            pid=os.getpid(),
            queues=self._queues,
            tasks=tuple(self._tasks()),
            slots=state.concurrency if self._queues else 0,
            running=len(state.running),
            uptime=now - self._started_at,
            ttl=min(3 * self._lease, LONGEST_TTL),
            gone=self.gone,
            paused=max(0.0, state.pause_ends - now) if state.pause else 0.0,
            gathering=self._gathering(),
            draining=state.draining,
        )
        return self._placed(presence)

    async def send(self, renewals: Sequence[LeaseRenewal], lease: float) -> HeartbeatResult:
        """Renew these leases, or store what they carry. The worker waits for it before it signs off, or it would be
        listed again."""
        return await self.calls.make(self._storage.heartbeat(self.presence(), renewals, lease))

    def lease_of(self, run: RunningJob) -> float:
        return run.lease or self._lease

    async def once(self) -> None:
        """Send one heartbeat.

        Once the worker stops, it notes that in each run that it still has: a lease that is lost from then on, for any
        reason, is not a sign of a crash."""
        state, presence = self._state, self.presence()
        by_lease: dict[float, list[RunningJob]] = {self._lease: []}
        # Jobs with unsettled outcomes keep their leases too: after an outage longer than the lease they must not run
        # again. If a job has two runs here, only the later one has a lease, and the answer names jobs, not runs.
        unsettled = [run for run in state.unconfirmed.runs() if run.record.job.id not in state.running]
        state.release_unbegun()
        for run in (*state.running.values(), *unsettled):
            by_lease.setdefault(self.lease_of(run), []).append(run)
        for seconds, runs in by_lease.items():
            renewals = [self._renewal(run) for run in runs]
            answer = await self._storage.heartbeat(presence, renewals, seconds)
            for run in runs:
                if run.record.job.id in answer.lost and not run.ended:
                    self.lose(run)

    def _renewal(self, run: RunningJob) -> LeaseRenewal:
        note: Pairs = ()
        if self._state.stopping and not run.ended:
            run.noted, note = True, guilt.stop_note(run.record)
            run.record = guilt.with_note(run.record, note)
        return LeaseRenewal(run.record.job.id, run.record.version, note, run.job_run.note)

    def lose(self, run: RunningJob) -> None:
        """Stop a run whose job another worker claimed or another caller settled: the storage refuses its writes."""
        if not run.cancelled:
            self.lost.tell(run)
        run.stop("lost")
