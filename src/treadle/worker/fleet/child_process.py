"""Keeps one worker process of a fleet running: restarts it when it dies, and replaces it when it is due."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from treadle.core.clock import monotonic
from treadle.worker.fleet.messages import Orders
from treadle.worker.fleet.recycling import Recycling
from treadle.worker.fleet.worker_process import STARTING, WorkerProcess, first_of

OK, FAILED = 0, 1  # exit codes
BACKOFF: Final = (0.2, 30.0)  # s before the first restart, and at most
HEALTHY: Final = 60.0  # s of running after which the back-off starts over
STARTS: Final = 10  # starts in a row that end before their Hello, in about two minutes; then the others stop too
AGAIN: Final = 60.0  # s until a process whose replacement could not start may be replaced


@dataclass
class Shared:
    """The values that the keepers of a fleet share.

    spawn     makes the process of a number
    ended     called with each process that has ended, and its exit code
    stop_all  stops the fleet
    live      the processes that have not ended, including those that replace and are replaced
    turn      held while one process is replaced
    proven    a process has sent Hello, so the orders work
    restarts  processes that ended by themselves and were started again
    """

    orders: Orders
    spawn: Callable[[int], WorkerProcess]
    ended: Callable[[WorkerProcess, int], None]
    stop_all: Callable[[], None]
    say: Callable[[str], None]
    recycling: Recycling
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    first: asyncio.Event = field(default_factory=asyncio.Event)  # a process has sent Hello, or none ever will
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    live: set[WorkerProcess] = field(default_factory=set)
    proven: bool = False
    restarts: int = 0
    code: int = OK

    def follow(self, process: WorkerProcess) -> WorkerProcess:
        """Count a process among the live ones until it ends."""
        self.live.add(process)
        process.over.add_done_callback(functools.partial(self._over, process))
        return process

    def _over(self, process: WorkerProcess, over: asyncio.Task[int]) -> None:
        self.live.discard(process)
        if not over.cancelled() and over.exception() is None:
            self.ended(process, over.result())

    def helper(self) -> WorkerProcess | None:
        """A process that can act for others: one that claims jobs, before the trial process."""
        able = [process for process in self.live if process.may_help]
        return min(able, key=lambda process: (process.orders.trial, process.number), default=None)


class ChildProcess:
    """The process of one number. All calls belong to the event loop of the fleet."""

    def __init__(self, number: int, shared: Shared) -> None:
        self.number, self._shared = number, shared
        self.current: WorkerProcess | None = None  # the process that claims, or will; None: it waits to be restarted
        self.draining: WorkerProcess | None = None  # the process that was replaced last
        self.unproven = 0  # starts in a row without a Hello
        self._due = asyncio.Event()
        self._reason, self._is_replacing = "", False
        self._replaced: asyncio.Future[bool] | None = None
        self._not_before = 0.0  # an instant of the monotonic clock

    async def run(self) -> None:
        """Keep it running until the fleet stops. All but the first wait until a process has sent Hello."""
        shared, failures = self._shared, 0
        if self.number > 1:
            await shared.first.wait()
        while not shared.stop.is_set():
            began = monotonic()
            code = await self._serve()
            if shared.stop.is_set():
                break
            if not shared.proven or self.unproven >= STARTS:
                if shared.proven:
                    shared.say(f"worker {self.number} could not start {STARTS} times in a row; stopping the others")
                shared.code = code if 0 < code < 128 else FAILED
                shared.stop_all()
                break
            failures = 1 if monotonic() - began > HEALTHY else failures + 1
            delay = min(BACKOFF[0] * 2 ** (failures - 1), BACKOFF[1])
            shared.say(f"worker {self.number} {ended(code)}; restarting it in {delay:.1f} s")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await shared.stop.wait()
            if not shared.stop.is_set():
                shared.restarts += 1
        shared.first.set()

    # --- requests

    def recycle(self, reason: str) -> None:
        """Replace the process when it is its turn; not while the one before it still ends its jobs."""
        is_under_way = self._due.is_set() or self._is_replacing or self.draining is not None
        if not is_under_way and monotonic() >= self._not_before:
            self._reason = reason
            self._due.set()

    async def replace(self, reason: str) -> bool:
        """Replace the process by one that starts from now on -> whether that claims. A process that is being restarted
        counts as replaced."""
        if self.current is None or self._shared.stop.is_set():
            return True
        if self._replaced is None:
            self._replaced = asyncio.get_running_loop().create_future()
        self._reason = reason
        self._due.set()
        return await asyncio.shield(self._replaced)

    def _request(self) -> asyncio.Future[bool] | None:
        """Take the request that is due: the future that its caller waits for."""
        self._due.clear()
        waiting, self._replaced = self._replaced, None
        return waiting

    # --- one process and those that replace it

    async def _serve(self) -> int:
        """Run a process, and those that replace it -> the exit code of the one that ended by itself."""
        self.unproven += 1
        self.current = current = self._start()
        try:
            while not self._shared.stop.is_set():
                turn = asyncio.create_task(self._my_turn())
                await asyncio.wait((current.over, turn), return_when=asyncio.FIRST_COMPLETED)
                if not turn.done():
                    turn.cancel()
                    await asyncio.wait((turn,))
                if not turn.cancelled():
                    try:
                        await self._replace(current)
                    finally:
                        self._shared.turn.release()
                if self.current is current and current.over.done():
                    break
                current = self.current
            await asyncio.wait((current.over,))
            return current.over.result()
        finally:
            self.current = None
            _answer(self._request(), True)

    async def _my_turn(self) -> None:
        await self._due.wait()
        await self._shared.turn.acquire()

    def _start(self) -> WorkerProcess:
        return self._shared.follow(self._shared.spawn(self.number))

    async def _replace(self, old: WorkerProcess) -> None:
        """Start another process, and let the old one drain when that claims. If it cannot start, the old one stays."""
        shared = self._shared
        if old.over.done() or shared.stop.is_set():
            return
        # Requests from here on are for the next turn: the new process may have imported the code before them.
        reason, waiting, self._is_replacing = self._reason, self._request(), True
        shared.say(f"{old.label} will be replaced: {reason}")
        replaced = True
        try:
            replaced = await self._by_another(old, reason)
        finally:
            self._is_replacing = False
            _answer(waiting, replaced)

    async def _by_another(self, old: WorkerProcess, reason: str) -> bool:
        shared = self._shared
        if shared.orders.ordered:  # two processes would start jobs out of order
            self._drain(old, reason)
            await asyncio.wait((old.over,))
            if not shared.stop.is_set():
                self.current = self._start()
            return True
        new = self._start()
        await first_of(new.claims.wait(), shared.stop.wait(), over=(new.over, old.over), timeout=STARTING)
        if new.claims.is_set() or old.over.done():
            self.current = new
            if not old.over.done():
                shared.say(f"{new.label} claims jobs; {old.label} lets its running jobs end")
                self._drain(old, reason)
            return True
        if not shared.stop.is_set():
            await self._give_up(new, old)
        return False

    async def _give_up(self, new: WorkerProcess, old: WorkerProcess) -> None:
        """The new process has ended, or does not come to claim: the old one continues."""
        what = f"did not claim jobs within {STARTING:g} s"
        if new.over.done():
            what = ended(new.over.result())
        else:
            new.signal(signal.SIGKILL)
            await asyncio.wait((new.over,))
        self._shared.say(f"the replacement of {old.label} {what}; {old.label} continues")
        self._not_before = monotonic() + AGAIN

    def _drain(self, old: WorkerProcess, reason: str) -> None:
        """Let the process end its running jobs and exit; kill it if it does not."""
        self.draining = old
        old.over.add_done_callback(functools.partial(self._drained, old))
        old.drain(reason, self._shared.recycling.drain, lambda: self._kill(old))

    def _kill(self, old: WorkerProcess) -> None:
        self._shared.say(f"{old.label} was replaced and did not end; it will be killed")
        old.signal(signal.SIGKILL)

    def _drained(self, old: WorkerProcess, task: asyncio.Task[int]) -> None:
        if self.draining is old:
            self.draining = None
        if not task.cancelled() and task.exception() is None and task.result():
            self._shared.say(f"{old.label} was replaced and {ended(task.result())}")


def _answer(waiting: asyncio.Future[bool] | None, replaced: bool) -> None:
    """Answer the caller of `replace` whether the process was replaced."""
    if waiting is not None and not waiting.done():
        waiting.set_result(replaced)


def ended(code: int) -> str:
    """How a process ended, in words."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
