"""arq: uvloop, 100 jobs at once, results off by keep_result=0; polls every 10 ms (its default is 0.5 s)."""

from __future__ import annotations

import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from arq import create_pool
from arq.connections import RedisSettings
from arq.worker import Worker

from benchmarks.adapters.frame import ASK, BALLAST, CRASH, VALUE, About, Producer, body, main, run

UVLOOP = True
ABOUT = About(
    packages=("arq", "redis", "hiredis", "uvloop"),
    settled=(["ZCARD", "arq:queue"],),
    worker="loses nothing: jobs stay queued until they have ended, and run again when their mark has expired",
    server=CRASH.get(ASK.storage, ""),
    notes="uvloop, max_jobs 100 unless concurrency is set, poll_delay 0.01; no bulk call",
    can=("results", "processes"),
)
logging.disable(logging.WARNING)
SETTINGS = RedisSettings.from_dsn(ASK.url or "redis://localhost")


async def noop(ctx: Any, sent: float, ballast: str = "") -> int | None:
    await body(sent)
    return VALUE


@asynccontextmanager
async def producer() -> AsyncIterator[Producer]:
    pool = await create_pool(SETTINGS)

    async def one(sent: float) -> None:
        await (pool.enqueue_job("noop", sent, BALLAST) if BALLAST else pool.enqueue_job("noop", sent))

    async def result() -> None:
        job = await pool.enqueue_job("noop", 0.0)
        await job.result(timeout=30, poll_delay=0.001)

    yield Producer(one, result=result)
    await pool.aclose()


async def work() -> None:
    await Worker(
        [noop],
        redis_settings=SETTINGS,
        max_jobs=ASK.concurrency or 100,
        poll_delay=0.01,
        keep_result=300 if ASK.results else 0,
    ).main()


def worker() -> None:
    run(work(), UVLOOP)


if __name__ == "__main__":
    main(sys.modules[__name__])
