"""The cost of 100,000 jobs that sleep in durable code for the jobs beside them, also while all of them wake.

    python3 dev.py bench sleepers [--url sqlite postgres valkey memory] [--sleepers 100000] [--waking 60]

One worker with 20 slots. Quick jobs are enqueued one after the other, and the time of each is measured from the enqueue
to its result: before there are sleepers, beside them, and while they wake, for at most so many seconds. All sleepers
wake at the same instant. They are put to sleep by calls of the storage, without runs of their functions, so that a
round takes minutes. The goals: beside them a quick job takes at most 10 % longer, and 99 of 100 less than 250 ms while
they wake. On a busy machine the CPU that the process takes meanwhile shows more than the time.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import statistics
import sys
import time

import msgspec
from msgspec.structs import replace

from benchmarks.claim_cost import there
from treadle import App, Worker, current
from treadle.core.model import Claim
from treadle.durable.checkpoints import Checkpoint
from treadle.policy import judge

SLOTS = 20
CALL = 500  # jobs per call that puts them to sleep
PACE = 0.02  # s between two quick jobs
SAMPLES = 200  # quick jobs measured before there are sleepers, and beside them
PATIENCE = 300.0  # s until the result of a quick job
KEY = "sleep:sleep"


class Load:
    """The two kinds of jobs, and how many sleepers are awake."""

    def __init__(self, app: App) -> None:
        self.app, self.awake = app, 0
        self.quick = app.task(name="quick", queue="quick")(self._quick)
        self.sleeper = app.task(name="sleeper", queue="sleepers")(self._sleeper)

    async def _quick(self) -> None:
        """Does nothing."""

    async def _sleeper(self) -> None:
        await current().sleep(86_400)
        self.awake += 1

    async def put_to_sleep(self, count: int, seconds: float) -> float:
        """Store jobs that sleep, until the instant that is returned: so many seconds from now."""
        until, claims = time.time() + seconds, itertools.count()
        for start in range(0, count, CALL):
            await self.app.enqueue([self.sleeper.job() for _ in range(min(CALL, count - start))])
            ask = Claim(worker=f"bench#{next(claims)}", queues=(("sleepers", CALL),), limit=CALL)
            rows = (await self.app.storage.claim(ask)).records
            entry = KEY, msgspec.json.encode(Checkpoint(until=until)).decode()
            now = time.time()
            outcomes = [judge.asleep(row, KEY, until - now, now) for row in rows]
            await self.app.storage.settle([replace(out, checkpoints=(*out.checkpoints, entry)) for out in outcomes])
        return until

    async def measured(self, most: int, until: float) -> list[tuple[float, float]]:
        """The seconds of so many quick jobs, or of those that begin before an instant, and the seconds of CPU that the
        process took meanwhile."""
        times = list[tuple[float, float]]()
        while len(times) < most and time.time() < until:
            began, cpu = time.perf_counter(), time.process_time()
            job = await self.quick.enqueue()
            await job.result(PATIENCE)
            times.append((time.perf_counter() - began, time.process_time() - cpu))
            await asyncio.sleep(PACE)
        return times


def _shown(name: str, times: list[tuple[float, float]], cpu: float) -> str:
    rising, rising_cpu = map(sorted, zip(*times, strict=True))
    last = int(0.99 * (len(rising) - 1))
    cells = (statistics.median(rising), rising[last], rising[-1], statistics.median(rising_cpu), rising_cpu[last])
    return f"| {name} | {len(times)} | " + " | ".join(f"{each * 1000:.1f}" for each in cells) + f" | {cpu:.1f} |"


async def measure(url: str, sleepers: int, wait: float, waking: float) -> None:
    far = time.time() + 86_400
    async with there(url) as place, App(place) as app:
        load = Load(app)
        async with Worker(app, concurrency=SLOTS, queues=["quick"]):
            await load.measured(SAMPLES, far)
            cpu = time.process_time()
            before = await load.measured(SAMPLES, far)
            print(_shown(f"{url}: before", before, time.process_time() - cpu), flush=True)
        began = time.perf_counter()
        until = await load.put_to_sleep(sleepers, wait)
        print(f"({sleepers:,} asleep after {time.perf_counter() - began:.0f} s)", file=sys.stderr)
        async with Worker(app, concurrency=SLOTS, queues=["quick", "sleepers"]):
            cpu = time.process_time()
            beside = await load.measured(SAMPLES, until)
            if len(beside) < SAMPLES:
                raise SystemExit("they woke before the jobs beside them were measured: give a longer --wait")
            print(_shown(f"{url}: beside them", beside, time.process_time() - cpu), flush=True)
            await asyncio.sleep(max(0.0, until - time.time()))
            cpu = time.process_time()
            times = await load.measured(10**9, until + waking)
            print(_shown(f"{url}: while they wake", times, time.process_time() - cpu), flush=True)
            print(f"({load.awake:,} awake after {waking:.0f} s)", file=sys.stderr)


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="dev.py bench sleepers", description=__doc__)
    parser.add_argument("--url", nargs="+", default=["sqlite", "postgres", "valkey"])
    parser.add_argument("--sleepers", type=int, default=100_000)
    parser.add_argument("--wait", type=float, default=120.0, help="seconds until they wake")
    parser.add_argument("--waking", type=float, default=60.0, help="seconds measured while they wake")
    args = parser.parse_args(words)
    print(
        "| storage | quick jobs | median, ms | 99 of 100 below, ms | longest, ms | CPU meanwhile, median, ms", end=" | "
    )
    print("CPU meanwhile, 99 of 100 below, ms | CPU of the process, s |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    for url in args.url:
        asyncio.run(measure(url, args.sleepers, args.wait, args.waking))
