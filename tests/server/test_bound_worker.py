"""A worker over HTTP whose token is bound to its queue: what it can run there, and which requests are refused."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from tests.kit import Told
from tests.served import host
from tests.server.test_crossing import token
from treadle import App, BadOption, ForeignRow, Limit, Redrive, Retry, Stale, Worker, flow
from treadle.cli.root import run
from treadle.core.model import NewJob, Outcome, State
from treadle.core.query_model import MetricsRow
from treadle.execution.context import current
from treadle.metrics import OTHER, Cell, encode
from treadle.policy.cleanups import cleanup_id, cleanup_of
from treadle.server import Settings
from treadle.server.auth.tokens import SCOPES
from treadle.storage.memory import MemoryStorage
from treadle.workflow.signals import signal_id
from treadle_testkit.shows import shows

TOKENS = (
    token("mine", *SCOPES, queues=("mine",)),
    token("two", *SCOPES, queues=("mine", "mine too")),
    token("runner", "work", "read", queues=("mine",)),
)


@pytest.fixture
async def behind() -> AsyncIterator[App]:
    """The app of the server, directly on the storage."""
    storage = MemoryStorage()
    async with App(storage=storage) as app:
        yield app


@pytest.fixture
def url(behind: App) -> str:
    return host().add(App(storage=behind.storage), Settings(tokens=TOKENS, max_wait=5))


async def run_all(app: App, *jobs: Any) -> list[Any]:
    async with Worker(app, ["mine"], poll=0.05):
        return [await job.result(timeout=20) for job in jobs]


async def test_a_bound_worker_runs_flows_steps_signals_marks_and_children(url: str, behind: App) -> None:
    async with App(url, token="mine") as app:

        @app.task(queue="mine")
        async def double(n: int) -> int:
            return 2 * n

        @app.task(queue="mine")
        async def parent(n: int) -> Any:
            return double.job(n)

        async def eight() -> int:
            return 8

        @app.task(queue="mine")
        async def durable(order: str) -> str:
            async with current().once(f"charge:{order}") as first:
                said = await current().wait_for("approved")
            found = await current().step("eight", eight)
            return f"{said} {first} {found}"

        @app.task(queue="mine", retry=Retry(attempts=3, base=0.01))
        async def flaky() -> int:
            if current().attempt < 2:
                raise ValueError
            return current().attempt

        job = await durable.enqueue("7")
        chained = await flow(double.job(3)).then(double.job(6)).enqueue()
        sent = [await parent.enqueue(21), await flaky.enqueue(), chained]
        async with Worker(app, ["mine"], poll=0.05):
            await app.jobs.signal(job, "approved", "yes")
            assert [await each.result(timeout=20) for each in sent] == [42, 2, 12]
            assert await job.result(timeout=20) == "yes True 8"
    workers = (await behind.storage.stats()).workers
    assert all(each.worker.startswith("mine/") for each in workers)


async def test_a_token_to_work_and_read_is_enough_for_marks(url: str, behind: App) -> None:
    async with App(url, token="runner") as app:

        @app.task(queue="mine")
        async def charge(order: str) -> bool:
            async with current().once(f"charge:{order}") as first:
                return first

        [sent] = await behind.storage.enqueue([NewJob(id="c", task=charge.name, queue="mine", payload='["7"]')])
        assert await run_all(app, await app.jobs.handle(sent.id)) == [True]


@shows("a worker over HTTP with the rights of one queue takes locks; one that another queue has used is waited for")
async def test_a_bound_worker_takes_locks(url: str, behind: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.durable.exclusive.FOREIGN_LOCK", 0.05)

    @behind.task(queue="other")
    async def other() -> None:
        async with current().lock("theirs"):
            pass

    deferred = Told(app := App(url, token="mine"))
    async with app, Worker(behind, ["other"], poll=0.05):

        @app.task(queue="mine")
        async def book(name: str) -> bool:
            async with current().lock(name) as number:
                await current().sleep(0.01)
                return number > 0

        sent = [await book.enqueue("ours") for _ in range(3)]
        async with Worker(app, ["mine"], poll=0.05):
            assert [await job.result(timeout=20) for job in sent] == [True] * 3
            await (await other.enqueue()).result(timeout=20)
            job = await book.enqueue("theirs")
            await deferred.until("deferred", times=2, id=job.id)
        cause = "its row is in another queue, to which the token of this worker has no access"
        assert (await behind.jobs.get(job.id)).reason == f"kept from the lock 'theirs': {cause}"
    [lock] = [row for row in (await behind.jobs.list(queue="other")).records if row.job.key == "treadle.lock theirs"]
    await behind.jobs.cancel(lock)
    async with App(url, token="mine") as app:
        app.task(queue="mine", name=book.name)(book.function)
        assert await run_all(app, await app.jobs.handle(job.id)) == [True]


async def test_a_job_that_waited_for_jobs_of_another_queue_is_ended_by_the_server(url: str, behind: App) -> None:
    """Its worker may not read the results of those jobs, so it would run the job without them."""
    up = NewJob(id="up", task="t", queue="other", function_done=True)
    down = NewJob(
        id="down", task="treadle.flow", queue="mine", after=("up",), failures_allowed=None, function_done=True
    )
    await behind.storage.enqueue([up, down])
    await behind.storage.settle([Outcome(id="up", version=0, state=State.SUCCEEDED, result="42")])
    async with App(url, token="mine") as app:
        assert await run_all(app, await app.jobs.handle("down")) == [42]


async def test_a_worker_reports_missing_rights_when_it_starts(url: str) -> None:
    async with App(url, token="mine") as app:
        with pytest.raises(BadOption, match=r"the token is bound to mine, but this worker claims from other"):
            await Worker(app, ["mine", "other"]).start()
        with pytest.raises(BadOption, match="a leader works for every queue"):
            await Worker(app, ["mine"], role="leader").start()


async def test_declared_schedules_and_limits_are_left_to_others(
    url: str, behind: App, caplog: pytest.LogCaptureFixture
) -> None:
    async with App(url, token="mine") as app:
        app.limits.declare(Limit("api", slots=1))

        @app.task(queue="mine", limits=["api"])
        async def work() -> int:
            return 1

        with caplog.at_level(logging.WARNING, "treadle"):
            assert await run_all(app, await work.enqueue()) == [1]
    [said] = [record.getMessage() for record in caplog.records if "bound to mine" in record.getMessage()]
    assert "are not stored" in said
    assert await behind.storage.limits(use=False) == ()


@shows("a job waits, and does not fail, while a job of another queue holds the key of its once-lock")
@pytest.mark.parametrize("named", ["mine", None])
async def test_a_once_lock_of_another_queue_is_waited_for(
    url: str, behind: App, named: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no lost race either: that job does not do the work of this one."""
    monkeypatch.setattr("treadle.durable.steps.FOREIGN_LOCK", 0.05)
    mark = NewJob(
        id="treadle:once:1",
        task="",
        queue="other",
        key="treadle.once charge:7",
        payload='{"job":"x","once":"charge:7"}',
        deadline=3_600.0,
    )
    await behind.storage.enqueue([mark])
    deferred = Told(app := App(url, token=named) if named else App(storage=behind.storage))
    async with app:

        @app.task(queue="mine", retry=Retry(attempts=1))
        async def charge() -> bool:
            async with current().once("charge:7") as first:
                return first

        job = await charge.enqueue()
        async with Worker(app, ["mine"], poll=0.05):
            await deferred.until("deferred", times=2)
            [row] = await behind.storage.get([job.id])
            assert row is not None
            assert (row.attempt, row.state.final) == (0, False)
            await behind.storage.settle([Outcome(id=mark.id, version=0, state=State.CANCELLED)])
            assert await job.result(20) is True


