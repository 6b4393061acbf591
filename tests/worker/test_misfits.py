"""A job that one version of the code cannot read is left to workers with another version, by default."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures import KINDS, a_url
from tests.kit import Told
from tests.served import memory_url
from tests.worker import process_tasks
from treadle import App, BadOption, JobFailed, Worker
from treadle.core.model import Presence
from treadle.policy import misfits
from treadle.serialization.call_schema import version_of
from treadle.storage.memory import MemoryStorage
from treadle.testing import HandClock, drain
from treadle.worker import misfit_release as left
from treadle_testkit.faults import Faulty, before
from treadle_testkit.shows import shows


@contextmanager
def place(kind: str, folder: Path, clock: HandClock) -> Iterator[dict[str, Any]]:
    """The arguments of an app on a storage of this kind; "http" is a server."""
    if kind == "http":
        yield {"url": memory_url(clock)}
    elif kind == "memory":
        yield {"storage": MemoryStorage()}
    else:
        with a_url(kind, folder) as url:
            yield {"url": url}


def version(number: int, where: dict[str, Any], ran: list[str], wait: Any = None) -> App:
    app = App(**where) if wait is None else App(**where, misfits=wait)
    if number == 1:

        @app.task(name="pay")
        async def pay(order: int) -> str:
            ran.append("old")
            return "old"
    else:

        @app.task(name="pay")
        async def pay(order: str, currency: str) -> str:
            ran.append("new")
            return "new"

    return app


@asynccontextmanager
async def working(*workers: Worker) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        for worker in workers:
            await stack.enter_async_context(worker)
            assert worker._core.session is not None
            await worker._core.session.parts.heartbeat.once()  # stored before any job is
        yield


@shows("while two versions run side by side, each runs the jobs that the other cannot read, uncounted")
@pytest.mark.parametrize("kind", [*KINDS, "http"])
async def test_two_versions_side_by_side(kind: str, tmp_path: Path) -> None:
    """Each version enqueues jobs that the other cannot read; all of them are run by their own."""
    ran: list[str] = []
    with place(kind, tmp_path, HandClock()) as where:
        old, new = version(1, where, ran), version(2, where, ran)
        async with old, new:
            workers = [Worker(app, concurrency=4, poll=0.05) for app in (old, new)]
            async with working(*workers):
                jobs = [await old.tasks["pay"].enqueue(n) for n in range(5)]
                jobs += [await new.tasks["pay"].enqueue(str(n), "EUR") for n in range(5)]
                async with asyncio.timeout(60):
                    results = [await job.result() for job in jobs]
            rows = await old.storage.get([job.id for job in jobs])
    assert results == ["old"] * 5 + ["new"] * 5
    assert {row.attempt for row in rows if row is not None} == {1}


@pytest.mark.slow
@shows("while two versions run side by side, jobs in processes wait for code that fits and for their resources")
async def test_two_versions_in_processes() -> None:
    """The worker of the new code starts first and has room; jobs of each version run in a process of that version."""
    where = {"storage": MemoryStorage()}
    old, new = App(**where), App(**where)
    needs: dict[str, Any] = {"requires": {"gpu": "a100"}, "uses": {"gpu": 1}}
    first = old.task(name="pay", kind="process", **needs)(process_tasks.paid)
    second = new.task(name="pay", kind="process", **needs)(process_tasks.paid_in)
    async with old, new:
        has: dict[str, Any] = {"labels": {"gpu": "a100"}, "resources": {"gpu": 1}, "concurrency": 4, "poll": 0.05}
        async with working(Worker(new, **has), Worker(old, **has)):
            jobs: list[Any] = [await first.enqueue(1), await second.enqueue("2", "EUR"), await first.enqueue(3)]
            assert [await job.result(60) for job in jobs] == ["old 1", "new 2 EUR", "old 3"]
        assert {row.attempt for row in await old.storage.get([job.id for job in jobs]) if row is not None} == {1}


async def test_a_misfit_without_another_version_fails_at_once(tmp_path: Path) -> None:
    ran: list[str] = []
    where = {"storage": MemoryStorage()}
    old, new = version(1, where, ran), version(2, where, ran)
    async with old, new:
        job = await old.tasks["pay"].enqueue(1)
        await drain(new)
        with pytest.raises(JobFailed, match="'currency' is missing"):
            await job.result()


async def test_a_worker_that_is_not_to_wait_fails_a_misfit_at_once() -> None:
    ran: list[str] = []
    where = {"storage": MemoryStorage()}
    old, new = version(1, where, ran), version(2, where, ran, wait="fail")
    async with old, new:
        await old.storage.heartbeat(Presence(worker="other", queues=("default",), tasks=("pay",)), [], 30.0)
        job = await old.tasks["pay"].enqueue(1)
        await drain(new)
        with pytest.raises(JobFailed, match="'currency' is missing"):
            await job.result(timeout=60)


@pytest.mark.parametrize("kind", [*KINDS, "http"])
async def test_more_misfits_than_a_claim_can_leave_out(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of them fails. A task of which no version fits is left out as a whole; the worker runs its other tasks."""
    monkeypatch.setattr(left, "MOST", 3)
    ran: list[str] = []
    with place(kind, tmp_path, HandClock()) as where:
        old, new = version(1, where, ran), version(2, where, ran)

        @old.task(name="other")
        async def other() -> str:
            return "other"

        async with old, new:
            await new.storage.heartbeat(
                Presence(worker="other", queues=("default",), tasks=("pay",), ttl=600), [], 30.0
            )
            jobs = [await new.tasks["pay"].enqueue(str(n), "EUR") for n in range(12)]
            told = Told(old)
            async with Worker(old, concurrency=2, poll=0.05):
                await told.until("deferred", 4)
                assert await (await other.enqueue()).result(timeout=60) == "other"
            async with working(Worker(new, concurrency=4, poll=0.05)):
                assert [await job.result(timeout=60) for job in jobs] == ["new"] * 12


