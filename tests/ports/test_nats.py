"""Queue, store and pub/sub on NATS: the suites of all ports on a real server; and an App on the three."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable
from typing import Any

import pytest

from tests.servers import nats
from treadle import App, Worker, flow
from treadle.ports.nats import nats_pubsub, nats_queue, nats_store
from treadle_testkit.ports.pubsub import *  # noqa: F403
from treadle_testkit.ports.queue import *  # noqa: F403
from treadle_testkit.ports.store import *  # noqa: F403

_names = (f"n{os.getpid()}-{n}" for n in itertools.count())


def url() -> str:
    return nats.shared().url


@pytest.fixture
def advance() -> Callable[[float], Any]:
    return asyncio.sleep  # the server has a clock of its own


@pytest.fixture
def make_queue() -> Any:
    return lambda clock: nats_queue(url(), next(_names))


@pytest.fixture
def make_store() -> Any:
    return lambda clock: nats_store(url(), next(_names))


@pytest.fixture
def make_pubsub() -> Any:
    return lambda clock: nats_pubsub(url())


async def test_an_app_on_nats_alone() -> None:
    name = next(_names)
    ports = (nats_queue(url(), name), nats_pubsub(url()), nats_store(url(), name))
    app = App(ports=ports, namespace=name)

    @app.task
    async def add(a: int, b: int) -> int:
        return a + b

    @app.task(reduce="sum")
    async def fan(width: int) -> Any:
        return flow(add.job(n, 1) for n in range(width))

    async with app, Worker(app, poll=0.2):
        job = await fan.enqueue(20)
        assert await job.workflow.result(60) == sum(range(1, 21))
    async with app:
        assert (await app.jobs.get(job.id)).state == "succeeded"


async def test_a_dead_reader_loses_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.ports.nats.BEAT", 1.0)
    name = next(_names)
    dying, living = nats_queue(url(), name), nats_queue(url(), name)
    await dying.push("a")
    [pulled] = await dying.pop(1, 3600)
    await dying.close()  # closed without an ack; the server waits for its own short lease, not for an hour
    found: list[Any] = []
    async with asyncio.timeout(60):
        while not found:
            found = await living.pop(1, 60)
    assert (found[0].body, found[0].attempt) == (pulled.body, 2)
    assert await living.ack(found[0].handle)
    await living.close()


class LastMoment:
    """A reader whose wait ends within its last 0.1 ms: the client then raises Python's own error."""

    async def fetch(self, count: int, timeout: float) -> list[Any]:
        raise TimeoutError


async def test_an_empty_queue_returns_nothing_also_at_its_timeout() -> None:
    queue = nats_queue(url(), next(_names))
    assert await queue.size() == 0
    queue._reader = LastMoment()
    assert await queue.pop(5, 60) == []
    await queue.close()
