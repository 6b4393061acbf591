"""Functions that fork: the copy makes other ids, sends no answers, and ends where the function ends."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.concurrency import fork_tasks as work
from tests.worker.test_processes import record, run, task_of
from treadle import App, Middleware, ProcessDied, Record, State, Worker
from treadle.admin.estimate import in_turn
from treadle.core.model import NewJob
from treadle.core.query_model import Query
from treadle.execution.context import Context
from treadle.execution.job_run import JobRun, enter, running_here
from treadle.worker.executors.processes import ProcessPool

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


@pytest.fixture
async def pool() -> AsyncIterator[ProcessPool]:
    made = ProcessPool()
    yield made
    await made.close()


def said_by_a_child(function: Callable[[], str]) -> str:
    """Call the function in a forked copy of this process. Return its result."""
    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        os.write(writing, function().encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    return text


def three() -> str:
    run = running_here()
    assert run is not None
    return " ".join(run.new_id() for _ in range(3))


def a_run() -> JobRun:
    return JobRun(Record(job=NewJob(id="j", task="t"), version=4, state=State.RUNNING), "w", lambda: None)


def test_a_child_makes_estimates_after_its_parent_did() -> None:
    """As in a web server that asks once and then forks: the thread of the estimates exists in the parent only."""
    assert asyncio.run(in_turn(lambda: "7")) == "7"
    assert said_by_a_child(lambda: asyncio.run(asyncio.wait_for(in_turn(lambda: "8"), 60))) == "8"


@pytest.mark.parametrize("counted", [False, True])
def test_a_forked_copy_of_a_run_makes_other_ids(counted: bool) -> None:
    made: list[str] = []

    def in_a_thread() -> None:
        enter(a_run())
        if counted:  # the fork copies the counter too, not only its start
            made.extend(three().split())
        made.extend(said_by_a_child(three).split())
        made.extend(said_by_a_child(lambda: said_by_a_child(three)).split())
        made.extend(three().split())

    thread = threading.Thread(target=in_a_thread)
    thread.start()
    thread.join()
    assert len(made) == len(set(made)) == (12 if counted else 9)
    for at in range(0, len(made), 3):
        assert made[at : at + 3] == sorted(made[at : at + 3])


async def test_jobs_that_the_pool_of_a_process_task_enqueues_are_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    app = App("sqlite:///jobs.db?synchronous=normal")
    task = app.task(name=work.fans_out.name, kind="process")(work.fans_out.function)
    leaf = app.task(name=work.leaf.name)(work.leaf.function)
    async with app, Worker(app):
        ids = await (await task.enqueue(8)).result(30)
        assert len(set(ids)) == 8
        page = await app.storage.find(Query(task=leaf.name, limit=100))
        assert {row.id for row in page.records} == set(ids)


class Audits(Middleware):
    """Middleware that enqueues a job before and after each run of a process task, as tracing and auditing do."""

    def __init__(self) -> None:
        self.leaf: Any = None

    async def run(self, context: Context, proceed: Callable[[], Any]) -> Any:
        if context.task == work.returns_a_flow.name:
            await self.leaf.enqueue(100)
        return await proceed()


async def test_middleware_that_enqueues_around_a_process_task_takes_no_child_of_it() -> None:
    audits = Audits()
    app = App("memory://")
    app.middleware(audits)
    task = app.task(name=work.returns_a_flow.name, kind="process")(work.returns_a_flow.function)
    audits.leaf = app.task(name=work.leaf.name)(work.leaf.function)
    async with app, Worker(app):
        assert sorted(await (await task.enqueue(3)).result(30)) == [0, 1, 2]  # in the order in which threads ended
        page = await app.storage.find(Query(task=work.leaf.name, limit=100))
        assert len(page.records) == 4


@pytest.mark.parametrize("how", ["exit", "raise", "return"])
async def test_a_forked_copy_of_a_process_sends_no_result(pool: ProcessPool, how: str) -> None:
    for n in range(1, 5):
        assert await run(pool, work.forks_and_exits, how, n) == n * n
    assert len(pool.pids) == 1
    assert await run(pool, work.forks_a_pool, 7) == [7, 7]


@pytest.mark.parametrize("kind", ["done", "raised", "noise"])
async def test_an_answer_to_another_question_is_not_taken(
    pool: ProcessPool, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert await run(pool, work.forks_a_pool, 1) == [1, 1]
    [before] = pool.pids
    task = task_of(work.answers_for_another)
    with pytest.raises(ProcessDied):
        await pool.run(task, record(task, kind, 1))
    assert before not in pool.pids
    assert await run(pool, work.forks_a_pool, 2) == [2, 2]


PROGRAM = """
import asyncio, os, sys, time
from pathlib import Path
from treadle import App, Retry, Worker

app = App(URL, retry=Retry(attempts=1))

def forks(how):
    if (pid := os.fork()) == 0:
        if how == "exit":
            sys.exit(7)
        if how == "raise":
            raise ValueError("in the child")
        return -1
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

@app.task
async def coroutine(how: str) -> int:
    return forks(how)

@app.task
def thread(how: str) -> int:
    return forks(how)

@app.task
async def steps(how: str) -> int:
    from treadle import current
    return await current().step("forks", forks, how)

async def main():
    async with app, Worker(app, concurrency=4):
        for task in (coroutine, thread, steps):
            for how in ("exit", "raise", "return"):
                async with asyncio.timeout(30):
                    job = await task.enqueue(how)
                    print(task.name.rpartition(".")[2], how, await job.result(), flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize("url", ["memory://", "sqlite:///jobs.db"])
def test_a_child_that_a_task_forked_ends_with_the_function_and_takes_nothing_with_it(tmp_path: Path, url: str) -> None:
    program = PROGRAM.replace("URL", repr(url))
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stderr
    codes = {"exit": 7, "raise": 1, "return": 0}
    expected = [f"{task} {how} {code}" for task in ("coroutine", "thread", "steps") for how, code in codes.items()]
    assert sorted(ran.stdout.splitlines()) == sorted(expected)


INTERRUPTED = """
import asyncio, os
from treadle import App, JobFailed, Retry, Worker

app = App(URL, retry=Retry(attempts=1))

@app.task
async def interrupts() -> None:
    raise KeyboardInterrupt

@app.task
def in_a_thread() -> None:
    raise KeyboardInterrupt

@app.task
def goes_on() -> str:
    return "went on"

async def main():
    async with app, Worker(app):
        for task in (interrupts, in_a_thread):
            try:
                await (await task.enqueue()).result(30)
            except JobFailed as failed:
                print(failed.reason)
        print(await (await goes_on.enqueue()).result(30))

asyncio.run(main())
"""


@pytest.mark.parametrize("url", ["memory://", "sqlite:///jobs.db"])
def test_a_keyboard_interrupt_that_a_task_raises_is_a_failed_attempt(tmp_path: Path, url: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", INTERRUPTED.replace("URL", repr(url))],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.stdout.splitlines() == ["error", "error", "went on"], ran.stderr
    assert ran.returncode == 0
