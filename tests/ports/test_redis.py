"""The store and the pub/sub on Redis: the suites of all ports on a real Valkey; and an App on them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections.abc import Callable
from typing import Any

import pytest

from tests.servers import valkey
from tests.waiting import until
from treadle import App, Worker, flow
from treadle.ports import Ports, memory_queue
from treadle.ports.redis import RedisPubSub, RedisStore, redis_pubsub, redis_store
from treadle.storage.composed import ComposedStorage
from treadle_testkit.ports.pubsub import *  # noqa: F403
from treadle_testkit.ports.store import *  # noqa: F403
from treadle_testkit.shows import shows

_names = (f"p{os.getpid()}-{n}:" for n in itertools.count())


@pytest.fixture
def advance() -> Callable[[float], Any]:
    return asyncio.sleep  # the server has a clock of its own


@pytest.fixture
def make_pubsub() -> Any:
    return lambda clock: redis_pubsub(valkey.url())


class Apart(RedisStore):
    """A store with a prefix of its own, on a server that other tests use too."""

    def __init__(self) -> None:
        super().__init__(valkey.url())
        self._prefix = next(_names)

    async def get(self, key: str) -> str | None:
        return await super().get(self._prefix + key)

    async def set(self, key: str, value: str, ttl: float | None = None) -> None:
        await super().set(self._prefix + key, value, ttl)

    async def delete(self, key: str) -> None:
        await super().delete(self._prefix + key)

    async def set_if_absent(self, key: str, value: str, ttl: float | None = None) -> bool:
        return await super().set_if_absent(self._prefix + key, value, ttl)

    async def increment(self, key: str, by: int = 1, ttl: float | None = None) -> int:
        return await super().increment(self._prefix + key, by, ttl)


@pytest.fixture
def make_store() -> Any:
    return lambda clock: Apart()


@shows("a Redis store and Redis pub/sub run a workflow")
async def test_an_app_on_redis_ports_runs_a_workflow() -> None:
    ports = Ports(memory_queue(), redis_pubsub(valkey.url()), redis_store(valkey.url()))
    app = App(ports=ports, namespace=next(_names).rstrip(":"))

    @app.task
    async def add(a: int, b: int) -> int:
        return a + b

    @app.task(reduce="sum")
    async def fan(width: int) -> Any:
        return flow(add.job(n, 1) for n in range(width))

    async with app, Worker(app):
        job = await fan.enqueue(20)
        assert await job.workflow.result(60) == sum(range(1, 21))


@shows("four clients of one Redis store take each job once")
async def test_processes_share_a_log_on_a_real_store() -> None:
    """Several processes at once, each log entry won by one of them: every job is stored and taken once."""
    from treadle_testkit.conformance.kit import claim, job

    name = next(_names).rstrip(":")

    def make() -> ComposedStorage:
        ports = Ports(memory_queue(), RedisPubSub(valkey.url()), RedisStore(valkey.url()))
        return ComposedStorage(ports, namespace=name, every=20)

    storages = [make() for _ in range(4)]
    for storage in storages:
        await storage.open()

    async def crowd(n: int) -> list[str]:
        storage, taken = storages[n % 4], list[str]()
        for k in range(10):
            await storage.enqueue([job(f"{n}-{k}")])
            taken += [row.job.id for row in await claim(storage, 2)]
        return taken

    taken = [id for some in await asyncio.gather(*(crowd(n) for n in range(8))) for id in some]
    assert sorted(taken) == sorted(f"{n}-{k}" for n in range(8) for k in range(10))
    for storage in storages:
        await storage.close()


async def test_a_message_that_is_no_text_does_not_stop_the_listening() -> None:
    pubsub, channel = redis_pubsub(valkey.url()), next(_names)
    heard = asyncio.Queue[str]()
    await pubsub.subscribe(channel, heard.put_nowait)
    try:
        await pubsub.redis.publish(channel, b"\xff")
        await pubsub.publish(channel, "x")
        async with asyncio.timeout(10):
            while await heard.get() != "x":
                pass
    finally:
        await pubsub.close()


async def test_listeners_receive_messages_again_after_an_outage() -> None:
    server = valkey.Valkey().start()
    try:
        pubsub = redis_pubsub(server.url)
        heard: list[str] = []
        await pubsub.subscribe("c", heard.append)
        server.kill()
        server.start()

        async def published() -> bool:
            with contextlib.suppress(Exception):
                await pubsub.publish("c", "again")
            return bool(heard)

        await until(published, "a message that comes back from the server")
        await pubsub.close()
    finally:
        server.close()
