"""`current().transaction()`: the writes of a task and the outcome of its job are stored in one commit, or not at
all."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.kit import Told
from tests.waiting import Signal
from treadle import App, JobFailed, Retry, Stale, StorageUnavailable, Worker, current, flow
from treadle.core.job import Job
from treadle.core.limit_model import Limit
from treadle.core.model import Claim
from treadle.errors import BadSession, NestedTransaction
from treadle.execution.job_run import running_here
from treadle.execution.transaction import Open
from treadle.storage.sqlite import SqliteStorage
from treadle.storage.sqlite.run_transaction import RunTransaction
from treadle.tasks.options import Key
from treadle_testkit.shows import shows

ONCE = Retry(attempts=1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "app.db"


@pytest.fixture
async def app(path: Path) -> AsyncIterator[App]:
    app = App(f"sqlite:///{path}?synchronous=normal", retry=ONCE)
    async with app:
        with closing(sqlite3.connect(path)) as db:
            db.execute("CREATE TABLE ledger (what TEXT)")
            db.execute("CREATE TABLE late (what TEXT REFERENCES ledger (what) DEFERRABLE INITIALLY DEFERRED)")
        yield app


def ledger(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as db:
        return [what for (what,) in db.execute("SELECT what FROM ledger ORDER BY what")]


WRITE = "INSERT INTO ledger VALUES (?)"


@shows("`current().transaction()` commits the writes of a task, its new jobs and its success together")
async def test_writes_ending_and_jobs_within_are_one_commit(app: App, path: Path) -> None:
    seen = []

    @app.task
    async def next_one() -> str:
        return "next"

    @app.task
    async def pay() -> str:
        async with current().transaction() as tx:
            tx.execute(WRITE, ("paid",))
            await app.enqueue(next_one.job(), within=tx)
            seen.append((ledger(path), len((await app.jobs.list()).records)))
        seen.append((ledger(path), len((await app.jobs.list()).records)))
        return "done"

    told = Told(app)
    async with Worker(app):
        job = await pay.enqueue()
        assert await job.result(30) == "done"
        assert ledger(path) == ["paid"]
        await told.until("succeeded", 2)
    assert seen == [([], 1)] * 2
    assert told.names("succeeded", "lost", "failed") == ["succeeded", "succeeded"]


@pytest.mark.parametrize("how", ["object", "list of jobs"])
async def test_a_result_that_cannot_be_stored_rolls_back_and_fails_the_job_at_once(
    app: App, path: Path, how: str
) -> None:
    ran: list[int] = []

    @app.task(retry=Retry(attempts=5, base=0))
    async def pay() -> Any:
        ran.append(1)
        async with current().transaction() as tx:
            tx.execute(WRITE, ("paid",))
        return object() if how == "object" else [pay.job()]

    async with Worker(app):
        with pytest.raises(JobFailed) as failed:
            await (await pay.enqueue()).result(30)
    assert (failed.value.reason, ran, ledger(path)) == ("result", [1], [])


@pytest.mark.parametrize("fails", [False, True])
async def test_the_children_are_of_the_commit(app: App, path: Path, fails: bool) -> None:
    """The task's result is stored with its writes. If the storage refuses it, everything is rolled back and the attempt
    fails."""

    @app.task
    async def child(number: int) -> int:
        return number

    @app.task
    async def parent() -> Any:
        async with current().transaction() as tx:
            tx.execute(WRITE, ("paid",))
        key = Key("held", conflict="raise")
        return flow(child.options(key=key).job(1), child.job(2))

    if fails:
        await child.options(key="held", delay=99).enqueue(0)
    async with Worker(app):
        job = await parent.enqueue()
        if fails:
            with pytest.raises(JobFailed, match="held"):
                await job.result(30)
        else:
            assert await job.workflow.result(30) == 2
    assert ledger(path) == ([] if fails else ["paid"])
    assert len((await app.jobs.list()).records) == (2 if fails else 3)


async def test_a_transaction_of_a_task_in_a_thread_commits_with_the_job(app: App, path: Path) -> None:
    @app.task
    def pay(fails: bool) -> str:
        with current().transaction() as tx:
            tx.execute(WRITE, (f"paid {fails}",))
        if fails:
            raise ZeroDivisionError
        return threading.current_thread().name

    async with Worker(app, concurrency=4):
        assert await (await pay.enqueue(False)).result(30) != threading.current_thread().name
        with pytest.raises(JobFailed, match="ZeroDivisionError"):
            await (await pay.enqueue(True)).result(30)
    assert ledger(path) == ["paid False"]


@shows("an attempt that raises leaves none of its writes and none of its jobs")
@pytest.mark.parametrize("where", ["inside", "after"])
async def test_an_attempt_that_raises_leaves_nothing(app: App, path: Path, where: str) -> None:
    """A job that was enqueued in the block is gone too, and the next attempt starts afresh."""

    @app.task(retry=Retry(attempts=2, base=0))
    async def pay() -> None:
        async with current().transaction() as tx:
            tx.execute(WRITE, (f"attempt {current().attempt}",))
            await app.enqueue(pay.options(id=f"child-{current().attempt}", delay=99).job(), within=tx)
            if where == "inside" and current().attempt == 1:
                raise ZeroDivisionError
        if current().attempt == 1:
            raise ZeroDivisionError

    async with Worker(app):
        await (await pay.enqueue()).result(30)
    assert ledger(path) == ["attempt 2"]
    assert {row.id for row in (await app.jobs.list(state="ready")).records} == {"child-2"}


async def test_an_exception_that_is_caught_outside_the_block(app: App, path: Path) -> None:
    """The exception rolled the block back; the function may begin another one."""

    @app.task
    async def pay() -> str:
        try:
            async with current().transaction() as tx:
                tx.execute(WRITE, ("one",))
                raise ZeroDivisionError
        except ZeroDivisionError:
            async with current().transaction() as tx:
                tx.execute(WRITE, ("two",))
        return "done"

    async with Worker(app):
        await (await pay.enqueue()).result(30)
    assert ledger(path) == ["two"]


async def test_the_transaction_of_a_lost_job_raises_and_writes_nothing(app: App, path: Path) -> None:
    """Another worker has taken the job over before the block, so its writes are refused there."""
    told: list[BaseException] = []
    went, taken = threading.Event(), threading.Event()

    @app.task
    def pay() -> None:
        went.set()
        taken.wait(30)
        try:
            with current().transaction() as tx:
                tx.execute(WRITE, ("paid",))
        except Stale as stale:
            told.append(stale)
            raise

    async with Worker(app):
        job = await pay.enqueue()
        await asyncio.to_thread(went.wait, 10)
        await app.jobs.cancel(job)
        taken.set()
    assert [type(each) for each in told] == [Stale]
    assert ledger(path) == []
    assert (await app.jobs.get(job)).state == "cancelled"


@shows("an attempt that ends its own transaction has failed")
async def test_a_refused_ending_is_a_failed_attempt(app: App, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @app.task
    async def pay() -> None:
        async with current().transaction() as tx:
            tx.execute("PRAGMA foreign_keys")
            tx.execute(WRITE, ("paid",))
            tx.execute("COMMIT")

    @app.task
    async def commits() -> None:
        async with current().transaction() as tx:
            tx.commit()

    async with Worker(app):
        with pytest.raises(JobFailed, match=r"has ended the transaction|is in autocommit mode"):
            await (await pay.enqueue()).result(30)
        with pytest.raises(JobFailed, match="when the function returns"):
            await (await commits.enqueue()).result(30)


WAITS: dict[str, Callable[[App, Job[Any, Any]], Coroutine[Any, Any, Any]]] = {
    "app.jobs.cancel": lambda app, job: app.jobs.cancel(job),
    "app.jobs.delete": lambda app, job: app.jobs.delete(state="cancelled"),
    "app.jobs.run_now": lambda app, job: app.jobs.run_now(job),
    "app.jobs.signal": lambda app, job: app.jobs.signal(job, "go", 1),
    "app.limits.set": lambda app, job: app.limits.set(Limit("api", slots=1)),
    "app.limits.pause": lambda app, job: app.limits.pause("api"),
    "app.queues.pause": lambda app, job: app.queues.pause("default"),
    "app.schedules.pause": lambda app, job: app.schedules.pause("nightly"),
    "waiting for job": lambda app, job: job.result(60),
}


@pytest.mark.parametrize("name", WAITS)
@pytest.mark.parametrize("thread", [False, True])
async def test_a_call_that_would_wait_for_its_own_transaction_is_refused_by_name(
    app: App, path: Path, name: str, thread: bool
) -> None:
    """The call raises at once, and the block continues."""

    @app.task(queue="nobody")
    async def other() -> None: ...

    job, call, found = await other.options(delay=3600).enqueue(), WAITS[name], list[str]()
    await app.jobs.cancel(await other.options(delay=3600).enqueue())
    await app.schedules.upsert("nightly", other.job(), cron="0 0 * * *")

    @app.task
    async def pay() -> None:
        async with current().transaction(timeout=60) as tx:
            tx.execute(WRITE, ("paid",))
            with pytest.raises(NestedTransaction) as caught:
                await call(app, job)
            found.append(str(caught.value))

    @app.task
    def pay_in_thread() -> None:
        with current().transaction(timeout=60) as tx:
            tx.execute(WRITE, ("paid",))
            with pytest.raises(NestedTransaction) as caught:
                app.sync.call(call(app, job))
            found.append(str(caught.value))

    async with Worker(app, queues=["default"]):
        await (await (pay_in_thread if thread else pay).enqueue()).result(30)
    assert found[0].startswith(name)
    assert ledger(path) == ["paid"]


@shows("a second transaction, or a call past the open one, raises `NestedTransaction`")
async def test_a_second_transaction_is_refused(app: App, path: Path) -> None:
    """On a storage with one writer, a call outside the transaction would wait for itself, so it raises an error."""
    found: list[BaseException] = []

    @app.task
    async def pay() -> None:
        async with current().transaction() as tx:
            with pytest.raises(NestedTransaction, match="within=tx"):
                await app.enqueue(pay.job())
            with pytest.raises(NestedTransaction, match="take steps and sleep before"):
                await current().step("one", len, "one")
            with pytest.raises(NestedTransaction, match="already"):
                async with current().transaction():
                    pass
            with pytest.raises(NestedTransaction, match="async with"):
                current().transaction().__enter__()
            with pytest.raises(BadSession):
                tx.close()
            assert (await app.jobs.get(current().id)).state == "running"  # reading is allowed
            tx.execute(WRITE, ("paid",))
            found.append(NestedTransaction())

    async with Worker(app):
        await (await pay.enqueue()).result(30)
    assert (len(found), ledger(path)) == (1, ["paid"])


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_block_that_takes_too_long(app: App, path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All is rolled back, the connection refuses, others go on; the function gets the error at the end of the block."""
    told, undone = list[BaseException](), Signal().after(monkeypatch, RunTransaction, "_undo")

    async def in_coroutine() -> None:
        try:
            async with current().transaction(timeout=0.05) as tx:
                try:
                    tx.execute("SELECT 1")
                    await undone.until(lambda: undone.sent, "the rollback")
                    tx.execute("SELECT 1")
                except sqlite3.Error as error:
                    told.append(error)
        except TimeoutError as error:
            told.append(error)
            raise

    def in_thread() -> None:
        try:
            with current().transaction(timeout=0.05) as tx:
                try:
                    while True:
                        tx.execute("INSERT INTO ledger VALUES ('paid')")
                        current().wait(0.005)
                except sqlite3.Error as error:
                    told.append(error)
        except TimeoutError as error:
            told.append(error)
            raise

    task: Any = app.task(name="slow")(in_coroutine if kind == "async" else in_thread)
    async with Worker(app):
        with pytest.raises(JobFailed, match=r"open for more than 0\.05 s"):
            await (await task.enqueue()).result(30)
    assert isinstance(told[0], sqlite3.Error)
    assert isinstance(told[1], TimeoutError)
    assert ledger(path) == []


