"""The threads and processes of one worker, made when the first job needs them."""

from __future__ import annotations

import asyncio
from typing import Any

from treadle.worker.executors.threads import DaemonThreads, Runs


class Executors:
    """After `close`, `threads` and `processes` make new ones."""

    def __init__(self, name: str, size: int) -> None:
        self._name, self._size = name, size
        self._threads: Runs | None = None
        self._processes: Any = None

    def lend(self, threads: Runs) -> None:
        """Run plain functions in these threads, until `close`."""
        self._threads = threads

    def threads(self) -> Runs:
        if self._threads is None:
            self._threads = DaemonThreads(self._size, f"treadle-{self._name}")
        return self._threads

    def processes(self) -> Any:
        if self._processes is None:
            from treadle.worker.executors.processes import ProcessPool

            self._processes = ProcessPool()
        return self._processes

    async def close(self, hurry: asyncio.Event | None = None) -> None:
        """End each thread when its function has returned, and the processes now: those that are idle when they have
        closed their resources, unless `hurry` is set."""
        threads, processes, self._threads, self._processes = self._threads, self._processes, None, None
        if threads is not None:
            threads.close()
        if processes is not None:
            await processes.close(hurry)
