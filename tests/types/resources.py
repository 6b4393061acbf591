"""The types of a lifespan's state and of dependencies, as a type checker infers them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from contextlib import asynccontextmanager
from typing import Any, assert_type

from treadle import App, current, depends

app = App("memory://")


class Pool:
    pass


@app.lifespan
async def pool() -> AsyncIterator[Pool]:
    yield Pool()


@App("memory://").lifespan
async def of_the_app(app: App) -> AsyncGenerator[dict[str, Pool]]:
    yield {app.url or "": Pool()}


@App("memory://").lifespan
@asynccontextmanager
async def managed() -> AsyncGenerator[int]:
    yield 1


@app.task
async def use() -> None:
    assert_type(pool.state, Pool)
    assert_type(of_the_app.state, dict[str, Pool])
    assert_type(managed.state, int)
    assert_type(current().state, Any)


class Session:
    def __init__(self, pool: Pool = depends(pool)) -> None: ...


def plain() -> Pool:
    return Pool()


async def coroutine() -> Pool:
    return Pool()


def iterator(of: Pool = depends(coroutine, scope="process")) -> Iterator[Session]:
    yield Session(of)


def generator() -> Generator[Session, None, None]:
    yield Session()


async def async_iterator(of: Session = depends(iterator)) -> AsyncIterator[Session]:
    yield of


async def async_generator() -> AsyncGenerator[Session, None]:
    yield Session()


assert_type(depends(pool), Pool)
assert_type(depends(plain), Pool)
assert_type(depends(coroutine), Pool)
assert_type(depends(iterator), Session)
assert_type(depends(generator), Session)
assert_type(depends(async_iterator), Session)
assert_type(depends(async_generator), Session)
assert_type(depends(Session), Session)
assert_type(depends(lambda: 1), int)


@app.task
async def with_dependencies(
    n: int,
    one: Pool = depends(plain),
    two: Session = depends(async_iterator),
    *,
    three: Session | None = depends(generator),
) -> str:
    return f"{n} {one} {two} {three}"


@app.batch(size=10)
async def many(items: list[int], one: Pool = depends(pool)) -> list[str]:
    return [f"{n} {one}" for n in items]


async def calls() -> None:
    job = await with_dependencies.enqueue(1)
    assert_type(await job.result(), str)
    assert_type(await with_dependencies(1, Pool(), Session()), str)
    assert_type(await (await many.enqueue(1)).result(), str)


async def tests() -> None:
    async with app.testing(overrides={plain: Pool, pool: Pool}) as t:
        await t.drain()
    with app.override({async_iterator: Session}):
        pass
