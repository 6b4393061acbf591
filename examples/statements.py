"""Work that comes by itself, no faster than a partner takes it; what could not be done waits for a person.

    treadle worker examples/statements.py:app       # in one terminal
    python examples/statements.py                   # in another

Twice a second statements are collected and sent to a partner, who takes two at a time and ten a second. He does not
know one of the customers. Those jobs are kept as dead letters; once the mistake is mended they are sent again.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from treadle import App, Limit, Retry, Worker, current

app = App()
app.limits.declare(Limit("partner", slots=2, rate=10, per=1))

MENDED = Path("customer-c-is-known")  # stands for a change at the partner's


@app.task(name="post", queue="statements", limits=["partner"], retry=Retry(attempts=2, base=0.1))
def post(customer: str) -> str:
    """In a thread of the worker; the limit holds over all workers."""
    if customer == "c" and not MENDED.exists():
        raise LookupError("customer c is not known here")
    return f"statement for {customer}"


@app.every(0.5, overlap="skip")
@app.task(name="collect", queue="statements")
async def collect() -> None:
    # Ids made of the tick: a collection that is retried sends nothing twice.
    tick = current().id
    await app.enqueue([post.options(id=f"{customer}:{tick}").job(customer) for customer in "abc"])


def mend() -> None:
    MENDED.touch()


async def unfinished() -> int:
    """How many are still to be collected or posted."""
    page = await app.jobs.list(queue="statements", state=["ready", "running"], limit=0, count=True)
    return page.total or 0


async def look_after() -> None:
    """What a person does in the morning."""
    while not (page := await app.dead.list(task=post)).records:  # noqa: ASYNC110  a person who looks now and then
        await asyncio.sleep(0.05)
    print("kept:", (page.records[0].error or "").splitlines()[-1])
    await app.schedules.pause("collect")
    mend()
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
