"""Deploys and stuck processes of whole fleets, each on every storage that several processes can share."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cli.tools import Command
from tests.fixtures import LASTING, a_url
from tests.waiting import until
from treadle import App, Job
from treadle.core.model import Record, State
from treadle_testkit.shows import shows

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="the supervisor needs signals and process groups"),
]

TASKS = """
import asyncio
import ctypes
import os
import time
from pathlib import Path

from treadle import App

app = App({url!r})
runs = os.open("runs", os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def begun(name):
    os.write(runs, f"{{name}} {{os.getpid()}}\\n".encode())


@app.task
async def in_loop() -> str:
    begun("in_loop")
    while not Path("last").exists():
        await asyncio.sleep(0.05)
    return "done"


@app.task
def in_thread() -> str:
    begun("in_thread")
    while not Path("last").exists():
        time.sleep(0.05)
    return "done"


@app.task(kind="process")
def in_process() -> str:
    begun("in_process")
    while not Path("last").exists():
        time.sleep(0.05)
    return "done"


@app.batch(size=2, max_wait=0.2)
def in_batch(numbers: list[int]) -> list[str]:
    begun("in_batch")
    while not Path("last").exists():
        time.sleep(0.05)
    return ["done"] * len(numbers)


@app.task
def keep_lock(seconds: float) -> str:
    begun("keep_lock")
    while not Path("hold").exists():  # until the event loop has nothing to do
        time.sleep(0.02)
    ctypes.PyDLL(None).usleep(int(seconds * 1_000_000))
    begun("kept_lock")
    return "done"
"""
NAMES = ("in_loop", "in_thread", "in_process", "in_batch")
LEASE = 4.0


@pytest.fixture(params=LASTING)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with a_url(request.param, tmp_path) as url:
        (tmp_path / "jobs.py").write_text(TASKS.format(url=url))
        yield url


def runs(folder: Path) -> Counter[str]:
    """How often a function of each name has begun."""
    file = folder / "runs"
    return Counter(line.split()[0] for line in file.read_text().splitlines()) if file.exists() else Counter()


async def enqueue(app: App) -> list[Job[str]]:
    """A job of each kind, and two items of a batch."""
    calls = [app.stub(f"jobs.{name}").job() for name in NAMES[:-1]]
    return await app.enqueue([*calls, *(app.stub("jobs.in_batch").job(number) for number in range(2))])


async def rows(app: App, jobs: list[Job[str]]) -> list[Record]:
    return [await app.jobs.get(job) for job in jobs]


@shows("jobs longer than the grace outlast any number of deploys: async, in threads, in processes and in batches")
@pytest.mark.parametrize("deploys", [3, pytest.param(20, marks=[pytest.mark.soak, pytest.mark.timeout(900)])])
async def test_rolling_deploys_charge_nothing(url: str, deploys: int, tmp_path: Path) -> None:
    words = "worker", "jobs:app", "--grace", "0.5", "--lease", str(LEASE)
    async with App(url) as app:
        jobs = await enqueue(app)
        old = Command(*words, cwd=tmp_path)
        for deploy in range(1, deploys + 1):
            with old:
                await until(lambda deploy=deploy: all(runs(tmp_path)[name] >= deploy for name in NAMES), "all jobs")
                new = Command(*words, cwd=tmp_path)
                await asyncio.to_thread(new.wait_for, "claiming")
                old.signal(signal.SIGTERM)
                assert await asyncio.to_thread(old.ended) == 0, old.stderr
            old = new
        (tmp_path / "last").touch()
        with old:
            assert [await job.result(timeout=60) for job in jobs] == ["done"] * len(jobs)
            ended = await rows(app, jobs)
            old.signal(signal.SIGTERM)
            assert await asyncio.to_thread(old.ended) == 0, old.stderr
    assert {(row.state, row.attempt) for row in ended} == {(State.SUCCEEDED, 1)}
    assert "suspect" not in old.stderr


@shows("while code keeps the interpreter's lock for two leases, no job is run a second time by another worker")
async def test_no_job_runs_twice_while_the_interpreters_lock_is_kept(url: str, tmp_path: Path) -> None:
    words = "worker", "jobs:app", "--lease", str(LEASE)
    async with App(url) as app:
        with ExitStack() as stack:
            workers = [stack.enter_context(Command(*words, cwd=tmp_path)) for _ in range(2)]
            for worker in workers:
                await asyncio.to_thread(worker.wait_for, "claiming")
            jobs = [job for _ in range(3) for job in await enqueue(app)]
            job = await app.stub("jobs.keep_lock").enqueue(2 * LEASE)
            everything = Counter({"in_loop": 3, "in_thread": 3, "in_process": 3, "keep_lock": 1})
            await until(lambda: runs(tmp_path) >= everything, "all jobs")
            (tmp_path / "hold").touch()
            await until(lambda: runs(tmp_path)["kept_lock"], "the end of the lock")
            (tmp_path / "last").touch()
            assert [await each.result(timeout=60) for each in (job, *jobs)] == ["done"] * (len(jobs) + 1)
            ended = await rows(app, jobs)
            for worker in workers:
                worker.signal(signal.SIGTERM)
                assert await asyncio.to_thread(worker.ended) == 0, worker.stderr
    found = runs(tmp_path)
    assert all(found[name] <= times for name, times in everything.items()), found
    assert {(row.state, row.attempt) for row in ended} == {(State.SUCCEEDED, 1)}
