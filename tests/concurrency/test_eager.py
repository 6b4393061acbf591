"""A program that sets `asyncio.eager_task_factory`: a task may end before its creator has stored it.

`TEST_EAGER=1` runs the whole suite this way.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures import KINDS, a_url
from tests.served import memory_url
from treadle import App, Worker
from treadle.ports.memory import memory_backend
from treadle.server.prometheus import StoredReader
from treadle.server.prometheus.reader import FRESH
from treadle.testing import HandClock

pytestmark = pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with Python 3.12")


@pytest.fixture(params=[*KINDS, "http", "ports"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[App]:
    if request.param == "ports":
        yield App(ports=memory_backend())
    elif request.param == "http":
        yield App(memory_url(None))
    else:
        with a_url(request.param, tmp_path) as url:
            yield App(url)


def test_jobs_one_by_one_and_side_by_side(app: App) -> None:
    @app.task
    async def double(n: int) -> int:
        return 2 * n

    async def result(n: int) -> Any:
        return await (await double.enqueue(n)).result(30)

    async def main() -> None:
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined,unused-ignore]
        async with app:
            for n in range(3):
                await double.enqueue(n)
            await asyncio.gather(*(double.enqueue(n) for n in range(20)))
            await asyncio.gather(*(app.jobs.list(limit=1) for _ in range(3)))
            async with Worker(app, poll=0.2):
                assert await result(7) == 14
                assert sum(await asyncio.gather(*(result(n) for n in range(20)))) == 380

    asyncio.run(main())


def test_metrics_are_read_again_and_again() -> None:
    """On a storage in memory a read never waits: it ends before `scrape` has stored its task."""

    async def main() -> None:
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined,unused-ignore]
        clock = HandClock()
        async with App("memory://") as app:
            reader = StoredReader(app._core, now=clock)
            await reader.scrape()
            clock.advance(2 * FRESH)
            assert (await reader.scrape()).age == 0

    asyncio.run(main())
