"""A fleet of worker processes over the tasks of a file, for tests."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from tests.waiting import Signal
from treadle import App, Job
from treadle.worker.fleet import Fleet, Recycling, stuck_watch, worker_process
from treadle.worker.fleet.messages import Orders

URL = "sqlite:///jobs.db"
TASKS = """
import asyncio
import ctypes
import os
import time
from pathlib import Path

from treadle import App

app = App("sqlite:///jobs.db")
events = []


@app.on("worker.recycling", "worker.stopped")
def tell(event):
    with open("events", "a") as file:
        file.write(f"{os.getpid()} {event.name} {event.reason or ''}\\n")


@app.task
async def pid() -> int:
    return os.getpid()


@app.task
async def block(name: str) -> int:
    while not Path(name).exists():
        time.sleep(0.02)
    return os.getpid()


@app.task
async def until(name: str) -> int:
    while not Path(name).exists():
        await asyncio.sleep(0.02)
    return os.getpid()


@app.task
async def hold(megabytes: int) -> int:
    app.held = b"x" * (megabytes * 2**20)
    return os.getpid()
"""


class Stage:
    """A fleet over the tasks above, what it says, and the app."""

    def __init__(self, folder: Path, orders: Orders, processes: int, recycling: Recycling | None, url: str) -> None:
        self.folder, self.said, self.changed = folder, list[str](), Signal()
        self.fleet = Fleet(orders, processes, self._say, lambda *_: self.changed.send(), recycling=recycling)
        self.app = App(url)

    def _say(self, text: str) -> None:
        self.said.append(text)
        self.changed.send()

    async def until_said(self, pattern: str, after: int = 0) -> str:
        """The first line that matches, from this number on."""

        def found() -> str | None:
            return next((line for line in self.said[after:] if re.search(pattern, line)), None)

        try:
            return str(await self.changed.until(found, repr(pattern)))
        except AssertionError as error:
            raise AssertionError(f"{error}; said: {self.said}") from error

    async def enqueue(self, task: str, *args: object) -> Job[int]:
        return await self.app.enqueue(self.app.stub(f"jobs.{task}").job(*args))

    async def run(self, task: str, *args: object) -> int:
        return int(await (await self.enqueue(task, *args)).result(timeout=60))


Made = Callable[..., AbstractAsyncContextManager[Stage]]


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    """Runs a fleet until the end of a `with`, then stops it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(worker_process, "EVERY", 0.05)
    monkeypatch.setattr(stuck_watch, "EVERY", 0.05)

    @asynccontextmanager
    async def made(
        processes: int,
        recycling: Recycling | None = None,
        *,
        ordered: bool = False,
        grace: float = 30.0,
        lease: float | None = None,
        tasks: str = "",
        url: str = URL,
    ) -> AsyncIterator[Stage]:
        (tmp_path / "jobs.py").write_text((TASKS + tasks).replace(URL, url))
        orders = Orders(app="jobs:app", grace=grace, ordered=ordered, lease=lease)
        found = Stage(tmp_path, orders, processes, recycling, url)
        running = asyncio.create_task(found.fleet.run())
        try:
            await found.changed.until(lambda: found.changed.sent >= processes, "all processes")
            async with found.app:
                yield found
            found.fleet.stop()
            assert await running == 0
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    return made