async def test_a_storage_that_does_not_answer_fails_no_job() -> None:
    """Whether another version runs is unknown then, so the job waits."""
    ran: list[str] = []
    storage = MemoryStorage()
    old = version(1, {"storage": storage}, ran)
    new = version(2, {"storage": Faulty(storage, before("glance", *range(1, 9)))}, ran)
    async with old, new:
        job, told = await old.tasks["pay"].enqueue(1), Told(new)
        async with Worker(new, poll=0.05):
            await told.until("deferred", id=job.id)


async def test_a_misfit_fails_when_its_wait_is_over() -> None:
    """The wait is part of the row, counted by the storage's clock, and named."""
    clock, ran = HandClock(), list[str]()
    storage = MemoryStorage(clock)
    where = {"storage": storage, "clock": clock}
    old, new = version(1, where, ran), version(2, where, ran, wait=60)
    async with old, new:
        other = Presence(worker="other", queues=("default",), tasks=("pay",), ttl=86_400)
        await storage.heartbeat(other, [], 30.0)
        job, told = await old.tasks["pay"].enqueue(1), Told(new)
        async with Worker(new, poll=0.05):
            await told.until("deferred", id=job.id)
        [row] = await storage.get([job.id])
        assert row is not None
        assert (row.state, row.attempt) == ("ready", 0)
        assert row.reason is not None
        assert row.reason.startswith(misfits.MISFIT)
        assert misfits.waits_until(row) == pytest.approx(clock() + 60, abs=1)
        assert "it waits for a worker with another version of task 'pay' until" in str(misfits.words(row))
        clock.advance(61)
        await drain(new)
        with pytest.raises(JobFailed, match="'currency' is missing"):
            await job.result()
        [row] = await storage.get([job.id])
        assert row is not None
        assert misfits.words(row) is None


def test_the_version_of_a_signature() -> None:
    app = App("memory://")

    def of(function: Any) -> str:
        return version_of(app.task(function, name=f"t{len(app.tasks)}")._core.signature)

    async def one(a: int, b: str = "x") -> None: ...
    async def same(a: int, b: str = "x") -> int: ...
    async def retyped(a: str, b: str = "x") -> None: ...
    async def more(a: int, b: str = "x", c: int = 1) -> None: ...

    assert of(one) == of(same)
    assert len({of(one), of(retyped), of(more)}) == 3
    assert len(of(one)) == 8


@pytest.mark.parametrize("wrong", ["later", 0, -1, True, None, 1e9])
def test_wrong_values_are_refused(wrong: Any) -> None:
    with pytest.raises(BadOption, match="misfits"):
        App("memory://", misfits=wrong)
