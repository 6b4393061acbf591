"""The cost of one tenant's blocked jobs for the others: the first claim that blocks them, and later claims.

    python3 dev.py bench blocked [--url memory sqlite valkey postgres ...] [--sizes 1000 10000 100000]

Many jobs of a tenant whose limit is full precede the jobs of other tenants. The first claim passes all of them and
blocks each once; its time per job must not grow with their number. A later claim must cost the same as without blocked
jobs (`ratio`): the two alternate, and the figure is the lower quartile of 190 claims of ten jobs.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from contextlib import AsyncExitStack

from benchmarks.claim_cost import BATCH, CLAIMS, LEASE, READY_JOBS, a_claim, fill, settle, there
from treadle.core.limit_model import Limit
from treadle.core.model import Claim
from treadle.storage import connect
from treadle.storage.contract import Storage

WARM = 10  # claims that do not count


async def first_claim(storage: Storage, count: int) -> float:
    """Fill the queue; return the seconds of the first claim, which blocks those jobs."""
    await storage.set_limits([Limit("tenant", slots=1)])
    await fill(storage, "b", count + 1, limits=(("tenant:noisy", 1),))
    await fill(storage, "d", READY_JOBS, limits=(("tenant:quiet", 1),))
    await storage.set_limits([Limit("tenant:quiet", slots=1_000)])
    await storage.claim(Claim(worker="w#full", queues=(("default", 1),), limit=1, lease=LEASE))
    begun = time.perf_counter()
    met = await storage.claim(a_claim())
    took = time.perf_counter() - begun
    assert len(met.records) == BATCH
    await settle(storage, met.records)
    return took


async def measure(url: str, count: int) -> tuple[float, float, float]:
    """Seconds of the first claim; then ms of a claim without blocked jobs, and with that many."""
    async with AsyncExitStack() as stack:
        storages = []
        for blocked in (0, count):
            storage = connect(await stack.enter_async_context(there(url)))
            await storage.open()
            stack.push_async_callback(storage.close)
            first = await first_claim(storage, blocked)
            storages.append(storage)
        took: list[list[float]] = [[], []]
        for turn in range(CLAIMS):
            for number, storage in enumerate(storages):
                begun = time.perf_counter()
                claimed = await storage.claim(a_claim())
                ended = time.perf_counter()
                assert len(claimed.records) == BATCH, (count, turn, len(claimed.records))
                if turn >= WARM:
                    took[number].append(ended - begun)
                await settle(storage, claimed.records)
    none, many = (statistics.quantiles(each, n=4)[0] * 1e3 for each in took)
    return first, none, many


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="dev.py bench blocked", description=__doc__)
    parser.add_argument("--url", nargs="+", default=["memory", "sqlite", "valkey", "postgres"])
    parser.add_argument("--sizes", nargs="+", type=int, default=[1_000, 10_000, 100_000])
    args = parser.parse_args(words)
    print(
        "| storage | blocked | the first claim, s | us a blocked job | a claim with none, ms | with these, ms | ratio |"
    )
    print("|---|---|---|---|---|---|---|", flush=True)
    for url in args.url:
        for count in args.sizes:
            first, none, many = asyncio.run(measure(url, count))
            each = first / count * 1e6
            print(
                f"| {url} | {count:,} | {first:.2f} | {each:.0f} | {none:.3f} | {many:.3f} | {many / none:.2f} |",
                flush=True,
            )
