"""huey on Redis or SQLite: one process, two threads (more are slower for no-op jobs), results off.

It has no bulk call. Its documentation suggests fsync off for speed on SQLite; both settings are measured. With results
on, the return value of a job is stored, here a number.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from huey import RedisHuey, SqliteHuey

from benchmarks.adapters.frame import ASK, BALLAST, CRASH, VALUE, About, Producer, body_plain, main

SQLITE = ASK.storage.startswith("sqlite")
FSYNC = ASK.storage == "sqlite-full"
ABOUT = About(
    packages=("huey",) if SQLITE else ("huey", "redis", "hiredis"),
    settled="SELECT count(*) FROM task" if SQLITE else (["LLEN", "huey.redis.peer"],),
    worker="loses the jobs that run: they leave the queue when a worker takes them",
    server=("loses nothing" if FSYNC else "the machine may lose the last moments, and may damage the file")
    if SQLITE
    else CRASH.get(ASK.storage, ""),
    notes=f"2 threads unless concurrency is set; no bulk call{f'; fsync {FSYNC}' if SQLITE else ''}",
    can=("results", "processes", "fanin"),
)
options: dict[str, Any] = {"results": ASK.results, "store_none": False}


def on_redis() -> RedisHuey:
    """With enough connections: the driver's default is 100, and each thread needs one."""
    from redis import ConnectionPool

    pool = ConnectionPool.from_url(ASK.url or "redis://localhost", max_connections=1_000)
    return RedisHuey("peer", connection_pool=pool, **options)


queue = (
    SqliteHuey("peer", filename=ASK.url.removeprefix("sqlite:///"), fsync=FSYNC, **options) if SQLITE else on_redis()
)


@queue.task()
def noop(sent: float, ballast: str = "") -> int | None:
    body_plain(sent)
    return VALUE


@queue.task()
def fold(values: Any = None) -> int:
    body_plain(0.0)
    return 1


@asynccontextmanager
async def producer() -> AsyncIterator[Producer]:
    from huey.api import chord

    def one(sent: float) -> None:
        if BALLAST:
            noop(sent, BALLAST)
        else:
            noop(sent)

    def result() -> None:
        noop(0.0)(blocking=True, timeout=30)

    def fan(n: int) -> None:
        queue.enqueue(chord([noop.s(0.0) for _ in range(n)], fold.s()))

    yield Producer(one, result=result, fan=fan)


def worker() -> None:
    logging.disable(logging.WARNING)
    consumer = queue.create_consumer(
        workers=ASK.concurrency or 2, worker_type="thread", periodic=False, initial_delay=0.01, max_delay=0.1
    )
    consumer.run()


if __name__ == "__main__":
    main(sys.modules[__name__])