async def test_a_forged_signal_is_refused_by_the_job_and_by_its_sender(behind: App) -> None:
    """The row of a signal counts only if it is in the job's queue and workflow."""

    @behind.task(queue="secret", retry=Retry(attempts=1))
    async def publish() -> Any:
        return await current().wait_for("approved")

    job = await publish.enqueue()
    forged = NewJob(id=signal_id(job.id, "approved", 1), task="", queue="mine")
    await behind.storage.enqueue([forged])
    await behind.storage.settle([Outcome(id=forged.id, version=0, state=State.SUCCEEDED, result='"forged"')])
    with pytest.raises(ForeignRow):
        await behind.jobs.signal(job, "approved", "yes")
    async with Worker(behind, ["secret"], poll=0.05):
        row = await behind._core.client.ended(job.id, 20)
    assert row.state is State.FAILED
    assert ForeignRow.__name__ in (row.error or "")


async def test_a_bound_worker_redrives_jobs_of_its_queues_only(url: str) -> None:
    async with App(url, token="two") as app:
        tried, again = asyncio.Event(), asyncio.Event()

        @app.task(queue="mine", retry=Retry(attempts=1))
        async def flaky() -> None:
            if not tried.is_set():
                tried.set()
                raise ValueError
            again.set()

        await flaky.enqueue()
        rule = Redrive(every=0.05, backoff=0.01)
        async with Worker(app, ["mine", "mine too"], poll=0.05, redrive=rule):
            await asyncio.wait_for(again.wait(), 20)


