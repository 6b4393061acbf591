"""Runs the suspects of a fleet in a process of their own, one at a time: there a death can only be the suspect's.

The workers hold the leases of their suspects until the process is free. Each suspect is left by its holder before it is
sent there, so that never two processes may settle it. The process starts with the first suspect, ends when it has
been idle, and is followed by another one when it dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from treadle.policy import guilt
from treadle.worker.fleet.child_process import BACKOFF, Shared
from treadle.worker.fleet.messages import HandedOver, HandOver, Trial, TrialsFailed, Try
from treadle.worker.fleet.worker_process import STARTING, WorkerProcess, first_of
from treadle.worker.jobs_of_others import Lease
from treadle.worker.trials import Suspect

IDLE: Final = 10.0  # s without a suspect after which the process ends
STARTS: Final = 3  # consecutive starts in which no suspect ran; then the workers try their suspects themselves


class Trials:
    """All calls belong to the event loop of the fleet.

    spawn   makes the process
    stands  it runs all the time: a fleet of one process whose leases are too short to start another one in time
    """

    def __init__(self, shared: Shared, spawn: Callable[[], WorkerProcess], stands: bool = False) -> None:
        self._shared, self._spawn, self._stands = shared, spawn, stands
        self.process: WorkerProcess | None = None
        self._waiting: dict[Lease, tuple[WorkerProcess, Suspect]] = {}  # with the holder of each
        self._left = deque[Suspect]()  # suspects that the processes which held them have given up
        self._explained = deque[str](maxlen=guilt.EXPLAINED)
        self._answered = asyncio.Event()  # a holder has answered
        self._current: Suspect | None = None  # sent to the process
        self._is_taken = False  # whether the suspect runs in the trial process
        self._over = asyncio.Event()  # it runs no longer
        self._due = asyncio.Event()  # a suspect waits, or another process needs help

    # --- requests

    def offer(self, holder: WorkerProcess, suspects: Sequence[Suspect]) -> None:
        """Try these suspects, which this process holds."""
        for suspect in suspects:
            self._waiting[_key(suspect)] = holder, suspect
            self._explained += suspect.explains
        self._due.set()

    def need(self) -> None:
        """Start the process, although no suspect waits: it can act for others."""
        self._due.set()

    def replace(self, reason: str) -> None:
        """Let the process end its suspect, and use another one for the next."""
        process = self.process
        if process is None:
            return
        kill = partial(process.signal, signal.SIGKILL)
        if not process.claims.is_set():  # it imports the app, perhaps the old code
            kill()
        elif not process.asked:
            process.drain(reason, self._shared.recycling.drain, kill)

    def leases(self, process: WorkerProcess) -> list[Lease]:
        """The leases that this process has besides those under its name."""
        return self.sent() if process is self.process else []

    def sent(self) -> list[Lease]:
        """The leases of the suspects that the process runs, or is about to run: no worker holds them."""
        return [_key(suspect) for suspect in (self._current, *self._left) if suspect is not None]

    def handed_over(self, message: HandedOver) -> None:
        """The answer of the process that held a suspect."""
        self._waiting.pop(_key(message.suspect), None)
        if message.held:
            self._left.append(message.suspect)
        self._answered.set()
        self._due.set()

    def told(self, message: Trial) -> None:
        """A message of the process."""
        if self._current is None or _key(message.suspect) != _key(self._current):
            return
        if message.stage == "taken":
            self._is_taken = True
        elif self._is_taken or self.process is None or not self.process.asked:
            self._over.set()  # one that it could not begin because it stops is its own until its end

    # --- the process

    async def run(self) -> None:
        """Run processes as they are needed, until the fleet stops."""
        shared, failures = self._shared, 0
        if self._stands:  # also while the worker starts: under load the import may take as long as a lease
            self._due.set()
        while not shared.stop.is_set():
            await self._any(self._due)
            self._due.clear()
            if shared.stop.is_set():
                return
            process = self.process = shared.follow(self._spawn())
            is_proven = await self._until_it_starts(process) and await self._serve(process)
            self.process = None
            failures = 0 if is_proven else failures + 1
            if failures >= STARTS:
                self._give_up()
                failures = 0
            elif failures:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(BACKOFF[0] * 2**failures):
                        await shared.stop.wait()
            if self._waiting or self._left or self._stands:
                self._due.set()

    async def _until_it_starts(self, process: WorkerProcess) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STARTING):
                await self._any(process.claims, process.over)
        if not process.claims.is_set() and not process.over.done():
            process.signal(signal.SIGKILL)
            await asyncio.wait((process.over,))
        return process.claims.is_set()

    async def _serve(self, process: WorkerProcess) -> bool:
        """Let the process run the suspects that wait, until it has ended -> whether it can run suspects."""
        is_proven = True
        while not process.over.done() and not process.asked:
            suspect = await self._next(process)
            if suspect is None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(IDLE):
                        self._due.clear()
                        await self._any(self._due, process.over)
                        continue
                if self._stands or any(other.may_need_renewals for other in self._shared.live):
                    continue  # it renews their leases
                process.signal(signal.SIGTERM)
                break
            self._current, self._is_taken = suspect, False
            self._over.clear()
            process.send(Try(suspect))
            await first_of(self._over.wait(), over=(process.over,))  # even if the fleet stops: the suspect still runs
            is_proven = self._is_taken or self._over.is_set() or process.asked
            self._current = None
        await asyncio.wait((process.over,))
        return is_proven

    async def _next(self, process: WorkerProcess) -> Suspect | None:
        """A suspect that its holder has left to this process; None: none waits, or the process ends."""
        while not self._left and not process.over.done() and not process.asked:
            # The leases of a holder that has ended are lost, or are about to be.
            self._waiting = {key: entry for key, entry in self._waiting.items() if not entry[0].over.done()}
            if not self._waiting:
                return None
            key, (holder, suspect) = next(iter(self._waiting.items()))
            self._answered.clear()
            holder.send(HandOver(suspect, list(self._explained)))
            try:
                async with asyncio.timeout(holder.lease / 3):
                    await self._any(self._answered, holder.over, process.over)
            except TimeoutError:  # the holder is stuck; suspects of other processes come first
                if key in self._waiting:
                    self._waiting[key] = self._waiting.pop(key)
        return None if process.over.done() or process.asked or not self._left else self._left.popleft()

    async def _any(self, event: asyncio.Event, *over: asyncio.Task[int]) -> None:
        """Until the event is set, one of these processes is over, or the fleet stops."""
        await first_of(event.wait(), self._shared.stop.wait(), over=over)

    def _give_up(self) -> None:
        """Leave the suspects to the workers that hold them."""
        if self._waiting:
            text = f"no trial process could start {STARTS} times in a row; the workers try their suspects themselves"
            self._shared.say(text)
        for holder in {holder for holder, _ in self._waiting.values()}:
            holder.send(TrialsFailed())
        self._waiting = {}
        self._left.clear()  # their leases expire, uncounted


def _key(suspect: Suspect) -> Lease:
    return suspect.id, suspect.version
