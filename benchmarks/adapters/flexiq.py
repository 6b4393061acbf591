"""flexiq on SQLite or Redis: its thread pool, claims in batches, a short poll.

`push_dispatch`, its default on Redis, waits about two seconds between batches if there is a backlog and a small pool
(9 jobs/s). Polling every 2 ms drains 100 times as much, so polling is measured.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from flexiq import Queue

from benchmarks.adapters.frame import ASK, BALLAST, CRASH, VALUE, About, Producer, body_plain, main

SQLITE = ASK.storage.startswith("sqlite")
ABOUT = About(
    packages=("flexiq",),
    settled="SELECT count(*) FROM jobs WHERE status < 2"
    if SQLITE
    else (["SCARD", "flexiq:jobs:status:0"], ["SCARD", "flexiq:jobs:status:1"]),
    worker="loses nothing: jobs whose time limit has passed are reaped and tried again",
    server=CRASH.get(
        ASK.storage, "a process loses nothing; the machine may lose the last moments (synchronous=normal)"
    ),
    notes="8 threads unless concurrency is set, scheduler_batch_size 64, polls each 2 ms, push_dispatch off; "
    "bulk is enqueue_many; results are always kept",
    can=("results", "limits", "processes", "fanin"),
)
place: dict[str, Any] = (
    {"db_path": ASK.url.removeprefix("sqlite:///") or ":memory:"} if SQLITE else {"backend": "redis", "db_url": ASK.url}
)
queue: Any = Queue(
    workers=ASK.concurrency or 8, scheduler_batch_size=64, scheduler_poll_interval_ms=2, push_dispatch=False, **place
)


@queue.task(name="noop", **({"max_concurrent": 1_000_000} if ASK.feature == "limits" else {}))
def noop(sent: float, ballast: str = "") -> int | None:
    body_plain(sent)
    return VALUE


@queue.task(name="fold")
def fold(values: Any) -> int:
    body_plain(0.0)
    return 1


@asynccontextmanager
async def producer() -> AsyncIterator[Producer]:
    from flexiq import chord, group

    def arguments(sent: float) -> tuple[Any, ...]:
        return (sent, BALLAST) if BALLAST else (sent,)

    def one(sent: float) -> None:
        noop.delay(*arguments(sent))

    def many(n: int) -> None:
        queue.enqueue_many("noop", [arguments(0.0)] * n)

    def result() -> None:
        noop.delay(0.0).result(timeout=30)

    def fan(n: int) -> None:
        chord(group(*[noop.s(0.0) for _ in range(n)]), fold.s()).apply(queue)

    yield Producer(one, many, result, fan)


def worker() -> None:
    logging.disable(logging.WARNING)
    queue.run_worker()


if __name__ == "__main__":
    main(sys.modules[__name__])
