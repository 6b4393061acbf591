"""A process keeps nothing of the jobs that it has run, and nothing of an app that is closed."""

from __future__ import annotations

import asyncio
import functools
import gc
import itertools
import operator
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures import KINDS, a_url
from tests.kit import work
from treadle import App, Flow, Limit, Task, chain, current, flow
from treadle_testkit.shows import shows

CYCLES = 5
# A loop keeps cancelled timers until they are due; sqlite3 keeps references to up to 200 ended cursors of a connection.
PASSING = ("TimerHandle", "Context", "ReferenceType")

pytestmark = pytest.mark.slow


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with a_url(request.param, tmp_path) as url:
        yield url


def make(url: str) -> tuple[App, Sequence[Task[[int], Any]]]:
    """An app with a task of each kind, that keeps its rows for as short a time as possible."""
    app = App(url)
    app.limits.declare(Limit("two", slots=2))

    @app.task(name="plain", limits=["two"], keep=0)
    async def plain(n: int) -> int:
        return n

    @app.task(name="thread", keep=0)
    def thread(n: int) -> int:
        return n

    @app.task(name="durable", keep=0)
    async def durable(n: int) -> int:
        async def pay() -> int:
            return n

        paid = await current().step("pay", pay)
        await current().sleep(0.01)
        return paid

    @app.task(name="many", keep=0)
    async def many(n: int) -> Flow[int]:
        return flow(plain.job(n + each) for each in range(3))

    @app.task(name="chained", keep=0)
    async def chained(n: int) -> Any:
        return chain(plain.job(n), plain)

    return app, (plain, thread, durable, many, chained)


async def run_jobs(app: App, tasks: Sequence[Task[[int], Any]], times: int = 1) -> None:
    jobs = [await task.enqueue(1) for task in tasks for _ in range(times)]
    for job in jobs:
        await job.ended(timeout=60)


def left_by(cycle: Callable[[], None]) -> Counter[str]:
    """Count the objects by type, files and threads that each cycle adds. Caches and pools grow only in some of them."""
    counts = list[Counter[str]]()
    for _ in range(5):
        for _ in range(CYCLES):
            cycle()
        gc.collect()
        counts.append(_kept())
    always = functools.reduce(operator.and_, (later - before for before, later in itertools.pairwise(counts)))
    return Counter({name: count for name, count in always.items() if count >= CYCLES and name not in PASSING})


def _kept() -> Counter[str]:
    kept = Counter(type(each).__name__ for each in gc.get_objects())
    kept["threads"] = threading.active_count()
    if sys.platform == "linux":
        kept["files"] = len(os.listdir("/proc/self/fd"))
    return kept


@shows("a process keeps nothing of an app that it has closed")
def test_a_closed_app_leaves_nothing(url: str) -> None:
    async def fleet() -> None:
        app, tasks = make(url)
        async with app, work(app):
            await run_jobs(app, tasks)
            await app.jobs.list(limit=5)

    assert not left_by(lambda: asyncio.run(fleet()))


def test_a_closed_app_of_synchronous_code_leaves_nothing(url: str) -> None:
    def program() -> None:
        app, (plain, *_) = make(url)
        plain.enqueue_sync(1)
        app.sync.close()

    assert not left_by(program)


@shows("a worker keeps nothing of the jobs that it has run")
def test_jobs_leave_nothing_in_a_worker(url: str) -> None:
    if url == "memory://":
        pytest.skip("its rows are in the process")
    with asyncio.Runner() as runner:
        app, tasks = make(url)
        worker = work(app, concurrency=2)  # as many threads

        async def begin() -> None:
            await app.open()
            await worker.start()

        async def end() -> None:
            await worker.stop()
            await app.close()

        runner.run(begin())
        left = left_by(lambda: runner.run(run_jobs(app, tasks, 5)))
        runner.run(end())
    assert not left
