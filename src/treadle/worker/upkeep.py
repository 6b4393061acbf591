"""What a worker does beside its jobs: renew leases, listen for hints, prune, ask the throttle.

Without it leases would run out under running jobs, and work would be found by polling only.
"""

from __future__ import annotations

import asyncio
import os
import platform
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from treadle.core import defaults
from treadle.core.events import Emitter
from treadle.core.model import Hold, Presence
from treadle.storage.contract import Storage, confined
from treadle.worker.leader import LeaderElection
from treadle.worker.lost_jobs import LostReporter
from treadle.worker.state import RunningJob, WorkerState


class Upkeep:
    """The background loops of one worker; each is restarted by the worker when it fails."""

    UNASKED = 1e9  # s of pause until the throttle was asked for the first time

    def __init__(
        self,
        slots: WorkerState,
        storage: Storage,
        emitter: Emitter,
        queues: Sequence[str],
        lease: float,
        tasks: Callable[[], Iterable[str]] = tuple,
        answered: Callable[[str], None] = lambda loop: None,
        gathering: Callable[[], tuple[tuple[str, float, float], ...]] = tuple,
    ) -> None:
        self._slots, self._storage, self._emitter = slots, storage, emitter
        self._queues, self._lease, self._tasks = tuple(queues), lease, tasks
        self._patience = defaults.WATCH
        self._gathering = gathering
        self._answered = answered  # told by each loop under its name, once the storage has answered it
        self._pruned = True
        self.lost = LostReporter(storage, emitter, slots.name)
        self._loop = asyncio.get_running_loop()
        self._born = self._loop.time()

    async def beat(self) -> None:
        """Renew every third of the shortest lease; at once when a note is to be saved or a job was taken from us."""
        slots = self._slots
        while True:
            slots.beat_now.clear()
            await self.beat_once()
            self._answered("beat")
            slots.beat_every = self._every()
            try:
                async with asyncio.timeout(slots.beat_every):
                    await slots.beat_now.wait()
                await asyncio.sleep(0.05)  # many notes, one trip
            except TimeoutError:
                pass

    def _every(self) -> float:
        shortest = min((run.lease for run in self._slots.running.values() if run.lease), default=self._lease)
        return min(shortest, self._lease) / 3

    def outlasts_a_beat(self, seconds: float) -> None:
        """Something begins that keeps jobs from running for so long: if the next heartbeat would come within that time,
        send one at once, for `explain`."""
        if seconds and seconds >= self._slots.beat_every:
            self._slots.beat_now.set()

    def presence(self, gone: bool = False) -> Presence:
        """This worker as it describes itself."""
        slots, now = self._slots, self._loop.time()
        return Presence(
            worker=slots.name,
            host=platform.node(),
            pid=os.getpid(),
            queues=self._queues,
            tasks=tuple(self._tasks()),
            slots=slots.concurrency,
            running=len(slots.running),
            uptime=now - self._born,
            ttl=3 * self._lease,
            gone=gone,
            paused=max(0.0, slots.pause_ends - now) if slots.pause else 0.0,
            gathering=self._gathering(),
        )

    def lease_of(self, run: RunningJob) -> float:
        return run.lease or self._lease

    async def beat_once(self, gone: bool = False) -> None:
        slots, presence = self._slots, self.presence(gone)
        by_lease: dict[float, list[RunningJob]] = {self._lease: []}
        # Also what waits to be settled: an outage longer than the lease must not have it run again. Of a job that is
        # here twice only the later run has a lease, and the answer names jobs, not runs.
        waiting = [run for run in slots.unsettled() if run.record.job.id not in slots.running]
        slots.hand_back_unbegun()
        for run in (*slots.running.values(), *waiting):
            by_lease.setdefault(self.lease_of(run), []).append(run)
        for lease, runs in by_lease.items():
            holds = [Hold(run.record.job.id, run.record.version, note=run.context.note) for run in runs]
            held = await self._storage.heartbeat(presence, holds, lease)
            for run in runs:
                if run.record.job.id in held.lost and not run.ended:
                    self.lose(run)

    def lose(self, run: RunningJob) -> None:
        """It was settled or claimed by somebody else: nothing it writes will be taken."""
        if not run.cut:
            self.lost.tell(run)
        run.stop("lost")

    async def listen(self) -> None:
        """Be told what is new: a line that has grown, a job of ours that somebody else has settled."""
        slots, told = self._slots, f"worker:{self._slots.name}"
        ours = (defaults.OWN_QUEUE,) if self._queues and not confined(self._storage) else ()
        topics = [told, *(f"queue:{queue}" for queue in dict.fromkeys((*self._queues, *ours)))]
        while True:
            patience, self._patience = self._patience, 0.0  # after a failure, only to see whether it answers
            heard = await self._storage.watch(topics, patience)
            self._patience = defaults.WATCH
            self._answered("listen")
            if told in heard:
                slots.beat_now.set()
            if any(topic.startswith("queue:") for topic in heard):
                slots.hinted = True
                slots.wake.set()

    async def election(self, election: LeaderElection) -> None:
        """Hold on to the lead, or wait for it."""
        while True:
            again = await election.look()
            self._answered("lead")
            await asyncio.sleep(again)

    async def prune(self, tends: Callable[[], bool] = lambda: True) -> None:
        """A little at a time, and not at the same moment as every other worker."""
        while True:
            if self._pruned:  # else it failed, and is tried again at once
                await asyncio.sleep(defaults.PRUNE_EVERY * random.uniform(0.5, 1.5))
            if not tends():
                self._pruned = True
                self._answered("prune")
                continue
            self._pruned, more = False, True
            while more:
                more = await self._storage.prune(defaults.PRUNE_STEP) == defaults.PRUNE_STEP
                await asyncio.sleep(0.01)
            self._pruned = True
            self._answered("prune")

    async def throttle(self, ask: Callable[[], Awaitable[Any]]) -> None:
        """Ask how long to pause before the next claims, and pause as long; the pause ends when it says so."""
        slots = self._slots
        while True:
            try:
                slots.pause = max(0.0, float(await ask() or 0.0))
                slots.pause_ends = self._loop.time() + slots.pause
                self._answered("throttle")
            except BaseException:
                slots.pause = 0.0  # a throttle that is broken throttles nothing
                slots.wake.set()
                raise
            slots.wake.set()  # to claim again, or to withdraw the ask that stands
            self.outlasts_a_beat(slots.pause)
            await asyncio.sleep(slots.pause or defaults.THROTTLE_EVERY)
