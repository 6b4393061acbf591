"""Whether a database that has been busy for a long time is slower than a new one.

    python3 dev.py bench churn [--minutes 60] [--keep 60] [--slice 20000] [--url postgres valkey sqlite]

For the given minutes, one worker drains what a producer enqueues, slice by slice. Ended jobs are kept for `--keep`
seconds, so rows are pruned as fast as they are stored. Once all are gone, slices are drained alternately in the worn
database and in a new one on the same server (A B A B): the figure is their ratio, and other load on the machine affects
both alike. For servers the figures include CPU per job.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from treadle import App, Worker

CALL = 1_000  # jobs per enqueue call
PAIRS = 8  # slices drained alternately at the end
TICK = os.sysconf("SC_CLK_TCK")


@dataclass
class Place:
    """Two databases on one server, and the CPU time of that server."""

    worn: str
    fresh: str
    pid: int | None = None

    def cpu(self) -> float:
        """CPU seconds of the server and its children; 0 if there is none."""
        if self.pid is None:
            return 0.0
        total = 0.0
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                words = stat.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(stat.parent.name) == self.pid:
                total += sum(map(int, words[11:15])) / TICK
            elif int(words[1]) == self.pid:
                total += (int(words[11]) + int(words[12])) / TICK
        return total


@asynccontextmanager
async def there(name: str) -> AsyncIterator[Place]:
    if name == "postgres":
        from tests.servers.postgres import Postgres

        with Postgres(durable=True) as server:
            yield Place(f"{server.url}?schema=worn", f"{server.url}?schema=fresh", server.pid)
    elif name == "valkey":
        from tests.servers.valkey import Valkey

        with Valkey(fsync="everysec") as server:
            yield Place(f"{server.url}?ns=worn", f"{server.url}?ns=fresh", server.pid)
    else:
        with tempfile.TemporaryDirectory() as folder:
            yield Place(*(f"sqlite:///{folder}/{part}.db?synchronous=normal" for part in ("worn", "fresh")))


class Mill:
    """An app with a no-op task that drains slices of jobs."""

    def __init__(self, url: str, keep: float) -> None:
        self.app, self.ended, self.done = App(url), 0, asyncio.Event()
        self.goal = 0

        @self.app.task(name="noop", keep=keep)
        async def noop(x: int) -> int:
            return x

        self.task = noop

        @self.app.on("succeeded")
        def count(_: object) -> None:
            self.ended += 1
            if self.ended >= self.goal:
                self.done.set()

    async def pass_through(self, jobs: int) -> float:
        """Seconds from the first enqueue to the last ending."""
        self.goal, begun = self.ended + jobs, time.perf_counter()
        self.done.clear()
        for at in range(0, jobs, CALL):
            await self.app.enqueue([self.task.job(n) for n in range(at, min(at + CALL, jobs))])
        await self.done.wait()
        return time.perf_counter() - begun


async def measure(name: str, minutes: float, keep: float, jobs: int) -> None:
    async with AsyncExitStack() as stack:
        place = await stack.enter_async_context(there(name))
        worn = Mill(place.worn, keep)
        await stack.enter_async_context(worn.app)
        worker = Worker(worn.app, concurrency=256)
        await worker.start()
        begun = told = time.monotonic()
        while (now := time.monotonic()) - begun < minutes * 60:
            cpu, took = place.cpu(), await worn.pass_through(jobs)
            if now - told >= 60 or told == begun:
                told = now
                each = (place.cpu() - cpu) / jobs * 1e6
                print(
                    f"{name}: {(now - begun) / 60:5.1f} min, {worn.ended:,} jobs, {jobs / took:,.0f}/s, "
                    f"server {each:.1f} us of CPU a job",
                    file=sys.stderr,
                    flush=True,
                )
        # kept rows would be extra work for only one of the two
        while any(count.state.final for count in (await worn.app.queues.stats()).counts):  # noqa: ASYNC110
            await asyncio.sleep(1)
        await worker.stop()
        fresh = Mill(place.fresh, keep)
        await stack.enter_async_context(fresh.app)
        rates: dict[str, list[float]] = {"worn": [], "fresh": []}
        cpus: dict[str, list[float]] = {"worn": [], "fresh": []}
        for turn in range(PAIRS):
            for label, mill in (("worn", worn), ("fresh", fresh)):
                async with Worker(mill.app, concurrency=256):
                    cpu, took = place.cpu(), await mill.pass_through(jobs)
                if turn:
                    rates[label].append(jobs / took)
                    cpus[label].append((place.cpu() - cpu) / jobs * 1e6)
        rate = {label: statistics.median(found) for label, found in rates.items()}
        cpu_of = {label: statistics.median(found) for label, found in cpus.items()}
        print(
            f"| {name} | {minutes:g} min, {worn.ended:,} jobs | {rate['fresh']:,.0f} | {rate['worn']:,.0f} "
            f"| {rate['worn'] / rate['fresh']:.2f} | {cpu_of['fresh']:.1f} | {cpu_of['worn']:.1f} |",
            flush=True,
        )


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="dev.py bench churn", description=__doc__)
    parser.add_argument("--url", nargs="+", default=["postgres"], choices=["postgres", "valkey", "sqlite"])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--keep", type=float, default=60.0)
    parser.add_argument("--slice", type=int, default=20_000)
    args = parser.parse_args(words)
    print("| storage | churned | new, jobs/s | worn, jobs/s | ratio | new, server us a job | worn, server us a job |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for name in args.url:
        asyncio.run(measure(name, args.minutes, args.keep, args.slice))
