"""Many children of one call: all results in order, or the children in the order of their ending."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.durable.kit import AGAIN, error_of
from treadle import App, JobFailed, Retry, Sizes, State, current
from treadle.errors import BadOption
from treadle.testing import HandClock, drain
from treadle_testkit.shows import shows

ONCE = Retry(attempts=1)


class Crawl:
    """Fetches pages, each in a job of its own. Some pages fail."""

    def __init__(self, app: App, kind: str = "async") -> None:
        self.app, self.broken, self.runs, self.apart = app, set[int](), 0, 0.0
        self.running, self.most = 0, 0
        self.fetch = app.task(name="fetch", retry=ONCE)(self._fetch)
        run: Any = self._crawl if kind == "async" else self._crawl_in_thread
        self.crawl: Any = app.task(name="crawl", retry=AGAIN)(run)

    async def _fetch(self, page: int) -> str:
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0)
        self.running -= 1
        if page in self.broken:
            raise ConnectionError(f"page {page}")
        return f"<{page}>"

    def jobs(self, pages: int) -> list[Any]:
        return [self.fetch.options(delay=page * self.apart).job(page) for page in range(pages)]

    async def _crawl(self, pages: int, **options: Any) -> list[str]:
        self.runs += 1
        results: list[Any] = await current().map(self.jobs(pages), **options)
        await current().sleep(60)
        return list(map(str, results))

    def _crawl_in_thread(self, pages: int, **options: Any) -> list[str]:
        self.runs += 1
        results: list[Any] = current().sync.map(self.jobs(pages), **options)
        current().sync.sleep(60)
        return list(map(str, results))

    async def states(self) -> list[State]:
        rows = (await self.app.jobs.list(task="fetch", order="oldest")).records
        return [row.state for row in rows]


@shows("a function awaits many children, and gets their results in order")
@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_the_results_of_a_map_are_in_order(app: App, clock: HandClock, kind: str) -> None:
    crawl = Crawl(app, kind)
    job = await crawl.crawl.enqueue(20)
    assert await drain(app) == 22
    clock.advance(60)
    await drain(app)
    assert await job.result(0) == [f"<{page}>" for page in range(20)]
    assert crawl.runs == 3  # no ending but the last one has woken it
    names = [name for name, _ in (await app.jobs.get(job)).checkpoints]
    assert names == ["map:fetch", "sleep:sleep"]


async def test_an_empty_map_waits_for_nothing(app: App, clock: HandClock) -> None:
    crawl = Crawl(app)
    job = await crawl.crawl.enqueue(0)
    await drain(app)
    clock.advance(60)
    await drain(app)
    assert await job.result(0) == []


@shows("a map cancels the other children when one has failed")
@pytest.mark.parametrize("at_most", [None, 2])
async def test_the_first_failure_ends_a_map_and_cancels_the_rest(
    app: App, clock: HandClock, at_most: int | None
) -> None:
    crawl = Crawl(app)
    crawl.broken, crawl.apart = {2}, 10.0
    job = await crawl.crawl.enqueue(6, at_most=at_most)
    await drain(app)
    clock.advance(25)
    await drain(app)
    assert "JobFailed: fetch" in await error_of(app, job)
    assert "ConnectionError: page 2" in await error_of(app, job)
    assert await crawl.states() == [State.SUCCEEDED] * 2 + [State.FAILED] + [State.CANCELLED] * 3
    crawl.broken = set()
    await app.jobs.retry(job)
    await drain(app)
    for _ in range(7):
        clock.advance(60)
        await drain(app)
    assert await job.result(0) == [f"<{page}>" for page in range(6)]
    assert (await crawl.states()).count(State.SUCCEEDED) == 6  # the first two were used again


async def test_failures_can_be_kept_in_the_list(app: App, clock: HandClock) -> None:
    crawl = Crawl(app)
    crawl.broken = {0, 2}
    job = await crawl.crawl.enqueue(3, failures="keep")
    await drain(app)
    clock.advance(60)
    await drain(app)
    first, second, third = await job.result(0)
    assert second == "<1>"
    assert "ConnectionError: page 0" in first
    assert "ConnectionError: page 2" in third
    assert crawl.runs == 3


@shows("a map runs at most so many of its children at the same time")
async def test_a_map_is_bounded(app: App, clock: HandClock) -> None:
    crawl = Crawl(app)
    crawl.broken = {1}
    job = await crawl.crawl.enqueue(10, at_most=3, failures="keep")
    await drain(app, concurrency=10)
    clock.advance(60)
    await drain(app)
    assert len(await job.result(0)) == 10
    assert crawl.most == 3


async def test_large_results_are_stored_in_parts(app: App, clock: HandClock) -> None:
    @app.task
    async def fetch(page: int) -> str:
        return str(page) * 200_000

    @app.task
    async def crawl() -> list[int]:
        results = await current().map(fetch.job(page) for page in range(1, 8))
        await current().sleep(60)
        return [len(result) for result in results]

    job = await crawl.enqueue()
    await drain(app)
    clock.advance(60)
    await drain(app)
    assert await job.result(0) == [200_000] * 7
    names = {name for name, _ in (await app.jobs.get(job)).checkpoints}
    assert "map:" + fetch.name + "#p3" in names


async def test_results_that_are_too_large_together_fail_the_map(clock: HandClock) -> None:
    async with App("memory://", clock=clock, sizes=Sizes(checkpoints=10_000, step=10_000)) as app:

        @app.task(retry=ONCE)
        async def fetch() -> str:
            return "x" * 6_000

        @app.task(retry=ONCE)
        async def crawl() -> None:
            await current().map([fetch.job(), fetch.job()])

        job = await crawl.enqueue()
        await drain(app)
        assert "TooLarge" in await error_of(app, job)


@shows("the order in which children ended is recorded")
@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_children_are_taken_in_the_order_of_their_ending(app: App, clock: HandClock, kind: str) -> None:
    orders: list[list[int]] = []

    @app.task(retry=ONCE)
    async def fetch(page: int) -> int:
        if page == 1:
            raise ConnectionError("page 1")
        return page

    def jobs() -> list[Any]:
        return [fetch.options(delay=delay).job(page) for page, delay in enumerate((30, 20, 10))]

    async def crawl() -> list[int]:
        orders.append([])
        async for done in current().as_completed(jobs()):
            orders[-1].append(done.index)
            if done.index == 1:
                with pytest.raises(JobFailed):
                    done.result()
            else:
                assert done.result() == done.index
            await current().step("note", str, done.index)
        return orders[-1]

    def crawl_in_thread() -> list[int]:
        orders.append([])
        for done in current().sync.as_completed(jobs()):
            orders[-1].append(done.index)
            current().sync.step("note", str, done.index)
        return orders[-1]

    job = await app.task(name="crawl")(crawl if kind == "async" else crawl_in_thread).enqueue()  # type: ignore[operator]
    await drain(app)
    clock.advance(25)  # the pages 2 and 1
    await drain(app)
    clock.advance(25)
    await drain(app)
    assert await job.result(0) == [2, 1, 0]
    assert all(order == [2, 1, 0][: len(order)] for order in orders)


async def test_jobs_that_cannot_be_called_together_are_refused(app: App) -> None:
    @app.task
    async def fetch(page: int) -> int:
        return page

    @app.task(retry=ONCE)
    async def crawl() -> int:
        here, refused = current(), 0
        wrong: list[tuple[Any, Any]] = [
            ([fetch.options(key="a").job(1)], {}),
            ([fetch.options(id="a").job(1)], {}),
            ([fetch.options(after="a").job(1)], {"at_most": 1}),
            ([fetch.job(1)], {"at_most": 0}),
            ([fetch.job(1)], {"failures": "ignore"}),
            ([fetch], {}),
        ]
        for jobs, options in wrong:
            try:
                await here.map(jobs, **options)
            except BadOption:
                refused += 1
        return refused

    job = await crawl.enqueue()
    await drain(app)
    assert await job.result(0) == 6
