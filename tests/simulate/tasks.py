"""The tasks of the mixed fleet: every kind of job."""

from __future__ import annotations

import asyncio
from typing import Any

from treadle import App, Flow, Limit, Retry, at_least, current, flow, gather
from treadle.testing.history import History
from treadle.testing.simulation import ACTOR

app = App("memory://", retry=Retry(attempts=30, base=0.05, max=1.0))
app.limits.declare(
    Limit("account", slots=1),
    Limit("api", slots=2),
    Limit("calls", rate=3, per=1.0),
    Limit("wide", slots=3),
    Limit("tokens", rate=2, per=1.0, how="bucket", burst=3),
    Limit("until ended", slots=1, hold="ended"),
)
OFTEN = 1_000  # a simulation kills more workers than a job may lose


def here() -> History:
    """The history of the process that runs this."""
    actor = ACTOR.get()
    assert actor is not None
    return actor.history


@app.task(max_lost=OFTEN)
async def plain(n: int) -> int:
    await asyncio.sleep(0.01 * (n % 7))
    return n


@app.task(max_lost=OFTEN)
async def flaky(n: int) -> int:
    await asyncio.sleep(0.02)
    if current().attempt < 1 + n % 3:
        raise ValueError("not yet")
    return n


@app.task(max_lost=OFTEN)
async def long(n: int) -> int:
    await asyncio.sleep(7.0)
    return n


@app.task(max_lost=OFTEN)
async def slow_retry(n: int) -> int:
    """Fails at its first try, and runs longer than a lease at its second."""
    if current().attempt < 2:
        raise ValueError("not yet")
    await asyncio.sleep(7.0)
    return n


@app.task(max_lost=OFTEN)
def in_thread(n: int) -> int:
    return n


@app.task(max_lost=OFTEN, retry=Retry(attempts=2, base=0.1))
async def hopeless(n: int) -> int:
    raise ValueError("never")


@app.task(max_lost=OFTEN, retry=Retry(attempts=1))
async def second_chance(n: int) -> int:
    """Fails until an operator retries it."""
    if not current().record.reopenings:
        raise ValueError("not yet")
    return n


@app.task(max_lost=OFTEN, reduce="sum")
async def unlucky(n: int) -> Flow[int]:
    return flow(plain.options(keep=0).job(n), second_chance.job(n))


@app.task(max_lost=OFTEN)
async def total() -> int:
    """The sum of the jobs that it waited for."""
    return sum(await current().upstream())


@app.task(max_lost=OFTEN, queue="strict")
async def in_turn(n: int) -> int:
    await asyncio.sleep(0.05 * (n % 3))
    return n


@app.task(max_lost=OFTEN, reduce="sum")
async def parent(n: int) -> Flow[int]:
    return flow(plain.job(n), flaky.job(n), middle.job(n))


@app.task(max_lost=OFTEN, reduce="sum")
async def middle(n: int) -> Flow[int]:
    return flow(plain.job(n), plain.job(2 * n))


@app.task(max_lost=OFTEN)
async def fan_in(n: int) -> Any:
    return gather(*(plain.job(n + each) for each in range(3))).into(add)


@app.task(max_lost=OFTEN)
async def add(parts: list[int]) -> int:
    return sum(parts)


@app.task(max_lost=OFTEN)
async def fan_list(n: int) -> Any:
    return gather(*(plain.job(n + 2 - each) for each in range(3))).into(pack)


@app.task(max_lost=OFTEN)
async def pack(parts: list[int]) -> list[int]:
    return parts


@app.task(max_lost=OFTEN)
async def add_two(n: int) -> int:
    return n + 2


@app.task(max_lost=OFTEN)
async def tolerant(n: int) -> Any:
    return gather(plain.job(n), hopeless.job(n), plain.job(n), when=at_least(2)).into(count)


@app.task(max_lost=OFTEN)
async def count(parts: list[int | None]) -> int:
    return sum(part is not None for part in parts)


@app.task(max_lost=OFTEN)
async def sender(n: int) -> int:
    """Enqueues within its run; a repeated run enqueues the same jobs."""
    for each in range(2):
        await plain.enqueue(n + each)
    return n


@app.task(max_lost=OFTEN)
async def keyed(n: int) -> int:
    await asyncio.sleep(0.3)
    return n


@app.task(max_lost=OFTEN)
async def durable(n: int) -> str:
    me, version = current().id, current().version

    async def pay() -> str:
        here().add("step", me, name="pay", version=version)
        await asyncio.sleep(0.02)
        return f"{n} at {version}"

    paid = await current().step("pay", pay)
    here().add("kept", me, name="pay", version=version, text=paid)
    here().add("waits", me, name="sleep", version=version, seconds=0.5)
    await current().sleep(0.5)
    here().add("waited", me, name="sleep", version=version)
    word = await current().wait_for("go", returns=str)
    here().add("received", me, name="go", text=word)
    return f"{paid} {word}"


@app.task(max_lost=OFTEN, retry=Retry(attempts=1))
async def racing(n: int) -> int:
    """A race of two waits by asyncio's own means, which the engine refuses."""
    waits = [asyncio.ensure_future(current().sleep(1.0)), asyncio.ensure_future(current().wait_for("never"))]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    return n


@app.task(max_lost=OFTEN)
async def sharing(n: int) -> Any:
    """Returns a job whose key another one may hold; then it gets the value of that one."""
    return gather(keyed.options(key=f"shared-{n}").job(n), plain.job(n)).into(add)


@app.task(max_lost=OFTEN, reduce="sum")
async def sharing_beside(n: int) -> Flow[int]:
    """The same as `sharing`, but it waits for the children itself."""
    return flow(keyed.options(key=f"shared-{n}").job(n), plain.job(n))


@app.batch(size=4, max_wait=0.2, max_lost=OFTEN)
async def together(items: list[int]) -> list[int]:
    await asyncio.sleep(0.05)
    return [2 * item for item in items]


@app.every(4.0)
@app.task(max_lost=OFTEN)
async def tick() -> None: ...
