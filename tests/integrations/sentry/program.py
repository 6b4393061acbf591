"""Every way in which a job can die, with Sentry set up as its documentation says."""

from __future__ import annotations

import asyncio
import os

import sentry_sdk

from treadle import Abort, App, Defer, Retry, current
from treadle.integrations.sentry import TreadleIntegration

# Sentry's own integrations would import every framework that the tests need: 4 s in each process.
sentry_sdk.init(dsn=os.environ["DSN"], integrations=[TreadleIntegration()], auto_enabling_integrations=False)
app = App("sqlite:///jobs.db", retry=Retry(attempts=2, base=0.01))


@app.task
async def fine() -> str:
    return "fine"


@app.task
async def raises() -> None:
    raise ValueError("async")


@app.task
def in_thread() -> None:
    raise KeyError("thread")


@app.task(kind="process")
def in_process() -> None:
    raise ZeroDivisionError("process")


@app.batch(size=3, max_wait=0.05)
async def in_batch(items: list[int]) -> list[int]:
    raise RuntimeError("batch")


@app.task(timeout=0.05)
async def hangs() -> None:
    await asyncio.Event().wait()


@app.task
async def reads(number: int) -> None: ...


@app.task
async def misreturns() -> int:
    return "no number"  # type: ignore[return-value]


@app.task
async def gives_up() -> None:
    raise Abort("no such customer")


@app.task
async def fails_once() -> None:
    if current().attempt == 1:
        raise OSError("once")


@app.task
async def comes_later() -> None:
    if not current().headers.get("late") and current().record.version == 1:
        raise Defer(0.01)


@app.task
async def reports_itself() -> None:
    try:
        raise LookupError("mine")
    except LookupError as error:
        sentry_sdk.capture_exception(error)
        raise


async def main() -> None:
    """Enqueue all, and wait until all have ended."""
    async with app:
        jobs = await app.enqueue(
            [
                *(task.job() for task in (fine, raises, in_thread, in_process, hangs, misreturns, gives_up)),
                *(task.job() for task in (fails_once, comes_later, reports_itself)),
                *(in_batch.job(number) for number in range(3)),
                app.stub("reads").job("no number"),
            ]
        )
        for job in jobs:
            await job.ended(timeout=60)


if __name__ == "__main__":
    asyncio.run(main())
