"""Rolling restarts of four worker processes under load: by SIGHUP, by SIGTERM to each process, and by recycling."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from tests.cli.tools import Command
from tests.servers import valkey
from tests.waiting import until
from treadle import App, Job
from treadle.core.model import State
from treadle.testing.shows import shows

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the supervisor needs signals and process groups")

PROCESSES = 4
TASKS = """
import asyncio
import os

from treadle import App, Worker, current

app = App({url!r})
runs = os.open("runs", os.O_WRONLY | os.O_CREAT | os.O_APPEND)


@app.task
async def work(number: int, seconds: float) -> int:
    os.write(runs, f"{{current().id}} {{os.getpid()}}\\n".encode())
    await asyncio.sleep(2.0 if number % 50 == 0 else seconds)  # some outlast the life of their process
    return number
"""


async def produce(app: App, calm: asyncio.Event, enough: asyncio.Event) -> list[Job[int]]:
    """Keep about 100 jobs unfinished, then 40 longer ones, so that recycling is rare. Return all jobs."""
    work, calls = app.stub("jobs.work"), list[list[Job[int]]]()
    while not enough.is_set():
        first, seconds, most = 20 * len(calls), *((1.0, 2) if calm.is_set() else (0.4, 5))
        calls.append(await app.enqueue([work.job(number, seconds) for number in range(first, first + 20)]))
        if len(calls) > most:
            await asyncio.gather(*(job.ended(timeout=60) for job in calls[-most - 1]))
    return [job for call in calls for job in call]


async def restart_all(worker: Command, app: App, calm: asyncio.Event) -> None:
    """Wait until a process was recycled, then restart all by SIGHUP, then each by SIGTERM."""
    await asyncio.to_thread(worker.wait_for, "will be replaced: it has started")
    calm.set()
    await asyncio.to_thread(worker.wait_for, "lets its running jobs end")
    worker.signal(signal.SIGHUP)
    await asyncio.to_thread(worker.wait_for, "will be replaced: SIGHUP")
    for _ in range(PROCESSES - 1):
        await asyncio.to_thread(worker.wait_for, "lets its running jobs end")
    await asyncio.to_thread(worker.wait_for, "all worker processes were replaced")
    for each in (await app.queues.stats()).workers:
        with suppress(ProcessLookupError):  # it has ended meanwhile
            os.kill(each.pid, signal.SIGTERM)
            await until(lambda pid=each.pid: not is_there(pid), "the end of a process")


def is_there(pid: int) -> bool:
    """Whether the process runs, or its parent has not yet seen its end."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@shows("rolling restarts of four worker processes under load lose no job, run none twice and count no attempt")
async def test_rolling_restarts_under_load(tmp_path: Path) -> None:
    url = f"{valkey.url()}?ns=rolling{os.getpid()}"
    (tmp_path / "jobs.py").write_text(TASKS.format(url=url))
    words = ("worker", "jobs:app", "--processes", str(PROCESSES), "--max-jobs", "150", "--concurrency", "10")
    with Command(*words, cwd=tmp_path) as worker:
        await asyncio.to_thread(worker.wait_for, "claiming")
        async with App(url) as app:
            calm, enough = asyncio.Event(), asyncio.Event()
            producing = asyncio.create_task(produce(app, calm, enough))
            await restart_all(worker, app, calm)
            enough.set()
            jobs = await producing
            results = [await job.result(timeout=60) for job in jobs]
            rows = [await app.jobs.get(job) for job in jobs]
        worker.signal(signal.SIGTERM)
        assert await asyncio.to_thread(worker.ended) == 0, worker.stderr
    assert results == list(range(len(jobs)))
    assert {(row.state, row.attempt, row.lost) for row in rows} == {(State.SUCCEEDED, 1, 0)}
    runs = [line.split() for line in (tmp_path / "runs").read_text().splitlines()]
    assert Counter(id for id, _ in runs) == dict.fromkeys((job.id for job in jobs), 1)
    assert len({pid for _, pid in runs}) > 2 * PROCESSES
    assert "killed" not in worker.stderr
