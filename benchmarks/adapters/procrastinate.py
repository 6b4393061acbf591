"""procrastinate: psycopg pool, LISTEN/NOTIFY, batch_defer for many jobs, uvloop; finished jobs are deleted."""

from __future__ import annotations

import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from procrastinate import App, PsycopgConnector

from benchmarks.adapters.frame import ASK, BALLAST, About, Producer, body, main, run

UVLOOP = True
ABOUT = About(
    packages=("procrastinate", "psycopg", "uvloop"),
    settled="SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')",
    worker="keeps the jobs as `doing`; a task of your own must find stalled ones and retry them",
    server="loses nothing",
    notes="uvloop, concurrency 16 unless set (its pool has 20), delete_jobs=always; bulk is batch_defer_async",
    can=("processes",),
)
logging.disable(logging.WARNING)

app = App(connector=PsycopgConnector(conninfo=ASK.url, min_size=4, max_size=20))


@app.task(name="noop")
async def noop(sent: float, ballast: str = "") -> None:
    await body(sent)


def arguments(sent: float) -> dict[str, Any]:
    return {"sent": sent, "ballast": BALLAST} if BALLAST else {"sent": sent}


@asynccontextmanager
async def producer() -> AsyncIterator[Producer]:
    async def one(sent: float) -> None:
        await noop.defer_async(**arguments(sent))

    async def many(n: int) -> None:
        await noop.batch_defer_async(*[arguments(0.0) for _ in range(n)])

    async with app.open_async():
        yield Producer(one, many)


async def work() -> None:
    async with app.open_async():
        await app.run_worker_async(concurrency=ASK.concurrency or 16, delete_jobs="always")


def worker() -> None:
    run(work(), UVLOOP)


async def setup() -> None:
    async with app.open_async():
        await app.schema_manager.apply_schema_async()


if __name__ == "__main__":
    main(sys.modules[__name__])
