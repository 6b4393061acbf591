"""Treadle as a user runs it: as its documentation shows, with nothing switched off."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

from benchmarks.adapters.frame import ASK, BALLAST, CRASH, VALUE, About, Producer, body, main, run
from treadle import App, Limit, Worker, gather

REDIS = (["ZCARD", "{treadle:default}:line:0:default"], ["ZCARD", "{treadle:default}:due"])
UVLOOP = True  # like `treadle worker` if it is installed
ABOUT = About(
    packages=("treadle", "msgspec", "uvloop"),
    settled={
        "postgres": "SELECT count(*) FROM treadle.job",  # holds only unfinished jobs
        "redis": REDIS,
        "redis-aof": REDIS,
        "sqlite-normal": "SELECT count(*) FROM job WHERE queue_position IS NOT NULL OR state < 3",
        "sqlite-full": "SELECT count(*) FROM job WHERE queue_position IS NOT NULL OR state < 3",
    }.get(ASK.storage, ()),
    worker="loses nothing: leases expire, and the jobs run again",
    server={
        **CRASH,
        "sqlite-full": "loses nothing",
        "sqlite-normal": "a process loses nothing; the machine may lose the last moments",
    }.get(ASK.storage, ""),
    notes="uvloop, concurrency 256; plain jobs with keep=0, results kept for a day otherwise",
    can=("results", "limits", "lanes", "fanin", "processes"),
)
EXTRA: dict[str, dict[str, Any]] = {"limits": {"limits": ["api"]}, "results": {}, "fanin": {}}
KEEP: dict[str, Any] = EXTRA.get(ASK.feature, {"keep": 0}) | ({"keep": 0} if ASK.feature == "limits" else {})

URL = f"{ASK.url}?synchronous=normal" if ASK.storage == "sqlite-normal" else ASK.url
app = App(URL or "memory://")
_numbers = count()


@app.task(name="noop")
async def noop(sent: float, ballast: str = "") -> int | None:
    await body(sent)
    return VALUE


@app.task(name="fold")
async def fold(values: list[int | None]) -> int:
    await body(0.0)
    return len(values)


def asked() -> Any:
    if ASK.feature == "lanes":
        return noop.options(lane=f"tenant-{next(_numbers) % 10}", keep=0)
    return noop.options(**KEEP)


def arguments(sent: float) -> tuple[Any, ...]:
    return (sent, BALLAST) if BALLAST else (sent,)


@asynccontextmanager
async def producer() -> AsyncIterator[Producer]:
    plain = asked()
    kept = noop.options()

    async def one(sent: float) -> None:
        await plain.enqueue(*arguments(sent))

    async def many(n: int) -> None:
        if ASK.feature == "lanes":
            await app.enqueue([asked().job(*arguments(0.0)) for _ in range(n)])
        else:
            await app.enqueue([plain.job(*arguments(0.0)) for _ in range(n)])

    async def result() -> None:
        job = await kept.enqueue(0.0)
        await job.result(timeout=30)

    async def fan(n: int) -> None:
        await gather(noop.job(0.0) for _ in range(n)).into(fold).enqueue()

    async with app:
        yield Producer(one, many, result, fan)


async def work() -> None:
    await Worker(app, concurrency=ASK.concurrency or 256).run()


def worker() -> None:
    run(work(), UVLOOP)


async def setup() -> None:
    async with app:
        if ASK.feature == "limits":
            await app.limits.set(Limit("api", slots=1_000_000, rate=10_000_000, per=1.0))


if __name__ == "__main__":
    main(sys.modules[__name__])