async def test_a_function_that_takes_too_long_after_the_block(
    app: App, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expired = Signal().after(monkeypatch, Open, "_expire")

    @app.task
    async def slow() -> None:
        async with current().transaction(timeout=0.05) as tx:
            tx.execute(WRITE, ("paid",))
        run = running_here()
        assert run is not None
        opened = run.transaction
        assert opened is not None
        await expired.until(lambda: opened.over is not None, "the end of the transaction")

    async with Worker(app):
        with pytest.raises(JobFailed, match=r"open for more than 0\.05 s"):
            await (await slow.enqueue()).result(30)
    assert ledger(path) == []


async def test_a_run_that_is_cut_short_leaves_nothing(app: App, path: Path) -> None:
    """The run is cancelled by its timeout, in the block or after it."""

    @app.task(timeout=0.05)
    async def pay(inside: bool) -> None:
        async with current().transaction() as tx:
            tx.execute(WRITE, ("paid",))
            if inside:
                await asyncio.Event().wait()
        await asyncio.Event().wait()

    async with Worker(app):
        for inside in (True, False):
            with pytest.raises(JobFailed, match="timeout"):
                await (await pay.enqueue(inside)).result(30)
    assert ledger(path) == []


async def test_concurrent_transactions_run_one_after_another(app: App, path: Path) -> None:
    @app.task
    async def pay(number: int) -> int:
        async with current().transaction() as tx:
            [count] = tx.execute("SELECT count(*) FROM ledger").fetchone()
            await asyncio.sleep(0)
            tx.execute(WRITE, (str(count),))
        return count

    async with Worker(app), Worker(app):
        jobs = await app.enqueue(pay.job(number) for number in range(30))
        assert sorted([await job.result(30) for job in jobs]) == list(range(30))
    assert len(ledger(path)) == 30


@pytest.mark.parametrize("applied", [True, False])
async def test_a_commit_whose_answer_is_lost(
    app: App, path: Path, monkeypatch: pytest.MonkeyPatch, applied: bool
) -> None:
    """The row shows whether the commit succeeded: it is not repeated, and a failed one is not reported as done."""
    real, calls = RunTransaction.commit, []

    async def commit(self: RunTransaction) -> None:
        calls.append(applied)
        if len(calls) > 1:
            return await real(self)
        if applied:
            await real(self)
        raise StorageUnavailable("pulled the plug")

    monkeypatch.setattr(RunTransaction, "commit", commit)
    monkeypatch.setattr("treadle.worker.commit.AGAIN", 0.001)

    @app.task
    async def pay() -> str:
        async with current().transaction() as tx:
            tx.execute(WRITE, (f"lost {current().lost}, attempt {current().attempt}",))
        return "done"

    told = Told(app)
    async with Worker(app):
        assert await (await pay.enqueue()).result(30) == "done"
        await told.until("succeeded")
    assert ledger(path) == ["lost 0, attempt 1"]
    assert len(calls) == (1 if applied else 2)


async def test_a_storage_without_transactions_raises(path: Path) -> None:
    memory = App("memory://", retry=ONCE)

    @memory.task
    async def pay() -> None:
        async with current().transaction():
            pass

    async with memory, Worker(memory):
        with pytest.raises(JobFailed, match="fencing token"):
            await (await pay.enqueue()).result(30)


PROGRAM = """
import asyncio, os, sys
from treadle import App, Worker, current, flow
app = App(sys.argv[1])

@app.task(name="pay")
async def pay():
    async with current().transaction(timeout=60) as tx:
        tx.execute("INSERT INTO ledger VALUES ('paid')")
        await app.enqueue(pay.options(id="child").job(), within=tx)
        if sys.argv[2] == "inside":
            print("now", flush=True)
            await asyncio.Event().wait()
    print("now", flush=True)
    await asyncio.Event().wait()

async def main():
    async with Worker(app, lease=1):
        await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.parametrize("where", ["inside", "after"])
async def test_kill_9_leaves_nothing_and_another_worker_does_it(app: App, path: Path, where: str) -> None:
    @app.task(name="pay")
    async def pay() -> str:
        async with current().transaction() as tx:
            tx.execute(WRITE, ("again",))
        return "done"

    job = await pay.enqueue()
    command = [sys.executable, "-c", PROGRAM, f"sqlite:///{path}", where]
    child = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        assert await child.stdout.readline() == b"now\n"
    finally:
        child.send_signal(signal.SIGKILL)
        await child.communicate()
    assert ledger(path) == []
    assert len((await app.jobs.list()).records) == 1
    async with Worker(app, poll=0.05):
        assert await job.result(30) == "done"
    assert ledger(path) == ["again"]
    assert (await app.jobs.get(job)).lost == 1


async def test_a_cancelled_begin_of_the_storage_leaves_no_waiter(tmp_path: Path) -> None:
    """The storage's own `begin`: cancelled while it waits for the lock, it leaves no waiter behind."""
    storage = SqliteStorage(str(tmp_path / "x.db"), synchronous="off")
    await storage.open()
    first = await storage.begin(sync=False)
    second = asyncio.create_task(storage.begin(sync=False))
    other = SqliteStorage(str(tmp_path / "x.db"), synchronous="off")
    await other.open()  # meanwhile the second one has begun to wait
    assert not second.done()
    second.cancel()
    await asyncio.wait([second], timeout=30)
    assert second.cancelled()
    await first.close()
    fourth = await other.begin(sync=True)
    await fourth.close()
    assert (await storage.claim(Claim(worker="w#1"))).records == ()
    await other.close()
    await storage.close()
