"""The types of a lifespan's state, as a type checker infers them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, assert_type

from treadle import App, current

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
