"""Commands of Treadle as processes: started in a folder, watched by their output, always stopped."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from tests.waiting import until

HANDLER = """
import asyncio, os
from treadle import App, current

app = App("sqlite:///jobs.db")
book = os.open("book", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

@app.delayed_handler
async def handle(payload):
    here = current()
    os.write(book, f"{here.worker.partition('#')[0]} {here.id} {here.headers['dueTime']} {payload}\\n".encode())
    await asyncio.sleep(0.2)
"""

CLEAN = {name: text for name, text in os.environ.items() if not name.startswith("TREADLE_")}


class Command:
    """One command that runs until it is stopped."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process, self.said = process, ""
        self._more = asyncio.Event()
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stderr is not None
        while line := await self.process.stderr.readline():
            self.said += line.decode()
            self._more.set()
        self._more.set()

    async def says(self, words: str, times: int = 1) -> None:
        """Wait until it has printed that, so many times."""
        async with asyncio.timeout(60):
            while self.said.count(words) < times:
                assert not self._reading.done(), self.said
                self._more.clear()
                await self._more.wait()

    async def url(self) -> str:
        await self.says("http://")
        return "http://127.0.0.1:" + self.said.partition("http://")[2].split()[0].rpartition(":")[2]

    async def stop(self, how: signal.Signals = signal.SIGINT) -> int:
        if self.process.returncode is None:
            self.process.send_signal(how)
        try:
            return await asyncio.wait_for(self.process.wait(), 60)
        finally:
            if self.process.returncode is None:
                self.process.kill()
                await self.process.wait()
            await self._reading


@asynccontextmanager
async def command(folder: Path, *words: str, **environment: str) -> AsyncIterator[Command]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "treadle",
        *words,
        cwd=folder,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env=CLEAN | environment,
    )
    made = Command(process)
    try:
        yield made
    finally:
        await made.stop()


async def answer(folder: Path, *words: str, **environment: str) -> Any:
    """The JSON output of a command."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "treadle",
        *words,
        "--json",
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=CLEAN | environment,
    )
    out, _ = await process.communicate()
    return json.loads(out)


async def post(url: str, due_in: list[float]) -> list[str]:
    """Post jobs that are due after these seconds, counted from one time. Return their ids."""
    ids, now = [], time.time()
    async with aiohttp.ClientSession() as session:
        for number, seconds in enumerate(due_in):
            body = {"payload": str(number), "dueTime": round(now + seconds, 3)}
            async with session.post(url, json=body) as got:
                assert got.status == 200, await got.text()
                ids.append((await got.json())["jobId"])
    return ids


def booked(folder: Path) -> list[tuple[str, str, float]]:
    """(worker, id, due time) of each start, in order."""
    file = folder / "book"
    lines = file.read_text().splitlines() if file.exists() else []
    return [(worker, id, float(due)) for worker, id, due, _ in map(str.split, lines)]


async def handled(folder: Path, number: int) -> list[tuple[str, str, float]]:
    await until(lambda: len(booked(folder)) >= number, f"{number} starts", 90)
    return booked(folder)


async def leader(folder: Path, *words: str, but: int = 0) -> Any:
    """The leader, once a process other than `but` leads."""

    async def leading() -> list[Any]:
        return [
            each for each in await answer(folder, "queues", "workers", *words) if each["leads"] and each["pid"] != but
        ]

    return (await until(leading, "a leader"))[0]
