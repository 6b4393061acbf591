"""streaq: uvloop, 32 jobs at once, and its Redis client in the mode that its documentation calls optimised."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import coredis
from streaq import Worker

from benchmarks.adapters.frame import ASK, BALLAST, CRASH, VALUE, About, Producer, body, main

UVLOOP = True
coredis.Config.optimized = True
ABOUT = About(
    packages=("streaq", "coredis", "uvloop"),
    settled=(["XLEN", "streaq:default:queues:normal"],),  # entries are deleted when their jobs end
    worker="loses nothing: another worker takes entries that were idle for a minute",
    server=CRASH.get(ASK.storage, ""),
    notes="uvloop, concurrency 32 unless set, coredis optimised; bulk is enqueue_many; no results with ttl=0",
    can=("results", "processes", "fanin"),
)
queue: Any = Worker(
    redis_url=ASK.url or "redis://localhost", concurrency=ASK.concurrency or 32, anyio_kwargs={"use_uvloop": True}
)


@queue.task(ttl=300 if ASK.results else 0, silent=True)
async def noop(sent: float, ballast: str = "") -> int | None:
    await body(sent)
    return VALUE


@queue.task(ttl=300, silent=True)
async def kept(sent: float) -> int:
    await body(sent)
    return 1


@queue.task(ttl=0, silent=True)
async def fold() -> None:
    await body(0.0)


def send(sent: float) -> Any:
    return noop.enqueue(sent, BALLAST) if BALLAST else noop.enqueue(sent)


@asynccontextmanager
async def producer() -> AsyncIterator[Producer]:
    async def one(sent: float) -> None:
        await send(sent)

    async def many(n: int) -> None:
        await queue.enqueue_many([send(0.0) for _ in range(n)])

    async def result() -> None:
        task = await kept.enqueue(0.0)
        await task.result(30)

    async def fan(n: int) -> None:
        tasks = [kept.enqueue(0.0) for _ in range(n)]
        await queue.enqueue_many(tasks)
        await fold.enqueue().start(after=[task.id for task in tasks])

    async with queue:
        yield Producer(one, many, result, fan)


def worker() -> None:
    queue.run_sync()


if __name__ == "__main__":
    main(sys.modules[__name__])
