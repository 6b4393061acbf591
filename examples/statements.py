"""Scheduled work with a rate limit; failed jobs are kept as dead letters until a person retries them.

    treadle worker examples/statements.py:app       # in one terminal
    python examples/statements.py                   # in another

Twice a second a schedule collects statements and sends them to a partner's server, which accepts two at a time and ten
a second. The server does not know one of the customers. Those jobs are kept as dead letters; once the partner has
corrected the mistake they are sent again.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from treadle import App, Limit, Retry, Worker, current

app = App()
app.limits.declare(Limit("partner", slots=2, rate=10, per=1))

FIXED = Path("customer-c-is-known")  # simulates the correction at the partner


@app.task(name="post", queue="statements", limits=["partner"], retry=Retry(attempts=2, base=0.1))
def post(customer: str) -> str:
    """Runs in a thread of the worker. The limit applies to all workers together."""
    if customer == "c" and not FIXED.exists():
        raise LookupError("customer c is not known here")
    return f"statement for {customer}"


@app.every(0.5, overlap="skip")
@app.task(name="collect", queue="statements")
async def collect() -> None:
    # The ids contain the tick's id, so a retried collection sends nothing twice.
    tick = current().id
    await app.enqueue([post.options(id=f"{customer}:{tick}").job(customer) for customer in "abc"])


def fix() -> None:
    FIXED.touch()


async def unfinished() -> int:
    """The number of jobs that are queued or running."""
    page = await app.jobs.list(queue="statements", state=["ready", "running"], limit=0, count=True)
    return page.total or 0


async def look_after() -> None:
    """Do what a person would do: read the error, fix its cause, retry the failed jobs."""
    while not (page := await app.dead.list(task=post)).records:  # noqa: ASYNC110  a person who looks now and then
        await asyncio.sleep(0.05)
    print("kept:", (page.records[0].error or "").splitlines()[-1])
    await app.schedules.pause("collect")
    fix()
    while await unfinished() or await app.dead.retry(task=post):  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    results = {row.result async for row in app.jobs.iterate(task=post)}
    print("sent:", ", ".join(sorted(str(result) for result in results)))


async def main(with_worker: bool) -> None:
    async with app:
        if not with_worker:
            await look_after()
            return
        async with Worker(app):
            await look_after()


if __name__ == "__main__":
    asyncio.run(main("--worker" in sys.argv))
