"""Reports worker processes whose event loop does not answer, with the stack that blocks it, and kills them if asked."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Collection
from typing import Final

from treadle.cli.fleet.worker_process import WorkerProcess

EVERY: Final = 1.0  # s between two checks
WRITING: Final = 2.0  # s that a process gets to print its stacks before it is killed


class StuckWatch:
    """Watches the processes of `live`.

    restart  seconds without an answer after which a process is killed, and so restarted; None: it is only reported
    """

    def __init__(self, live: Collection[WorkerProcess], restart: float | None, say: Callable[[str], None]) -> None:
        self._live, self._restart, self._say = live, restart, say
        self._stuck: set[WorkerProcess] = set()  # those that were reported
        self._killed: set[WorkerProcess] = set()

    async def run(self) -> None:
        """Check once a second."""
        while True:
            await asyncio.sleep(EVERY)
            self.check()

    def check(self) -> None:
        """Report the processes that have become stuck, and those that answer again; kill those that are due."""
        self._stuck.intersection_update(self._live)
        self._killed.intersection_update(self._live)
        for process in tuple(self._live):
            words = process.stuck
            if words is None:
                if process in self._stuck:
                    self._stuck.discard(process)
                    self._say(f"{process.label}: its event loop answers again")
                continue
            if process not in self._stuck:
                self._stuck.add(process)
                self._say(f"{words}; its stack is below, and its jobs are queued again when their leases expire")
                process.signal(signal.SIGURG)  # see `show_stacks` in cli/child.py
            if self._restart is not None and process.unanswered >= self._restart and process not in self._killed:
                self._killed.add(process)
                self._say(f"{words}; it will be killed and restarted")
                process.signal(signal.SIGABRT)
                asyncio.get_running_loop().call_later(WRITING, process.signal, signal.SIGKILL)
