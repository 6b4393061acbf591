"""Acts for worker processes that do not answer: renews their leases, says which job is the cause, and ends them.

A process whose event loop is blocked, or whose interpreter's lock is kept, is alive. Its jobs run, so no other worker
may run them. Another process of the fleet renews the leases of these jobs until the stuck process answers again or has
been ended.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from treadle.core.clock import monotonic
from treadle.worker.fleet.child_process import Shared
from treadle.worker.fleet.thread_stacks import WRITING, busiest, culprit_of, parsed
from treadle.worker.fleet.worker_process import WorkerProcess
from treadle.worker.jobs_of_others import Lease, Place

EVERY: Final = 1.0  # s between two checks, at most
SHARE: Final = 3  # parts of a lease, one renewal in each
NAMING: Final = 10.0  # s to wait for the names of its jobs: another process may have to start
ENDING: Final = 2.0  # s that a process gets to print its stacks before it is killed


class Silent:
    """A process that does not answer, until it answers or has ended."""

    def __init__(self, process: WorkerProcess) -> None:
        self.process = process
        self.jobs: Sequence[Place] = ()  # jobs that the stuck process runs
        self.known = asyncio.Event()  # they are known, from the first renewal on
        self.reported = self.killed = False
        self.renewing: asyncio.Task[None] | None = None
        self.telling: asyncio.Task[None] | None = None
        self.renewed_at = float("-inf")  # an instant of the monotonic clock

    async def close(self) -> None:
        under_way = [task for task in (self.renewing, self.telling) if task is not None]
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)


class StuckWatch:
    """Watches the live processes of a fleet.

    restart  seconds without an answer after which a process is killed, and so restarted; None: never
    leases   the leases that a process holds besides those under its name
    need     called while no process can renew leases: starts one more
    """

    def __init__(
        self,
        shared: Shared,
        restart: float | None,
        leases: Callable[[WorkerProcess], Sequence[Lease]],
        need: Callable[[], None],
    ) -> None:
        self._shared, self._restart, self._say, self._leases, self._need = shared, restart, shared.say, leases, need
        self._silent: dict[WorkerProcess, Silent] = {}

    async def run(self) -> None:
        """Check once a second, and more often while leases are short."""
        try:
            while True:
                await asyncio.sleep(min([EVERY, *(process.probe_every for process in self._shared.live)]))
                self.check()
        finally:
            await asyncio.gather(*(silent.close() for silent in self._silent.values()))

    def check(self) -> None:
        """Act for the processes that do not answer."""
        live = self._shared.live
        self._silent = {process: silent for process, silent in self._silent.items() if process in live}
        for process in tuple(live):
            if process.may_need_renewals or process.stuck is not None:
                self._act_for(self._silent.setdefault(process, Silent(process)))
            elif (silent := self._silent.pop(process, None)) is not None and silent.reported:
                self._say(f"{process.label}: its event loop answers again")

    def _act_for(self, silent: Silent) -> None:
        process, now = silent.process, monotonic()
        if process.may_need_renewals and self._shared.helper() is None:
            self._need()
        is_renewing = silent.renewing is not None and not silent.renewing.done()
        if process.needs_renewals and not is_renewing and now - silent.renewed_at >= process.lease / SHARE:
            helper = self._shared.helper()
            if helper is not None:
                silent.renewing = asyncio.create_task(self._renew(silent, helper))
        if process.stuck is not None and not silent.reported:
            silent.reported = True
            silent.telling = asyncio.create_task(self._tell(silent))
        if self._restart is not None and process.unanswered >= self._restart and not silent.killed:
            silent.killed = True
            process.killed_for = f" after its event loop had not answered for {self._restart:g} s"
            self._say(f"{process.stuck or process.label}; it will be killed and restarted")
            process.signal(signal.SIGABRT)
            asyncio.get_running_loop().call_later(ENDING, process.signal, signal.SIGKILL)

    async def _renew(self, silent: Silent, helper: WorkerProcess) -> None:
        process = silent.process
        assert process.hello is not None
        jobs = await helper.renew_for(process.hello.worker, list(self._leases(process)))
        if jobs is not None:
            silent.jobs, silent.renewed_at = jobs, monotonic()
            silent.known.set()

    async def _tell(self, silent: Silent) -> None:
        """Say which job in which thread keeps the process from answering, and print the stack of that thread."""
        process, clause = silent.process, silent.process.stuck
        busy = await busiest(process.pid)
        stacks = parsed(await process.stacks(WRITING))
        with suppress(TimeoutError):
            async with asyncio.timeout(NAMING):
                await silent.known.wait()
        culprit = culprit_of(process.pid, busy, stacks, process.vitals, silent.jobs)
        if culprit is None:
            self._say(f"{clause}; {self._bound()}")
            return
        self._say(f"{clause}. {culprit.words(silent.jobs)}. Its stack is below; {self._bound()}\n{culprit.stack.text}")

    def _bound(self) -> str:
        until = "until it answers" if self._restart is None else f"until it answers, at most {self._restart:g} s"
        return f"the leases of its jobs are renewed {until}"