async def test_doctor_names_the_checks_that_the_token_may_not_make(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TREADLE_TOKEN", "mine")
    assert await asyncio.to_thread(run, ["doctor", "--url", url, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(each["name"], each["verdict"]) for each in found] == [
        ("storage", "ok"),
        ("token", "warn"),
        ("workers", "ok"),
    ]
    assert found[1]["text"].startswith("bound to mine: ")


async def test_a_bound_token_reads_why_a_queued_job_is_not_running(url: str) -> None:
    async with App(url, token="mine") as app:

        @app.task(queue="mine")
        async def idle() -> None: ...

        first, second = await idle.enqueue(), await idle.enqueue()
        assert [await app.jobs.position(each) for each in (first, second)] == [0, 1]
        assert "queued" in await app.jobs.explain(second)


async def test_a_bound_worker_stores_metrics_of_its_queue_only(url: str, behind: App) -> None:
    at = 1_700_000_040.0
    forged = encode([Cell("mine", "t", 1), Cell("theirs", "t", 1_000_000), Cell(OTHER, OTHER, 2)])
    async with App(url, token="mine") as app:
        await app._core.storage.store_metrics([MetricsRow(at=at, span=60.0, source="w", data=forged)])
        for data in (b"\x02 of a later version", b"\x01damaged"):
            with pytest.raises(BadOption, match="data"):
                await app._core.storage.store_metrics([MetricsRow(at=at, span=60.0, source="w", data=data)])
    found = await behind.metrics.totals("queue", since=at - 1, until=at + 61)
    assert {name: each.succeeded for name, each in found.items()} == {"mine": 1}
    [row] = await behind.storage.read_metrics(at, at + 60)
    assert row.source == "mine/w"


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_bound_worker_takes_steps_with_limits(url: str, behind: App, kind: str) -> None:
    await behind.limits.set(Limit("api", slots=1))
    async with App(url, token="mine") as app:

        def two() -> int:
            return 2

        @app.task(name="async", queue="mine")
        async def doubled() -> int:
            return 2 * await current().step.options(limits=["api"])("two", two)

        @app.task(name="thread", queue="mine")
        def doubled_here() -> int:
            return 2 * current().sync.step.options(limits=["api"])("two", two)

        task = doubled if kind == "async" else doubled_here
        assert await run_all(app, *[await task.enqueue() for _ in range(3)]) == [4, 4, 4]


@shows("undos and cleanups run on a remote worker whose token is bound to its queue")
async def test_a_bound_worker_undoes_and_cleans_up(url: str, behind: App) -> None:
    log = list[str]()

    async def book() -> None:
        log.append("booked")

    async with App(url, token="runner") as app:

        @app.task(queue="mine", retry=Retry(attempts=1))
        async def trip() -> None:
            current().on_undo(log.append, "undone")
            await current().step("book", book)
            raise ValueError("no hotel")

        @app.task(queue="mine")
        async def reserve() -> None:
            await current().step("reserve", log.append, "reserved")
            try:
                await current().sleep(3_600)
            finally:
                await current().step("release", log.append, "released")

        stored = [NewJob(id=id, task=task.name, queue="mine") for id, task in (("trip", trip), ("reserve", reserve))]
        told = Told(app)
        await behind.storage.enqueue([replace(job, deadline=7_200.0) for job in stored])
        async with Worker(app, ["mine"], poll=0.05):
            await told.until("succeeded", id=cleanup_id("trip", 0))
            await told.until("deferred", id="reserve")
            async with App(url, token="mine") as operator:
                with pytest.raises(Stale, match="only force=True"):
                    await operator.jobs.cancel(cleanup_id("reserve", 0))
                assert await operator.jobs.cancel("reserve") == 1
            await told.until("succeeded", id=cleanup_id("reserve", 0))
    assert sorted(log) == ["booked", "released", "reserved", "undone"]


@pytest.mark.parametrize("field", ["id", "parent", "after", "retry"])
async def test_a_forged_cleanup_is_refused(url: str, behind: App, field: str) -> None:
    await behind.storage.enqueue([NewJob(id="j", task="t", queue="mine")])
    [row] = await behind.storage.get(["j"])
    assert row is not None
    forged = {"id": cleanup_id("k", 0), "parent": "k", "after": ("k",), "retry": None}
    async with App(url, token="mine") as app:
        storage = await app._core.open()
        with pytest.raises(BadOption, match="is not the cleanup of job"):
            await storage.enqueue([replace(cleanup_of(row), **{field: forged[field]})])
        [stored] = await storage.enqueue([cleanup_of(row)])
    assert stored.state is State.WAITING
