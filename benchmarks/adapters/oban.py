"""oban for Python: psycopg pool, uvloop like its command line, one insert for many jobs, batched acknowledgements."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from oban import Oban
from oban import worker as oban_worker
from oban.schema import install

from benchmarks.adapters.frame import ASK, BALLAST, About, Producer, body, main, run

UVLOOP = True
ABOUT = About(
    packages=("oban", "psycopg", "uvloop"),
    settled="SELECT count(*) FROM oban_jobs WHERE state IN ('available', 'executing', 'scheduled', 'retryable')",
    worker="loses nothing: orphans are rescued (checked every 60 s)",
    server="loses nothing",
    notes="uvloop, 300 jobs at once unless concurrency is set; bulk is enqueue_many; completed rows stay a day",
    can=("processes",),
)


@oban_worker(queue="default")
class Noop:
    async def process(self, job: Any) -> None:
        await body(job.args["sent"])


def arguments(sent: float) -> dict[str, Any]:
    return {"sent": sent, "ballast": BALLAST} if BALLAST else {"sent": sent}


@asynccontextmanager
async def producer() -> AsyncIterator[Producer]:
    pool = await Oban.create_pool(ASK.url)
    async with Oban(pool=pool) as oban:

        async def one(sent: float) -> None:
            await Noop.enqueue(arguments(sent))

        async def many(n: int) -> None:
            await oban.enqueue_many([Noop.new(arguments(0.0)) for _ in range(n)])

        yield Producer(one, many)
    await pool.close()


async def work() -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    pool = await Oban.create_pool(ASK.url)
    async with Oban(pool=pool, queues={"default": ASK.concurrency or 300}):
        await stop.wait()
    await pool.close()


def worker() -> None:
    run(work(), UVLOOP)


async def setup() -> None:
    pool = await Oban.create_pool(ASK.url)
    await install(pool)
    await pool.close()


if __name__ == "__main__":
    main(sys.modules[__name__])
