"""saq on Redis or PostgreSQL: uvloop, many jobs at once in one process; ttl=-1 turns results off.

It has no bulk call. Its own benchmark gathers many enqueues, like the measure with 100 coroutines.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from saq import Queue, Worker

from benchmarks.adapters.frame import ASK, BALLAST, CRASH, VALUE, About, Producer, body, main, run

UVLOOP = True
POSTGRES = ASK.storage == "postgres"
TTL = 300 if ASK.results else -1
REDIS = (["ZCARD", "saq:default:incomplete"], ["LLEN", "saq:default:active"])
ABOUT = About(
    packages=("saq", "psycopg", "uvloop") if POSTGRES else ("saq", "redis", "hiredis", "uvloop"),
    settled="SELECT count(*) FROM saq_jobs WHERE status IN ('new', 'queued', 'active')" if POSTGRES else REDIS,
    worker="loses a job that has no retries left (its default is 1 try); others are swept and tried again",
    server=CRASH.get(ASK.storage, ""),
    notes="uvloop, concurrency 32 unless set; no bulk call",
    can=("results", "processes"),
)
logging.disable(logging.WARNING)


async def noop(ctx: Any, *, sent: float, ballast: str = "") -> int | None:
    await body(sent)
    return VALUE


def arguments(sent: float) -> dict[str, Any]:
    return {"sent": sent, "ballast": BALLAST} if BALLAST else {"sent": sent}


@asynccontextmanager
async def producer() -> AsyncIterator[Producer]:
    queue = Queue.from_url(ASK.url)
    await queue.connect()

    async def one(sent: float) -> None:
        await queue.enqueue("noop", ttl=TTL, **arguments(sent))

    async def result() -> None:
        await queue.apply("noop", timeout=30, ttl=300, sent=0.0)

    yield Producer(one, result=result)
    await queue.disconnect()


async def work() -> None:
    queue = Queue.from_url(ASK.url)
    await queue.connect()
    await Worker(queue, [noop], concurrency=ASK.concurrency or 32).start()


def worker() -> None:
    run(work(), UVLOOP)


async def setup() -> None:
    queue = Queue.from_url(ASK.url)
    await queue.connect()
    await asyncio.sleep(0)
    await queue.disconnect()


if __name__ == "__main__":
    main(sys.modules[__name__])
