"""The time to act on many jobs: cancel, retry and delete 10,000 by a filter.

    python3 dev.py bench acts [--url postgres valkey sqlite ...] [--jobs 10000] [--rounds 3] [--acts cancel retry ...]

The jobs are queued (cancel), due later (run_now) or failed (retry, delete). The figures are the median and the best of
the rounds, in seconds, each in an empty storage. The goal for a cancel and for a retry is one second.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable

from benchmarks.claim_cost import CALL, there
from treadle import App
from treadle.core.model import Claim, NewJob, Outcome, State

LEASE = 1e5  # seconds
Act = Callable[[App], Awaitable[int]]
ACTS: dict[str, tuple[str, Act]] = {
    "cancel": ("ready", lambda app: app.jobs.cancel(queue="q")),
    "run_now": ("later", lambda app: app.jobs.run_now(queue="q")),
    "retry": ("failed", lambda app: app.jobs.retry(queue="q")),
    "delete": ("failed", lambda app: app.jobs.delete(queue="q")),
}


async def prepare(app: App, state: str, count: int) -> None:
    storage, delay = app.storage, 1e6 if state == "later" else 0.0
    for at in range(0, count, CALL):
        some = range(at, min(at + CALL, count))
        await storage.enqueue([NewJob(id=f"j{n:07}", task="t", queue="q", delay=delay) for n in some])
    if state != "failed":
        return
    for turn in range(0, count, CALL):
        ask = Claim(worker=f"w#{turn}", queues=(("q", CALL),), limit=CALL, lease=LEASE)
        rows = (await storage.claim(ask)).records
        await storage.settle(
            [
                Outcome(id=row.id, version=row.version, state=State.FAILED, attempt=1, reason="error", error="boom")
                for row in rows
            ]
        )


async def measure(url: str, name: str, count: int) -> float:
    """Seconds that the act takes."""
    state, act = ACTS[name]
    async with there(url) as place, App(place) as app:
        await prepare(app, state, count)
        begun = time.perf_counter()
        done = await act(app)
        took = time.perf_counter() - begun
        assert done == count, (name, done)
        return took


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="dev.py bench acts", description=__doc__)
    parser.add_argument("--url", nargs="+", default=["postgres", "valkey", "sqlite"])
    parser.add_argument("--acts", nargs="+", default=list(ACTS), choices=list(ACTS))
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args(words)
    print("| storage | act | jobs | median, s | best, s |\n|---|---|---|---|---|", flush=True)
    for url in args.url:
        for name in args.acts:
            took = [asyncio.run(measure(url, name, args.jobs)) for _ in range(args.rounds)]
            print(f"| {url} | {name} | {args.jobs:,} | {statistics.median(took):.2f} | {min(took):.2f} |", flush=True)
