"""Upstreams for which another row was returned (a known id, or a held key): their values, on every storage."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from tests.kit import Told, work
from treadle import App, JobSpec, Key, Retry, Task, WorkflowFailed, chain, current, flow, gather


class Shop:
    """Tasks of which `fetch` waits for its gate, so that its key is held for as long as a test needs."""

    def __init__(self, app: App) -> None:
        self.app, self.gate, self.calls = app, asyncio.Event(), 0

        @app.task(name="fetch")
        async def fetch(n: int) -> int:
            self.calls += 1
            if n == 100:
                await self.gate.wait()
            return n

        @app.task(name="take")
        async def take(value: int) -> str:
            return f"took {value}"

        @app.task(name="join")
        async def join(values: list[int]) -> list[int]:
            return values

        @app.task(name="look")
        async def look() -> list[object]:
            return await current().upstream()

        @app.task(name="continues")
        async def continues() -> JobSpec[list[object]]:
            before = await current().upstream()
            return echo.job(before)

        @app.task(name="asleep")
        async def asleep() -> object:
            return [await current().wait_for("go"), *await current().upstream()]

        @app.task(name="echo")
        async def echo(values: list[object]) -> list[object]:
            return values

        self.fetch, self.take, self.join, self.look = fetch, take, join, look
        self.continues, self.asleep = continues, asleep

    def page(self) -> JobSpec[int]:
        return self.fetch.options(key="page").job(100)


@pytest.fixture
def shop(app: App) -> Shop:
    return Shop(app)


async def test_a_chain_that_is_sent_twice_passes_the_same_result_on(app: App, shop: Shop) -> None:
    async with work(app, concurrency=8):
        jobs = [await chain(shop.page(), shop.take).enqueue() for _ in range(2)]
        shop.gate.set()
        assert [await job.result(timeout=30) for job in jobs] == ["took 100", "took 100"]
    assert shop.calls == 1


async def test_pass_result_of_a_job_whose_key_is_held(app: App, shop: Shop) -> None:
    async with work(app, concurrency=8):
        await app.enqueue(shop.page())
        first = shop.page()
        _, job = await app.enqueue(first, shop.take.options(after=first, pass_result=True).job())
        shop.gate.set()
        assert await job.result(timeout=30) == "took 100"


async def test_pass_result_of_a_key_that_is_held_within_its_window(app: App, shop: Shop) -> None:
    async with work(app, concurrency=8):
        shop.gate.set()
        page = shop.fetch.options(key=Key("page", window=3600))
        await (await page.enqueue(100)).result(timeout=30)
        assert await (await chain(page.job(100), shop.take).enqueue()).result(timeout=30) == "took 100"
    assert shop.calls == 1


async def test_pass_result_of_an_id_that_is_known(app: App, shop: Shop) -> None:
    one = shop.fetch.options(id="one")
    async with work(app, concurrency=8):
        await one.enqueue(7)
        assert await (await chain(one.job(7), shop.take).enqueue()).result(timeout=30) == "took 7"


async def test_gather_passes_as_many_results_as_it_has_jobs(app: App, shop: Shop) -> None:
    """In their order, also if a key was held before the call or is named twice in it."""
    async with work(app, concurrency=8):
        held = await gather(shop.page(), shop.fetch.job(5)).into(shop.join).enqueue()
        twice = await gather(shop.page(), shop.fetch.job(5), shop.page()).into(shop.join).enqueue()
        shop.gate.set()
        assert await held.result(timeout=30) == [100, 5]
        assert await twice.result(timeout=30) == [100, 5, 100]
    async with work(app, concurrency=8):
        once = shop.fetch.options(key="once")
        jobs: Sequence[JobSpec[int]] = [once.job(1), shop.fetch.job(5), once.job(1)]
        assert await (await gather(*jobs).into(shop.join).enqueue()).result(timeout=30) == [1, 5, 1]


async def test_a_flow_folds_the_result_of_the_row_that_answered(app: App, shop: Shop) -> None:
    """As often as the flow named it. A result that was passed on as an argument is folded only there."""
    async with work(app, concurrency=8):
        holder = await shop.fetch.options(key="page").enqueue(100)
        jobs = [
            await flow(shop.page(), shop.fetch.job(5), shop.page(), reduce="list").enqueue(),
            await flow(chain(shop.page(), shop.take), reduce="list").enqueue(),
        ]
        shop.gate.set()
        assert await holder.result(timeout=30) == 100
        values = [await job.workflow.result(timeout=30) for job in jobs]
    assert [sorted(map(str, value)) for value in values] == [["100", "100", "5"], ["took 100"]]


@pytest.mark.parametrize("kind", ["look", "continues", "asleep"])
async def test_upstream_names_the_row_that_answered(app: App, shop: Shop, told: Told, kind: str) -> None:
    """In every run, also after the job waited for a signal, and after it continued as another job."""
    task: Task[[], object, object] = app.tasks[kind]
    async with work(app, concurrency=8):
        await shop.fetch.options(key="page").enqueue(100)
        other, first = shop.fetch.job(3), shop.page()
        _, _, job = await app.enqueue(first, other, task.options(after=[other, first]).job())
        shop.gate.set()
        if kind == "asleep":
            await told.until("waiting")
            await app.jobs.signal(job, "go", 1)
        expected = [1, 3, 100] if kind == "asleep" else [3, 100]
        assert await job.workflow.result(timeout=30) == expected


@pytest.mark.parametrize("shape", ["flow", "gather", "chain", "then", "spec"])
async def test_a_returned_child_whose_key_is_held_has_the_value_of_the_holder(
    app: App, shop: Shop, told: Told, shape: str
) -> None:
    """The job that returned it waits for the holder, and folds its result."""
    shapes: dict[str, Callable[[], object]] = {
        "flow": lambda: flow(shop.page(), shop.fetch.job(5)),
        "gather": lambda: gather(shop.page(), shop.fetch.job(5)).into(shop.join),
        "chain": lambda: chain(shop.page(), shop.take),
        "then": lambda: flow(shop.page(), shop.fetch.job(5)).then(shop.look.job()),
        "spec": shop.page,
    }
    expected = {
        "flow": [5, 100],
        "gather": [[100, 5]],
        "chain": ["took 100"],
        "then": [5, 100, [100, 5]],
        "spec": [100],
    }

    @app.task(name="root", reduce="list")
    async def root() -> object:
        return shapes[shape]()

    async with work(app, concurrency=8):
        holder = await app.enqueue(shop.page())
        job = await root.enqueue()
        await told.until("waiting")
        shop.gate.set()
        assert sorted(await job.workflow.result(timeout=30), key=str) == sorted(expected[shape], key=str)
        assert await holder.result(timeout=30) == 100
    assert shop.calls == (1 if shape in ("chain", "spec") else 2)


async def test_a_holder_that_fails_fails_the_job_that_returned_its_key(app: App, shop: Shop, told: Told) -> None:
    """The error names the holder, as it would name a child of its own."""

    @app.task(name="fails", retry=Retry(attempts=1))
    async def fails() -> None:
        await shop.gate.wait()
        raise ValueError("no page")

    page = fails.options(key="page")

    @app.task(name="root")
    async def root() -> object:
        return flow(page.job(), shop.fetch.job(5))

    async with work(app, concurrency=8):
        holder, job = await page.enqueue(), await root.enqueue()
        await told.until("waiting")
        shop.gate.set()
        with pytest.raises(WorkflowFailed) as failed:
            await job.workflow.result(timeout=30)
    assert [each.id for each in failed.value.exceptions] == [holder.id]


async def test_cancelling_the_job_that_returned_a_held_key_leaves_the_holder(app: App, shop: Shop, told: Told) -> None:
    """The holder belongs to other workflows."""

    @app.task(name="root")
    async def root() -> object:
        return flow(shop.page(), shop.fetch.job(5))

    async with work(app, concurrency=8):
        holder, job = await app.enqueue(shop.page()), await root.enqueue()
        await told.until("waiting")
        await app.jobs.cancel(job)
        shop.gate.set()
        assert await holder.result(timeout=30) == 100


async def test_pages_that_link_to_each_other_end(app: App, shop: Shop) -> None:
    """Each page returns the pages that it links to, with their names as keys. Their links are a circle, their waits are
    none."""
    links = {"a": "bc", "b": "ac", "c": "abd", "d": "a"}
    seen: list[str] = []

    @app.task(name="crawl", reduce="list")
    async def crawl(page: str) -> object:
        seen.append(page)
        return flow(crawl.options(key=Key(each, window=3600)).job(each) for each in links[page]).value(page)

    async with work(app, concurrency=8):
        job = await crawl.options(key=Key("a", window=3600)).enqueue("a")
        await job.ended(timeout=30)
        assert (await app.jobs.get(job)).state == "succeeded"
    assert sorted(seen) == ["a", "b", "c", "d"]


async def test_a_returned_job_that_waits_for_an_ancestor_fails_its_run(app: App, shop: Shop) -> None:
    """The grandparent waits for it, so none of them could end. The error names the jobs."""

    @app.task(name="inner", retry=Retry(attempts=1))
    async def inner(top: str) -> JobSpec[str]:
        return shop.take.options(after=top).job(1)

    @app.task(name="outer")
    async def outer() -> JobSpec[str]:
        return inner.job(current().id)

    async with work(app):
        job = await outer.enqueue()
        with pytest.raises(WorkflowFailed, match=f"would wait for job {job.id}, which waits for job"):
            await job.workflow.result(timeout=10)
