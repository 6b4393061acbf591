"""celery on Redis: its prefork pool with two children, one per core; no gossip, no results."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from celery import Celery, chord

from benchmarks.adapters.frame import ASK, BALLAST, CRASH, VALUE, About, Producer, body_plain, main

ABOUT = About(
    packages=("celery", "kombu", "redis", "hiredis"),
    settled=(["LLEN", "celery"], ["ZCARD", "unacked_index"]),
    worker="loses the jobs that run, which are acknowledged when they start (acks_late is off); "
    "prefetched jobs return after an hour",
    server=CRASH.get(ASK.storage, ""),
    notes="prefork with 2 children (threads when concurrency is set), prefetch multiplier 64; one borrowed producer; "
    "no bulk call",
    can=("results", "limits", "fanin", "processes"),
)
URL = ASK.url or "redis://localhost"
app: Any = Celery("peer", broker=URL, backend=URL if ASK.results else None)
app.conf.update(
    task_ignore_result=not ASK.results,
    worker_prefetch_multiplier=64,
    worker_send_task_events=False,
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=False,
    result_expires=300,
)


@app.task(name="noop", rate_limit="10000000/s" if ASK.feature == "limits" else None)
def noop(sent: float, ballast: str = "") -> int | None:
    body_plain(sent)
    return VALUE


@app.task(name="fold")
def fold(values: Any) -> int:
    body_plain(0.0)
    return len(values)


@asynccontextmanager
async def producer() -> AsyncIterator[Producer]:
    with app.producer_pool.acquire(block=True) as sender:

        def one(sent: float) -> None:
            noop.apply_async((sent, BALLAST) if BALLAST else (sent,), producer=sender)

        def result() -> None:
            noop.apply_async((0.0,)).get(timeout=30, interval=0.001)

        def fan(n: int) -> None:
            chord([noop.s(0.0) for _ in range(n)])(fold.s())

        yield Producer(one, result=result, fan=fan)


def worker() -> None:
    pool, size = ("threads", ASK.concurrency) if ASK.concurrency else ("prefork", 2)
    app.worker_main(
        [
            "worker",
            "-P",
            pool,
            "-c",
            str(size),
            "-l",
            "ERROR",
            "--without-gossip",
            "--without-mingle",
            "--without-heartbeat",
            "-n",
            f"w{os.getpid()}@here",
        ]
    )


if __name__ == "__main__":
    main(sys.modules[__name__])
