"""The cost of starting a worker when many jobs are stored, with limits declared in code.

    python3 dev.py bench starts [--url postgres valkey sqlite ...] [--sizes 1000 200000] [--starts 5] [--schedules 0]

The jobs are queued in a queue that no worker serves. A worker whose app declares five limits and a task with
`concurrency` (and the given number of schedules) starts, idles for half a second, and stops. The figures: the time
until the worker claims (median), and the server's CPU per start and stop (mean; on SQLite that of this process, which
includes the worker). The goal is 50 ms of server CPU. Storing a million jobs takes half a minute per storage, so the
default is 200,000.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import time

from benchmarks.claim_cost import there
from benchmarks.harness import procs
from treadle import App, Limit, Worker
from treadle.core.model import NewJob

CALL = 5_000  # jobs per enqueue call
IDLE = 0.5  # seconds


def cpu_of(url: str) -> float:
    """CPU seconds of the servers that this process started; without a server, of this process."""
    if url.startswith("sqlite:"):
        return time.process_time()
    return procs.cpu([os.getpid()]) - time.process_time()


async def fill(url: str, count: int) -> None:
    async with App(url) as app:
        for at in range(0, count, CALL):
            some = range(at, min(at + CALL, count))
            await app.storage.enqueue([NewJob(id=f"j{n:08}", task="t", queue="elsewhere") for n in some])


async def start(url: str, schedules: int) -> float:
    """ms until the worker claims."""
    app = App(url)
    app.limits.declare(*(Limit(f"l{n}", slots=5) for n in range(5)))

    @app.task(name="noop", concurrency=3)
    async def noop() -> None: ...

    for number in range(schedules):
        app.every(3600, name=f"s{number}")(noop)

    begun = time.perf_counter()
    async with Worker(app):
        took = time.perf_counter() - begun
        await asyncio.sleep(IDLE)
    return took * 1e3


async def measure(url: str, count: int, starts: int, schedules: int) -> tuple[float, float]:
    """ms until a worker claims, and ms of server CPU per start."""
    async with there(url) as place:
        await fill(place, count)
        await start(place, schedules)
        before = cpu_of(place)
        took = [await start(place, schedules) for _ in range(starts)]
        return statistics.median(took), (cpu_of(place) - before) / starts * 1e3


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="dev.py bench starts", description=__doc__)
    parser.add_argument("--url", nargs="+", default=["postgres", "valkey", "sqlite"])
    parser.add_argument("--sizes", nargs="+", type=int, default=[1_000, 200_000])
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--schedules", type=int, default=0)
    args = parser.parse_args(words)
    print("| storage | jobs stored | until it claims, ms | CPU of the server, ms |\n|---|---|---|---|", flush=True)
    for url in args.url:
        for count in args.sizes:
            took, used = asyncio.run(measure(url, count, args.starts, args.schedules))
            print(f"| {url} | {count:,} | {took:.0f} | {used:.0f} |", flush=True)
