"""rq: its SimpleWorker, documented as the fast one (no fork per job), which runs one job at a time."""

from __future__ import annotations

import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import redis
from rq import Queue, SimpleWorker

from benchmarks.adapters.frame import ASK, BALLAST, CRASH, VALUE, About, Producer, body_plain, main

ABOUT = About(
    packages=("rq", "redis", "hiredis"),
    settled=(["LLEN", "rq:queue:default"], ["ZCARD", "rq:wip:default"]),
    worker="keeps the job as abandoned: it is failed after its time limit, and tried again if it has retries",
    server=CRASH.get(ASK.storage, ""),
    notes="SimpleWorker, one job at a time; bulk is enqueue_many; result_ttl=0 unless results are on",
    can=("results", "processes", "fanin"),
    serial=True,
)
connection: Any = redis.Redis.from_url(ASK.url or "redis://localhost")
queue: Any = Queue(connection=connection)
NOOP, TTL = "benchmarks.adapters.rq.noop", 300 if ASK.results else 0


def noop(sent: float = 0.0, ballast: str = "") -> int | None:
    body_plain(sent)
    return VALUE


def arguments(sent: float) -> tuple[Any, ...]:
    return (sent, BALLAST) if BALLAST else (sent,)


@asynccontextmanager
async def producer() -> AsyncIterator[Producer]:
    def one(sent: float) -> None:
        queue.enqueue(NOOP, args=arguments(sent), result_ttl=TTL)

    def many(n: int) -> None:
        queue.enqueue_many([Queue.prepare_data(NOOP, args=arguments(0.0), result_ttl=TTL) for _ in range(n)])

    def result() -> None:
        job = queue.enqueue(NOOP, args=(0.0,), result_ttl=300)
        job.latest_result(timeout=30)

    def fan(n: int) -> None:
        jobs = queue.enqueue_many([Queue.prepare_data(NOOP, args=(0.0,), result_ttl=300) for _ in range(n)])
        queue.enqueue(NOOP, depends_on=jobs, result_ttl=300)

    yield Producer(one, many, result, fan)


def worker() -> None:
    logging.disable(logging.WARNING)
    SimpleWorker([queue], connection=connection).work(logging_level="WARNING")


if __name__ == "__main__":
    main(sys.modules[__name__])
