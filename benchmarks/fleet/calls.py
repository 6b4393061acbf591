"""Measures calls instead of drains: single enqueues, waiting for results, acts on many jobs, statistics and lists.

Each function returns figures by row. Rates are calls per second, and for acts jobs per second. `plain` is the same call
on an idle fleet or a small storage, and for acts the claim and settle of as many jobs.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from benchmarks.acts import ACTS, prepare
from benchmarks.fleet.drain import KINDS, Effort, Shape, fleet
from benchmarks.fleet.judge import Figure
from benchmarks.fleet.tasks import Kit, define
from treadle import App
from treadle.core.model import NewJob

Empty = Callable[[], AbstractContextManager[str]]  # the URL of an empty storage
Rows = dict[str, Figure]

SLOTS: Final = 20  # per worker
HALF: Final = 0.5  # fraction of one worker's slots that the load uses
TICK: Final = 0.1  # seconds between two enqueues of the load
LEAST: Final = 1e-3  # seconds; shorter times are noise
FEW: Final = 1_000  # stored jobs with which reading is cheap
CALL: Final = 1_000  # jobs per enqueue call
RARE: Final = 500  # one job in this many has the label to find
CALLS: Final = 12  # calls of each kind; the first two do not count
LONGEST: Final = 10.0  # seconds for all calls of one kind
LOOKS: Final[dict[str, Callable[[App], Awaitable[object]]]] = {
    "stats": lambda app: app.queues.stats(),
    "list": lambda app: app.jobs.list(limit=50),
    "list-queue": lambda app: app.jobs.list(state="ready", order="queue", limit=50),
    "list-label": lambda app: app.jobs.list(label="rare", limit=2),
    "list-none": lambda app: app.jobs.list(state="failed", limit=50),
    "get": lambda app: app.jobs.get(_id(FEW // 2)),
    "explain": lambda app: app.jobs.explain(_id(FEW // 2)),
}


def singles(empty: Empty, workers: int, effort: Effort) -> Rows:
    """Processes that enqueue one job after the other."""
    with empty() as url:
        asyncio.run(_opened(url))
        command = [sys.executable, "-m", "benchmarks.singles", url, str(effort.seconds)]
        children = [
            subprocess.Popen([*command, str(number)], stdout=subprocess.PIPE, text=True) for number in range(workers)
        ]
        counts = [int(child.communicate()[0]) for child in children]
    return {"single-enqueues": Figure(rate=sum(counts) / effort.seconds)}


async def _opened(url: str) -> None:
    """Create the tables before several processes do."""
    async with App(url):
        pass


def waiting(empty: Empty, workers: int, effort: Effort) -> Rows:
    """How soon an enqueued job starts and returns its result, on an idle fleet and during a load of naps.

    The load is half of what one worker can do, for any number of workers.
    """
    with empty() as url, tempfile.TemporaryDirectory() as folder:
        asyncio.run(_opened(url))
        paths = [Path(folder) / f"marks{number}" for number in range(workers)]
        with fleet(url, Shape("nap", workers, SLOTS), paths):
            return asyncio.run(_waiting(url, effort))


async def _waiting(url: str, effort: Effort) -> Rows:
    async with App(url) as app:
        define(app)
        idle = await _latencies(app, effort.seconds)
        load = asyncio.create_task(_load(app))
        try:
            await asyncio.sleep(KINDS["nap"] + TICK)
            busy = await _latencies(app, effort.seconds)
        finally:
            load.cancel()
            await asyncio.gather(load, return_exceptions=True)
    return {"pick-up": Figure(1 / busy[0], 1 / idle[0]), "result": Figure(1 / busy[1], 1 / idle[1])}


async def _latencies(app: App, seconds: float) -> tuple[float, float]:
    """Median seconds from the enqueue call to the function, and to the result."""
    kit, started, ended = Kit(app, 0.0), list[float](), list[float]()
    over = time.monotonic() + seconds
    while len(started) < 5 or time.monotonic() < over:
        before = time.monotonic()
        job = await app.enqueue(kit.job("moment"))
        begun = await job.result(timeout=30)
        started.append(begun - before)
        ended.append(time.monotonic() - before)
    return statistics.median(started[2:]), statistics.median(ended[2:])


async def _load(app: App) -> None:
    kit = Kit(app, KINDS["nap"])
    size = round(HALF * SLOTS * TICK / KINDS["nap"])
    while True:
        begun = time.monotonic()
        await app.enqueue([kit.job("plain") for _ in range(size)])
        await asyncio.sleep(max(TICK - (time.monotonic() - begun), 0.0))


def acts(empty: Empty, _: int, effort: Effort) -> Rows:
    """Acts on many jobs by a filter, compared with the claim and settle of as many."""
    took = dict[str, tuple[float, float]]()
    for name in ACTS:
        with empty() as url:
            took[name] = asyncio.run(_act(url, name, effort.acts))
    settled = took["retry"][0] - took["cancel"][0]  # both preparations store jobs; that for `retry` also fails them
    return {name: Figure(effort.acts / act, effort.acts / max(settled, LEAST)) for name, (_, act) in took.items()}


async def _act(url: str, name: str, count: int) -> tuple[float, float]:
    """Seconds of the preparation, and of the act."""
    state, act = ACTS[name]
    async with App(url) as app:
        begun = time.perf_counter()
        await prepare(app, state, count)
        stored = time.perf_counter()
        done = await act(app)
        ended = time.perf_counter()
    if done != count:
        raise RuntimeError(f"{name} changed {done} jobs, expected {count}")
    return stored - begun, ended - stored


def looks(empty: Empty, _: int, effort: Effort) -> Rows:
    """Statistics and lists with many stored jobs, compared with the same calls on a thousand."""
    with empty() as url:
        return asyncio.run(_looks(url, max(effort.rows, FEW)))


async def _looks(url: str, rows: int) -> Rows:
    async with App(url) as app:
        await _stored(app, 0, FEW)
        few = {name: await _look(app, name) for name in LOOKS}
        await _stored(app, FEW, rows)
        return {name: Figure(1 / await _look(app, name), 1 / few[name]) for name in LOOKS}


async def _stored(app: App, first: int, last: int) -> None:
    for start in range(first, last, CALL):
        await app.storage.enqueue(
            [
                NewJob(
                    id=_id(number), task="plain", payload="[0]", labels=("all",) if number % RARE else ("all", "rare")
                )
                for number in range(start, min(start + CALL, last))
            ]
        )


async def _look(app: App, name: str) -> float:
    """Median seconds of a call."""
    took, over = list[float](), time.monotonic() + LONGEST
    while len(took) < 3 or (len(took) < CALLS and time.monotonic() < over):
        begun = time.perf_counter()
        await LOOKS[name](app)
        took.append(time.perf_counter() - begun)
    return statistics.median(took[2:])


def _id(number: int) -> str:
    return f"j{number:07}"


GROUPS: Final[dict[str, tuple[Callable[[Empty, int, Effort], Rows], tuple[str, ...]]]] = {
    "singles": (singles, ("single-enqueues",)),
    "waiting": (waiting, ("pick-up", "result")),
    "acts": (acts, tuple(ACTS)),
    "looks": (looks, tuple(LOOKS)),
}
SCALED: Final = ("singles", "waiting")  # groups measured with each number of processes
