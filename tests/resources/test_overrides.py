"""Dependencies and lifespans in tests: `app.testing(overrides=...)`, `app.sync.testing(...)`, `app.override(...)`."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from treadle import App, BadDependency, BadOption, JobFailed, Retry, Worker, depends
from treadle_testkit.shows import shows

app = App("memory://", retry=Retry(attempts=1))
log: list[str] = []


@pytest.fixture(autouse=True)
def empty_log() -> None:
    log.clear()


@app.lifespan
async def state() -> AsyncIterator[str]:
    log.append("enter")
    yield "real state"
    log.append("leave")


def url() -> str:
    return "real"


def pool(at: str = depends(url, scope="process"), of: str = depends(state)) -> Iterator[str]:
    log.append(f"open {at}")
    yield f"pool at {at} with {of}"
    log.append(f"close {at}")


async def session(on: str = depends(pool, scope="process")) -> AsyncIterator[str]:
    yield f"session on {on}"


@app.task(name="use")
async def use(one: str = depends(session)) -> str:
    return one


@app.task(name="use_pool")
def use_pool(one: str = depends(pool, scope="process")) -> str:
    return one


@app.task(name="use_process", kind="process")
def use_process(one: str = depends(session)) -> str:
    return one


REAL = "session on pool at real with real state"


@shows("a test replaces providers and the lifespan; what it does not use is not made")
async def test_a_test_replaces_providers_and_the_lifespan() -> None:
    def fake_url() -> str:
        return "fake"

    async def fake_state() -> AsyncIterator[str]:
        log.append("fake enter")
        yield "fake state"
        log.append("fake leave")

    async with app.testing(overrides={url: fake_url, state: fake_state}) as t:
        job = await use.enqueue()
        assert log == []
        await t.drain()
        assert await job.result(0) == "session on pool at fake with fake state"
        job = await use_pool.enqueue()
        await t.drain()
        assert await job.result(0) == "pool at fake with fake state"
    assert log == ["fake enter", "open fake", "close fake", "fake leave"]
    async with app.testing(overrides={session: lambda: "fake session"}) as t:
        job = await use.enqueue()
        await t.drain()
        assert await job.result(0) == "fake session"
        assert log[4:] == ["enter"]  # nobody needed the pool
    async with app.testing() as t:
        job = await use.enqueue()
        await t.drain()
        assert await job.result(0) == REAL


def test_in_synchronous_tests() -> None:
    def fake_pool() -> Iterator[str]:
        log.append(threading.current_thread().name)
        yield "fake pool"
        log.append(threading.current_thread().name)

    with app.sync.testing(overrides={pool: fake_pool, state: lambda: "fake"}) as t:
        jobs = app.sync.enqueue([use.job(), use_pool.job()])
        t.drain()
        assert [app.sync.result(job, 0) for job in jobs] == ["session on fake pool", "fake pool"]
    assert log == ["MainThread", "MainThread"]  # the thread of the test, whose connections they may use


@shows("a test with a real worker replaces providers too")
async def test_with_a_real_worker() -> None:
    async with app:
        with app.override({pool: lambda: "fake pool"}):
            async with Worker(app, tasks=[use, use_pool]):
                assert await (await use.enqueue()).result(60) == "session on fake pool"
                with pytest.raises(BadOption, match="a worker of this app runs already"), app.override({url: str}):
                    pass
        async with Worker(app, tasks=[use]):
            assert await (await use.enqueue()).result(60) == REAL


async def test_a_task_of_a_process_is_not_overridden() -> None:
    async with app.testing(overrides={url: lambda: "fake"}) as t:
        job = await use_process.enqueue()
        await t.drain()
        with pytest.raises(JobFailed, match="overrides do not reach its process; in a test, call the function itself"):
            await job.result(0)


@pytest.mark.parametrize(
    ("overrides", "error", "words"),
    [
        ({print: str}, BadOption, r"no task of this app depends on builtins.print; its dependencies: .*pool, "),
        ({pool: "fake pool"}, BadOption, r"pool: expected a function, found 'fake pool'"),
        ({pool: lambda path: path}, BadDependency, "the parameter 'path' has no value"),
        ({url: pool}, BadDependency, "url: depends on itself: .*url -> .*url"),
        ({pool: session}, BadDependency, "pool: depends on itself"),
    ],
)
def test_an_invalid_override_is_refused(
    overrides: dict[Callable[..., Any], Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        app.testing(overrides=overrides)
    with pytest.raises(error, match=words), app.override(overrides):
        pass
