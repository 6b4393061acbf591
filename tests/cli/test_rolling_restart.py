"""Worker processes are replaced under load: by SIGHUP, by SIGTERM to each process, and by recycling."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.cli.tools import Command
from tests.servers import valkey
from tests.waiting import until
from treadle import App, Job
from treadle.core.model import State
from treadle_testkit.shows import shows

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="the supervisor needs signals and process groups"),
]

PROCESSES = 4
STARTS = 90.0  # s in which four processes start one after the other on a machine that does other work, too
TASKS = """
import asyncio
import os

from treadle import App, Worker, current

app = App({url!r})
runs = os.open("runs", os.O_WRONLY | os.O_CREAT | os.O_APPEND)


@app.task
async def work(number: int) -> int:
    os.write(runs, f"{{current().id}} {{os.getpid()}}\\n".encode())
    await asyncio.sleep(2.0 if number % 50 == 0 else 0.4)  # some outlast the life of their process
    return number
"""


async def produce(app: App, enough: asyncio.Event) -> list[Job[int]]:
    """Keep about 40 jobs unfinished until it is enough -> all jobs."""
    work, calls = app.stub("jobs.work"), list[list[Job[int]]]()
    while not enough.is_set():
        first = 20 * len(calls)
        calls.append(await app.enqueue([work.job(number) for number in range(first, first + 20)]))
        if len(calls) > 2:
            await asyncio.gather(*(job.ended(timeout=60) for job in calls[-3]))
    return [job for call in calls for job in call]


async def restart_all(worker: Command, app: App) -> None:
    """Restart all processes by SIGHUP, then each by SIGTERM."""
    worker.signal(signal.SIGHUP)
    await asyncio.to_thread(worker.wait_for, "will be replaced: SIGHUP")
    await asyncio.to_thread(worker.wait_for, "all worker processes were replaced", STARTS)
    for each in (await app.queues.stats()).workers:
        with suppress(ProcessLookupError):  # it has ended meanwhile
            os.kill(each.pid, signal.SIGTERM)
            await until(lambda pid=each.pid: not is_there(pid), "the end of a process")


async def recycle_two(worker: Command, app: App) -> None:
    """Wait until two processes were recycled."""
    for _ in range(2):
        await asyncio.to_thread(worker.wait_for, "will be replaced: it has started")
        await asyncio.to_thread(worker.wait_for, "lets its running jobs end", STARTS)


def is_there(pid: int) -> bool:
    """Whether the process runs, or its parent has not yet seen its end."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture(autouse=True)
def hang_ups() -> Iterator[None]:
    """Started with `nohup`, this process ignores SIGHUP, and so would the processes that it starts."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


LEAVING = """
import atexit
import os
import sys
import time

from treadle import App

app = App("sqlite:///jobs.db")


@app.task
def work() -> None: ...


@atexit.register
def leaving() -> None:
    print("leaving", os.getpid(), file=sys.stderr, flush=True)
    while not os.path.exists("go"):
        time.sleep(0.01)
"""


async def leaving(worker: Command) -> int:
    """Let the only process be replaced -> the pid of the old one, once it is at its exit."""
    await asyncio.to_thread(worker.wait_for, "claiming")
    worker.signal(signal.SIGHUP)
    return int((await asyncio.to_thread(worker.wait_for, "leaving", STARTS)).split()[-1])


@shows("a stop signal to a worker process that is leaving already is ignored; a second one ends it")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_to_a_process_that_leaves_is_ignored_once(number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text(LEAVING)
    with Command("worker", "jobs:app", "--processes", "1", cwd=tmp_path) as worker:
        pid = await leaving(worker)
        os.kill(pid, number)
        (tmp_path / "go").touch()
        await until(lambda: not is_there(pid), "the end of the process")
        worker.signal(signal.SIGTERM)
        assert await asyncio.to_thread(worker.ended) == 0, worker.stderr
    assert not [line for line in worker.said if f"pid {pid}" in line and "was replaced and" in line]


async def test_a_process_that_hangs_at_its_exit_can_be_stopped(tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text(LEAVING)
    with Command("worker", "jobs:app", "--processes", "1", cwd=tmp_path) as worker:
        pid = await leaving(worker)

        def stopped() -> bool:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
            return not is_there(pid)

        await until(stopped, "the end of the process")
        await asyncio.to_thread(worker.wait_for, f"(pid {pid}) was replaced and was killed by SIGTERM")
        (tmp_path / "go").touch()
        worker.signal(signal.SIGTERM)
        assert await asyncio.to_thread(worker.ended) == 0, worker.stderr


Act = Callable[[Command, App], Awaitable[None]]


@shows("replacing worker processes under load loses no job, runs none twice and counts no attempt")
@pytest.mark.parametrize(
    ("words", "act", "processes"),
    [
        (["--processes", str(PROCESSES)], restart_all, PROCESSES),
        (["--processes", "2", "--max-jobs", "60"], recycle_two, 2),
    ],
    ids=["restarts", "recycling"],
)
async def test_jobs_run_once_while_processes_are_replaced(
    words: list[str], act: Act, processes: int, tmp_path: Path
) -> None:
    url = f"{valkey.url()}?ns=rolling{os.getpid()}{act.__name__}"
    (tmp_path / "jobs.py").write_text(TASKS.format(url=url))
    with Command("worker", "jobs:app", "--concurrency", "10", *words, cwd=tmp_path) as worker:
        await asyncio.to_thread(worker.wait_for, "claiming")
        async with App(url) as app:
            enough = asyncio.Event()
            producing = asyncio.create_task(produce(app, enough))
            await act(worker, app)
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
    assert len({pid for _, pid in runs}) > processes
    assert "killed" not in worker.stderr
