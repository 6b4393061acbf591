"""pgqueuer: asyncpg, uvloop, claims and completions in batches; completed jobs move to its log table."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

from benchmarks.adapters.frame import ASK, BALLAST, About, Producer, body, main, run

UVLOOP = True
ABOUT = About(
    packages=("pgqueuer", "asyncpg", "uvloop"),
    settled="SELECT count(*) FROM pgqueuer",
    worker="loses nothing: jobs without a heartbeat are taken again after 30 s",
    server="loses nothing",
    notes="asyncpg, uvloop, batch_size 300 unless concurrency is set; bulk is enqueue() with lists; a pool of 10 sends",
    can=("limits", "processes"),
)


@asynccontextmanager
async def producer() -> AsyncIterator[Producer]:
    pool = await asyncpg.create_pool(ASK.url, min_size=2, max_size=10)
    sender = Queries(AsyncpgPoolDriver(pool))

    async def one(sent: float) -> None:
        await sender.enqueue("noop", f"{sent} {BALLAST}".encode())

    async def many(n: int) -> None:
        await sender.enqueue(["noop"] * n, [f"0.0 {BALLAST}".encode()] * n, [0] * n)

    yield Producer(one, many)
    await pool.close()


async def work() -> None:
    connection = await asyncpg.connect(ASK.url)
    queue = PgQueuer(AsyncpgDriver(connection))
    options: dict[str, Any] = {"concurrency_limit": 1_000_000} if ASK.feature == "limits" else {}

    @queue.entrypoint("noop", **options)
    async def noop(job: Job) -> None:
        await body(float((job.payload or b"0").split(b" ", 1)[0]))

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, queue.shutdown.set)
    # max_concurrent_tasks must be at least twice the batch size
    batch = max(1, ASK.concurrency // 2) if ASK.concurrency else 300
    await queue.run(dequeue_timeout=timedelta(seconds=30), batch_size=batch, max_concurrent_tasks=ASK.concurrency)


def worker() -> None:
    run(work(), UVLOOP)


async def setup() -> None:
    connection = await asyncpg.connect(ASK.url)
    await Queries(AsyncpgDriver(connection)).install()
    await connection.close()


if __name__ == "__main__":
    main(sys.modules[__name__])
