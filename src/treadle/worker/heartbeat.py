"""Renews the leases of what a worker runs, tells the storage that the worker lives, and notices jobs it has lost."""

from __future__ import annotations

import asyncio
import os
import platform
from collections.abc import Callable, Iterable, Sequence

from treadle.core.model import Hold, Presence
from treadle.storage.contract import Storage
from treadle.worker.lost_jobs import LostReporter
from treadle.worker.state import RunningJob, WorkerState


class Heartbeat:
    """One for each worker. `worker.claim` and `explain` read what it says of the worker.

    gathering  the batch calls that wait for more items: (task, seconds so far, seconds at most)
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
    ) -> None:
        self._state, self._storage, self.lost = state, storage, lost
        self._queues, self._lease, self._tasks, self._gathering = tuple(queues), lease, tasks, gathering
        self._loop = asyncio.get_running_loop()
        self._born = self._loop.time()

    async def run(self, answered: Callable[[str], None]) -> None:
        """Renew every third of the shortest lease; at once when a note is to be saved or a job was taken from us."""
        state = self._state
        while True:
            state.beat_now.clear()
            await self.once()
            answered("beat")
            state.beat_every = self._every()
            try:
                async with asyncio.timeout(state.beat_every):
                    await state.beat_now.wait()
                await asyncio.sleep(0.05)  # many notes, one trip
            except TimeoutError:
                pass

    def _every(self) -> float:
        shortest = min((run.lease for run in self._state.running.values() if run.lease), default=self._lease)
        return min(shortest, self._lease) / 3

    def outlasted_by(self, seconds: float) -> None:
        """Something begins that keeps jobs from running for so long: if the next heartbeat would come within that time,
        send one at once, for `explain`."""
        if seconds and seconds >= self._state.beat_every:
            self._state.beat_now.set()

    def presence(self, gone: bool = False) -> Presence:
        """This worker as it describes itself."""
        state, now = self._state, self._loop.time()
        return Presence(
            worker=state.name,
            host=platform.node(),
            pid=os.getpid(),
            queues=self._queues,
            tasks=tuple(self._tasks()),
            slots=state.concurrency,
            running=len(state.running),
            uptime=now - self._born,
            ttl=3 * self._lease,
            gone=gone,
            paused=max(0.0, state.pause_ends - now) if state.pause else 0.0,
            gathering=self._gathering(),
        )

    def lease_of(self, run: RunningJob) -> float:
        return run.lease or self._lease

    async def once(self, gone: bool = False) -> None:
        """One heartbeat; `gone`: the last one, the worker stops."""
        state, presence = self._state, self.presence(gone)
        by_lease: dict[float, list[RunningJob]] = {self._lease: []}
        # Also what waits to be settled: an outage longer than the lease must not have it run again. Of a job that is
        # here twice only the later run has a lease, and the answer names jobs, not runs.
        waiting = [run for run in state.unsettled() if run.record.job.id not in state.running]
        state.hand_back_unbegun()
        for run in (*state.running.values(), *waiting):
            by_lease.setdefault(self.lease_of(run), []).append(run)
        for lease, runs in by_lease.items():
            holds = [Hold(run.record.job.id, run.record.version, note=run.context.note) for run in runs]
            held = await self._storage.heartbeat(presence, holds, lease)
            for run in runs:
                if run.record.job.id in held.lost and not run.ended:
                    self.lose(run)

    def lose(self, run: RunningJob) -> None:
        """Another worker claimed the job, or a call from outside settled it: nothing this run writes will be taken."""
        if not run.cut:
            self.lost.tell(run)
        run.stop("lost")
