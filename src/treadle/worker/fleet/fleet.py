"""A supervisor of worker processes: starts them, restarts those that die, replaces those that are due, stops them.

Each child has its own process group, so that Ctrl-C reaches it once, through the supervisor.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from treadle.core import defaults
from treadle.core.clock import monotonic
from treadle.core.words import plural, size
from treadle.worker.fleet.child_process import FAILED, ChildProcess, Shared
from treadle.worker.fleet.deaths import Deaths
from treadle.worker.fleet.fleet_counts import FleetCounts
from treadle.worker.fleet.messages import HandedOver, Hello, Message, Orders, Suspects, Trial, Vitals
from treadle.worker.fleet.recycling import Recycling
from treadle.worker.fleet.stuck_watch import StuckWatch
from treadle.worker.fleet.trials import Trials
from treadle.worker.fleet.worker_process import MARGIN, WorkerProcess
from treadle.worker.probes import Verdict

SHORT: Final = 12.0  # s of a lease within which the app may not be imported in time to renew it, on a busy machine
AT_ONCE: Final = 5.0  # s from the second stop to SIGKILL
REAP_EVERY: Final = 1.0  # s
KILLING: Final = 30.0  # s that a stuck process may take to end; then the whole fleet should be restarted from outside

Say = Callable[[str], None]


class Fleet:
    """`processes` workers with the same orders. All calls belong to one event loop.

    A process that is due to be replaced claims until its replacement does, and then ends its running jobs.
    One process is replaced at a time, so `processes` workers claim throughout. Workers that start jobs strictly in
    order do not overlap: there the old one ends first.
    """

    def __init__(
        self,
        orders: Orders,
        processes: int,
        say: Say,
        greeted: Callable[[Hello, int], None] | None = None,
        environment: Mapping[str, str] | None = None,
        roles: Sequence[str] = (),
        inherited: Sequence[int] = (),
        recycling: Recycling | None = None,
    ) -> None:
        self.orders, self.size = msgspec.structs.replace(orders, helps=True), processes
        orders = self.orders
        self._roles = roles  # the role of each process, in order
        self._inherited = inherited  # descriptors that each process gets
        self._say, self._greeted, self._environment = say, greeted, environment
        self._recycling = recycling or Recycling()
        self._warned = False  # that the limit of memory is too small
        self._asked = 0  # calls of `stop`
        self._killer: asyncio.TimerHandle | None = None
        shared = self._shared = Shared(orders, self._spawn, self._ended, self.stop, say, self._recycling)
        self._trials = Trials(shared, self._spawn_trial, processes == 1 and orders.lease_or_default < SHORT)
        self._deaths = Deaths(shared, self._trials.sent)
        self.counts = FleetCounts(lambda: (sum(not process.orders.trial for process in shared.live), shared.restarts))
        self._children = {number: ChildProcess(number, self._shared) for number in range(1, processes + 1)}

    @property
    def pids(self) -> dict[int, int]:
        """Process ids of the live processes by number; without those that were replaced and end their jobs."""
        current = {number: child.current for number, child in self._children.items()}
        return {number: process.pid for number, process in current.items() if process is not None and process.pid}

    @property
    def verdict(self) -> Verdict:
        """Its health."""
        return verdict_of(self._children.values(), self._shared.live, self._recycling.restart_stuck)

    @property
    def patience(self) -> float:
        """Seconds that a stop may take until processes are killed."""
        grace = defaults.GRACE if self.orders.grace is None else self.orders.grace
        return grace + self.orders.lease_or_default + MARGIN

    async def run(self) -> int:
        """Run until all processes have ended -> the exit code. Kills them if it is cancelled or fails."""
        shared = self._shared
        children = [asyncio.create_task(child.run()) for child in self._children.values()]
        watch = StuckWatch(shared, self._recycling.restart_stuck, self._trials.leases, self._trials.need)
        beside = [asyncio.create_task(loop.run()) for loop in (watch, self._trials)]
        if self.orders.count:
            beside.append(asyncio.create_task(self.counts.run()))
        if os.getpid() == 1:
            beside.append(asyncio.create_task(reap_orphans(lambda: [process.pid for process in shared.live])))
        try:
            await asyncio.gather(*children)
            while shared.live:  # those that were being replaced
                await asyncio.wait([process.over for process in shared.live])
        finally:
            self._signal(signal.SIGKILL)
            ending = [*children, *beside, *(process.over for process in shared.live)]
            for task in ending:
                task.cancel()
            await asyncio.gather(*ending, return_exceptions=True)
            await self._deaths.close()
            if self._killer is not None:
                self._killer.cancel()
        return shared.code

    async def roll(self, reason: str) -> bool:
        """Replace all processes, one after the other -> whether all were. The first that cannot be replaced ends
        it."""
        for child in self._children.values():
            if not await child.replace(reason):
                return False
        self._trials.replace(reason)
        return True

    def stop(self) -> None:
        """First call: stop within grace. Second: stop at once. Third: kill."""
        self._asked += 1
        self._shared.stop.set()
        if self._asked > 2:
            self._signal(signal.SIGKILL)
            return
        # Different signals, because the system merges two pending signals of one kind.
        self._signal(signal.SIGTERM if self._asked == 1 else signal.SIGINT)
        if self._killer is not None:
            self._killer.cancel()
        patience = self.patience if self._asked == 1 else AT_ONCE
        self._killer = asyncio.get_running_loop().call_later(patience, self._kill)

    def _kill(self) -> None:
        if self._shared.live:
            self._say(
                f"{plural(len(self._shared.live), 'process')} did not stop and will be killed; "
                "their jobs are queued again when the leases expire"
            )
            self._shared.code = FAILED
            self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        for process in self._shared.live:
            process.signal(number)

    # --- one process

    def _spawn(self, number: int) -> WorkerProcess:
        orders = msgspec.structs.replace(self.orders, number=number)
        if self._roles:
            role = self._roles[number - 1]
            orders = msgspec.structs.replace(orders, role=role, name=orders.name or role)
        return self._process(orders, self._recycling.drawn())

    def _spawn_trial(self) -> WorkerProcess:
        orders = msgspec.structs.replace(
            self.orders, number=0, trial=True, concurrency=1, relay=False, role=None, resources={}
        )
        return self._process(orders, Recycling())

    def _process(self, orders: Orders, limits: Recycling) -> WorkerProcess:
        process = WorkerProcess(orders, limits, self._on_message, self._environment, self._inherited)
        if orders.count:
            self.counts.follow(process)
        return process

    def _ended(self, process: WorkerProcess, code: int) -> None:
        self._deaths.note(process, code, self._trials.leases(process))

    def _on_message(self, process: WorkerProcess, message: Message) -> None:
        if isinstance(message, Suspects):
            self._trials.offer(process, message.suspects)
        elif isinstance(message, HandedOver):
            self._trials.handed_over(message)
        elif isinstance(message, Trial):
            self._trials.told(message)
        elif not process.orders.trial:
            self._on_message_of_child(process, message)

    def _on_message_of_child(self, process: WorkerProcess, message: Message) -> None:
        shared, child = self._shared, self._children[process.number]
        if isinstance(message, Hello):
            shared.proven, child.unproven = True, 0
            shared.first.set()
            if self._greeted is not None:
                self._greeted(message, process.number)
        elif isinstance(message, Vitals) and process is child.current and process.claims.is_set():
            self._look(process, child, message)

    def _look(self, process: WorkerProcess, child: ChildProcess, vitals: Vitals) -> None:
        """Replace a process that is due. Say once if each new one would be due at once."""
        if process.limits.too_small(process.idle_memory) and not self._warned:
            self._warned = True
            self._say(
                f"{process.label} uses {size(process.idle_memory)} of memory before its first job, which is above the "
                "limit: give --max-memory a larger size; until then processes are replaced once a minute at most"
            )
        reason = process.limits.reason(vitals, monotonic() - process.claims_since, process.idle_memory)
        if reason is not None:
            child.recycle(reason)


async def reap_orphans(own: Callable[[], Collection[int]]) -> None:
    """Reap once a second the ended processes that a supervisor with process id 1 inherits: in a container without an
    init, those whose own parent has ended. They fill the process table until their exit codes are read.

    own  the ids of the children whose exit codes asyncio reads; 0 for one that is being created
    """
    while True:
        await asyncio.sleep(REAP_EVERY)
        reap(own())


def reap(own: Collection[int]) -> list[int]:
    """Reap the ended children that are not our own -> their process ids."""
    reaped = list[int]()
    if 0 in own:
        return reaped
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None or ended.si_pid in own:  # asyncio reads it; later calls reap those behind it
                return reaped
            os.waitpid(ended.si_pid, os.WNOHANG)
        except ChildProcessError:
            return reaped
        reaped.append(ended.si_pid)


def verdict_of(children: Iterable[ChildProcess], live: Iterable[WorkerProcess], restart: float | None) -> Verdict:
    """The health of a fleet. Alive: every event loop answers, or the supervisor is going to restart it. Ready: every
    process claims, and the storage answers each of them. The trial process counts for neither: a suspect may be stuck
    there.

    restart  seconds without an answer after which the supervisor restarts a process; None: never
    """
    kept = list(children)
    silent = [process for process in live if process.stuck is not None and not process.orders.trial]
    patience = 0.0 if restart is None else restart + KILLING
    stuck = [str(process.stuck) for process in silent if process.unanswered >= patience]
    unready = [str(process.stuck) for process in silent]
    unready += [why for child in kept if (why := _unready(child)) is not None]
    status = f"{plural(len(kept), 'worker process')} {'claims' if len(kept) == 1 else 'claim'} jobs"
    return Verdict(_first(stuck), _first(unready), status)


def _unready(child: ChildProcess) -> str | None:
    process = child.current
    if process is None:
        return f"worker {child.number} is being restarted"
    if process.vitals is None:
        return None if process.claims.is_set() else f"{process.label}: it starts and imports the app"
    problem = process.vitals.health.problem
    if problem == "starting" and process.claims.is_set():  # since then it has sent its Hello
        return None
    return None if problem is None else f"{process.label}: {problem}"


def _first(problems: list[str]) -> str | None:
    if not problems:
        return None
    return problems[0] if len(problems) == 1 else f"{problems[0]}; {len(problems) - 1} more"
