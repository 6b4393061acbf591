"""The threads and processes of one worker, made when the first job needs them.

Without it each kind of task would keep its own idea of where functions run that are not async.
"""

from __future__ import annotations

from typing import Any

from treadle.worker.executors.threads import Runs, Threads


class Executors:
    """Both of them may be asked for again after `close`."""

    def __init__(self, name: str, size: int) -> None:
        self._name, self._size = name, size
        self._threads: Runs | None = None
        self._processes: Any = None

    def lend(self, threads: Runs) -> None:
        """Run plain functions there, until `close`."""
        self._threads = threads

    def threads(self) -> Runs:
        if self._threads is None:
            self._threads = Threads(self._size, f"treadle-{self._name}")
        return self._threads

    def processes(self) -> Any:
        if self._processes is None:
            from treadle.worker.executors.processes import ProcessPool

            self._processes = ProcessPool()
        return self._processes

    async def close(self) -> None:
        """Processes end now; threads when what they run has returned."""
        threads, processes, self._threads, self._processes = self._threads, self._processes, None, None
        if threads is not None:
            threads.close()
        if processes is not None:
            await processes.close()
