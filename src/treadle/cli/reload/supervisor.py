"""The loop of `--reload`: run, wait for a change, stop, run again.

A run that ends by itself, for example because a module cannot be imported, is not started again before the next change.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from treadle.cli.output import note
from treadle.cli.reload.reports import VARIABLE, read
from treadle.cli.reload.watcher import Watched, Watcher

MARGIN: Final = 3.0  # s beyond grace after which processes are stopped at once
STUCK: Final = 5.0  # s from then until a command is killed


class Running(Protocol):
    """One start of the processes."""

    async def run(self) -> int:
        """Run until they have stopped -> the exit code."""
        ...

    def stop(self) -> None:
        """First call: stop within grace. Second: stop at once."""
        ...


Make = Callable[[Mapping[str, str], int], Running]
"""Makes the next start, from the environment of its processes and the descriptor that they inherit."""


class Reloader:
    """Runs what `make` makes, again after each change, until a signal stops it."""

    def __init__(self, make: Make, watched: Watched, grace: float) -> None:
        self._make, self._grace = make, grace
        self._signals = 0
        self._stopping = asyncio.Event()
        self._current: Running | None = None
        self._is_reloading = False
        self._buffer = bytearray()
        self._watcher = Watcher(watched)

    async def run(self) -> int:
        """Run until it is stopped by a signal -> the exit code of the processes that it stopped last, or 0."""
        loop, (ours, theirs) = asyncio.get_running_loop(), os.pipe()
        os.set_blocking(ours, False)
        loop.add_reader(ours, self._hear, ours)
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal)
        environment = {**os.environ, VARIABLE: str(theirs)}
        code = 0
        try:
            async with self._watcher:
                while not self._stopping.is_set():
                    await self._watcher.begin()
                    code = await self._once(self._make(environment, theirs))
        finally:
            loop.remove_reader(ours)
            os.close(ours)
            os.close(theirs)
        note("treadle: stopped")
        return code

    async def _once(self, running: Running) -> int:
        """Run it until the next change, or until a signal stops it -> the exit code."""
        self._current, self._is_reloading = running, False
        work = asyncio.create_task(running.run())
        change = asyncio.create_task(self._watcher.changed())
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait((work, change, stopping), return_when=asyncio.FIRST_COMPLETED)
            ended = work.done()
            if ended and not self._stopping.is_set():
                work.result()
                note("treadle: waiting for the next save; press Ctrl-C to stop")
                await asyncio.wait((change, stopping), return_when=asyncio.FIRST_COMPLETED)
            if change.done() and not self._stopping.is_set():
                note(f"treadle: {change.result().text(Path.cwd())}; reloading")
                await self._stop(running, work)
            code = await work
            return 0 if ended else code
        finally:
            self._current = None
            for task in (work, change, stopping):
                task.cancel()
            await asyncio.gather(work, change, stopping, return_exceptions=True)

    async def _stop(self, running: Running, work: asyncio.Task[int]) -> None:
        """Stop the processes before a reload: within grace, then at once."""
        if work.done():
            return
        self._is_reloading = True
        running.stop()
        await asyncio.wait((work,), timeout=self._grace + MARGIN)
        if not work.done():
            running.stop()
            await work

    def _on_signal(self) -> None:
        self._signals += 1
        note("treadle: stopping" if self._signals == 1 else "treadle: stopping at once")
        self._stopping.set()
        # A reload has sent the first stop already; Ctrl-C during it does not cut the grace short.
        if self._current is not None and not (self._signals == 1 and self._is_reloading):
            self._current.stop()

    def _hear(self, descriptor: int) -> None:
        """Watch the files that the processes have loaded."""
        with contextlib.suppress(BlockingIOError):
            self._buffer += os.read(descriptor, 65_536)
        *lines, rest = bytes(self._buffer).split(b"\n")
        self._buffer = bytearray(rest)
        self._watcher.add(dict(map(read, lines)))


class Command:
    """One run of a command of ours as a process, in a process group of its own."""

    def __init__(self, words: Sequence[str], environment: Mapping[str, str], descriptor: int) -> None:
        self._words, self._environment, self._descriptor = words, environment, descriptor
        self._child: asyncio.subprocess.Process | None = None
        self._asked = 0
        self._killer: asyncio.TimerHandle | None = None

    async def run(self) -> int:
        """Run it to its end -> its exit code. Kills it if this is cancelled."""
        options: dict[str, Any] = {"process_group": 0}
        child = self._child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            "treadle",
            *self._words,
            env=self._environment,
            pass_fds=[self._descriptor],
            stdin=asyncio.subprocess.DEVNULL,
            **options,
        )
        if self._asked:
            self._send(signal.SIGTERM)
        try:
            return await child.wait()
        finally:
            if child.returncode is None:
                child.kill()
                await child.wait()
            if self._killer is not None:
                self._killer.cancel()

    def stop(self) -> None:
        """First call: stop within grace. Second: stop at once. It is killed STUCK seconds after the second."""
        self._asked += 1
        self._send(signal.SIGTERM if self._asked == 1 else signal.SIGINT)
        if self._asked == 2:
            self._killer = asyncio.get_running_loop().call_later(STUCK, self._send, signal.SIGKILL)

    def _send(self, number: int) -> None:
        if self._child is not None:
            with contextlib.suppress(ProcessLookupError):
                self._child.send_signal(number)
