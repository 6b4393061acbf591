"""taskiq with taskiq-redis, on a list or on a stream: one process, uvloop, orjson.

It has no bulk call. `socket_timeout=None` is needed because the list broker waits forever in BRPOP: the client's
default of five seconds would end an idle worker.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from taskiq.receiver import Receiver
from taskiq.serializers import ORJSONSerializer
from taskiq_redis import ListQueueBroker, RedisAsyncResultBackend, RedisStreamBroker

from benchmarks.adapters.frame import ASK, BALLAST, CRASH, VALUE, About, Producer, body, main, run

UVLOOP = True
STREAM = ASK.variant == "stream"
CONCURRENCY = ASK.concurrency or 32
ABOUT = About(
    packages=("taskiq", "taskiq-redis", "redis", "hiredis", "uvloop"),
    settled=(["GROUP", "taskiq"],) if STREAM else (["LLEN", "taskiq"],),
    worker="loses nothing: unacknowledged entries are delivered again after 10 minutes"
    if STREAM
    else "loses the jobs that run or were prefetched: they leave the list when a worker takes them",
    server=CRASH.get(ASK.storage, ""),
    notes="uvloop, orjson, 32 tasks at once and as many prefetched unless concurrency is set; no bulk call",
    can=("results", "processes"),
)
logging.disable(logging.WARNING)
url, pool = ASK.url or "redis://localhost", {"max_connection_pool_size": 100, "socket_timeout": None}
broker: Any = (
    RedisStreamBroker(url, consumer_id="0", xread_count=CONCURRENCY, **pool) if STREAM else ListQueueBroker(url, **pool)
)
broker = broker.with_serializer(ORJSONSerializer())
if ASK.results:
    broker = broker.with_result_backend(RedisAsyncResultBackend(url, result_ex_time=300))


@broker.task(task_name="noop")
async def noop(sent: float, ballast: str = "") -> int | None:
    await body(sent)
    return VALUE


@asynccontextmanager
async def producer() -> AsyncIterator[Producer]:
    async def one(sent: float) -> None:
        if BALLAST:
            await noop.kiq(sent, BALLAST)
        else:
            await noop.kiq(sent)

    async def result() -> None:
        sent = await noop.kiq(0.0)
        await sent.wait_result(check_interval=0.001, timeout=30)

    await broker.startup()
    yield Producer(one, result=result)
    await broker.shutdown()


async def work() -> None:
    finish = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, finish.set)
    broker.is_worker_process = True
    await Receiver(broker, max_async_tasks=CONCURRENCY, max_prefetch=CONCURRENCY).listen(finish)


def worker() -> None:
    run(work(), UVLOOP)


async def setup() -> None:
    await broker.startup()  # creates the group of the stream
    await broker.shutdown()


if __name__ == "__main__":
    main(sys.modules[__name__])
