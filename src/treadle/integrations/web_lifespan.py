"""Keeps apps open while a web application runs, with a worker for each app if its host wants one.

The order is fixed: apps open, then the lifespan of the host, then workers; and the reverse. So the start-up code of the
host may enqueue, and running jobs may use its resources until they end.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar

from treadle.app import App
from treadle.core.errors import BadOption
from treadle.worker import Worker

T = TypeVar("T")


def apps_of(objects: Sequence[object], where: str) -> tuple[App, ...]:
    """The apps that a call was given. Raises BadOption."""
    apps = tuple(app for app in objects if isinstance(app, App))
    if not apps or len(apps) < len(objects):
        other = next((app for app in objects if not isinstance(app, App)), "nothing")
        raise BadOption(where, f"expected treadle.App objects, found {other!r}")
    return apps


def workers_of(apps: Sequence[App], options: Mapping[str, Any] | None) -> list[tuple[App, Worker]]:
    """A worker for each app with these options; none for None. Raises BadOption."""
    chosen: object = options
    if chosen is None:
        return []
    if not isinstance(chosen, Mapping):
        raise BadOption(
            "worker", f'expected the options of treadle.Worker, such as {{"concurrency": 5}}, found {chosen!r}'
        )
    return [(app, Worker(app, **chosen)) for app in apps]


@asynccontextmanager
async def running(
    apps: Sequence[App], workers: Sequence[tuple[App, Worker]], own: AbstractAsyncContextManager[T]
) -> AsyncIterator[T]:
    """Keep the apps open and the workers running around the host's own lifespan. Inside `app.testing()` no worker is
    started: the test runs the jobs."""
    async with AsyncExitStack() as stack:
        for app in apps:
            await stack.enter_async_context(app)
        state = await stack.enter_async_context(own)
        for app, worker in workers:
            if not app._core.in_test:
                await stack.enter_async_context(worker)
        yield state
