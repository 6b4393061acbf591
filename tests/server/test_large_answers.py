"""Rows that are together larger than an answer may be come in several answers; a single row that is too large fails."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.served import host
from tests.server.places import EVERY, a_place
from treadle import AnswerTooLarge, App, JobFailed, Limit, gather
from treadle.core.model import Claim, State
from treadle.core.query_model import Query
from treadle.server import Settings
from treadle.worker import Worker

TEXT = "x" * 400_000
SMALL = f"?max_answer={2**20}"


@pytest.fixture(params=EVERY)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A server over an empty storage."""
    with a_place(request.param, tmp_path) as storage:
        app = App(storage=storage)
        yield host().add(app, Settings(max_wait=5))
        host().run(app.close())


def made(url: str) -> App:
    app = App(url)

    @app.task(name="eat")
    async def eat(text: str) -> int:
        return len(text)

    @app.task(name="give")
    async def give(size: int) -> str:
        return "x" * size

    @app.task(name="count")
    async def count(texts: list[str]) -> int:
        return len(texts)

    return app


async def test_jobs_that_one_answer_cannot_hold_all_run(url: str) -> None:
    app = made(url + SMALL)
    async with app, Worker(app, concurrency=8, grace=1, poll=0.05):
        jobs = [await app.enqueue(app.tasks["eat"].job(TEXT)) for _ in range(5)]
        assert [await job.result(20) for job in jobs] == [len(TEXT)] * 5
        rows = [await app.jobs.get(job.id) for job in jobs]
        assert {(row.lost, row.attempt) for row in rows} == {(0, 1)}


async def test_a_job_that_no_answer_can_hold_fails_and_the_others_run(url: str) -> None:
    app, big = made(url + SMALL), made(url)
    async with big:
        large = await big.enqueue(big.tasks["eat"].job(TEXT * 3))
        small = await big.enqueue(big.tasks["eat"].job(TEXT))
        async with app, Worker(app, concurrency=8, grace=1, poll=0.05):
            assert await small.result(20) == len(TEXT)
            with pytest.raises(JobFailed, match=r"1,200,\d+ bytes.*at most 1,048,576.*max_answer"):
                await large.result(20)


async def test_a_gather_reads_results_that_one_answer_cannot_hold(url: str) -> None:
    app = made(url + SMALL)
    async with app, Worker(app, concurrency=1, grace=1, poll=0.05):
        job = await gather(app.tasks["give"].job(400_000) for _ in range(3)).into(app.tasks["count"]).enqueue()
        assert await job.result(20) == 3


async def test_a_job_whose_upstream_cannot_be_read_fails(url: str) -> None:
    app, big = made(url + SMALL), made(url)
    async with big, app, Worker(app, concurrency=1, grace=1, poll=0.05):
        job = await gather([app.tasks["give"].job(1_500_000)]).into(app.tasks["count"]).enqueue()
        with pytest.raises(JobFailed, match="at most 1,048,576 bytes"):
            await (await big.jobs.handle(job.id)).result(20)


async def test_looking_at_rows_that_one_answer_cannot_hold(url: str) -> None:
    app, big = made(url + SMALL), made(url)
    async with app, big:
        jobs = [await app.enqueue(app.tasks["eat"].job(TEXT)) for _ in range(5)]
        ids = [job.id for job in jobs]
        assert [row.id for row in await app.storage.get(ids) if row is not None] == ids
        assert [row.id async for row in app.jobs.iterate()] == ids
        [row] = (await app.storage.find(Query(ids=(ids[0],)))).records
        assert row.state is State.READY
        huge = await big.enqueue(big.tasks["eat"].job(TEXT * 3))
        with pytest.raises(AnswerTooLarge, match="at most 1,048,576 bytes"):
            await app.storage.get([huge.id, *ids])


async def test_a_job_that_one_answer_cannot_hold_has_spent_a_start(url: str) -> None:
    """The job keeps its position and its attempts; a rate counts its claim, as docs/guides/runners.md says."""
    app = made(url + SMALL)
    async with app:
        await app.limits.set(Limit("api", rate=3, per=3_600))
        jobs = [await app.enqueue(app.tasks["eat"].options(limits=["api"]).job(TEXT)) for _ in range(3)]
        ask = Claim(worker="w#1", queues=(("default", 9),), limit=9, lease=60.0)
        claimed = await app.storage.claim(ask)
        assert [row.id for row in claimed.records] == [job.id for job in jobs[:2]]
        row = await app.jobs.get(jobs[2].id)
        assert (row.state, row.attempt, row.lost) == (State.READY, 0, 0)
        again = await app.storage.claim(Claim(worker="w#2", queues=(("default", 9),), limit=9, lease=60.0))
        assert again.records == ()
        [limit] = [each for each in await app.limits.list() if each.rule.name == "api"]
        assert (limit.starts, limit.next_start is not None) == (3, True)
