"""What open dashboards cost: CPU of server and storage, looks at the storage, and the time that an enqueue takes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
import time
from collections.abc import AsyncIterator

import aiohttp

from benchmarks.dashboard.served import cpu
from treadle import App
from treadle.core.ids import UuidV7
from treadle.core.model import NewJob
from treadle.storage.contract import Storage

PACE = 0.005  # s between two enqueue calls: 200 a second, far from what the storages can do


class Round:
    """The figures of one round: CPU as percent of one core, looks a second, ms of a look, p99 of an enqueue in ms."""

    def __init__(self, viewers: int, seconds: float) -> None:
        self.viewers, self.seconds = viewers, seconds
        self.busy = self.p99 = 0.0
        self.looks: dict[float, float] = {}  # when -> ms, of all looks that a viewer received

    @property
    def rate(self) -> float:
        return len(self.looks) / self.seconds

    @property
    def cost(self) -> float:
        return statistics.median(self.looks.values()) if self.looks else 0.0


@contextlib.asynccontextmanager
async def watching(url: str, number: int, found: Round) -> AsyncIterator[None]:
    """That many open event streams; the first one notes each look."""
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:

        async def view(notes: bool) -> None:
            async with session.get(f"{url}/v1/overview/events") as answer:
                async for line in answer.content:
                    if notes and line.startswith(b"data: {") and b'"cost_ms"' in line:
                        look = json.loads(line[6:])
                        found.looks[look["at"]] = look["cost_ms"]

        tasks = [asyncio.create_task(view(index == 0)) for index in range(number)]
        await asyncio.sleep(2)  # the first look, and the connections, are not what is measured
        found.looks.clear()
        try:
            yield
        finally:
            for each in tasks:
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def enqueuing(storage: Storage, seconds: float) -> float:
    """Enqueue single jobs at a steady pace -> the 99th percentile of a call in ms."""
    new_id, took = UuidV7(), []
    end = time.perf_counter() + seconds
    while (begun := time.perf_counter()) < end:
        await storage.enqueue([NewJob(id=new_id(), task="bench.dashboard", queue="bench-dashboard")])
        took.append(time.perf_counter() - begun)
        await asyncio.sleep(max(0.0, PACE - took[-1]))
    return statistics.quantiles(took, n=100)[98] * 1000


async def measured(app: App, url: str, pids: list[int], viewers: int, seconds: float) -> Round:
    """One round with that many viewers: first the CPU with nothing else going on, then the time of an enqueue."""
    found = Round(viewers, seconds)
    async with watching(url, viewers, found):
        before = cpu(pids)
        await asyncio.sleep(seconds)
        found.busy = (cpu(pids) - before) / seconds * 100
        looks = dict(found.looks)
        found.p99 = await enqueuing(app.storage, seconds)
        found.looks = looks
    return found
