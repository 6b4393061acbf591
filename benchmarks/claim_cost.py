"""The cost of a claim when many jobs are stored: due, scheduled for later, or blocked by a full limit.

    python3 dev.py bench claim-cost [--url valkey sqlite memory ...] [--sizes 1000 1000000] [--blocked 1000 100000]

A workload of each size is stored in an empty storage, then batches of ten jobs are claimed and settled. The figure is
the lower quartile of the claim times, measured alternately with a small workload. It must not grow with the number of
stored jobs. A URL is used as it is; `valkey` and `postgres` start a server as the tests do, `sqlite` creates a file,
`memory` is this process. TEST_VALKEY_BIN names another server: the one that the tests build uses libc's allocator,
which slows down with the memory in use, so it gives no valid figures.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from treadle.core.limit_model import Limit
from treadle.core.model import Claim, NewJob, Outcome, Record, State
from treadle.storage import connect
from treadle.storage.contract import Storage

BATCH = 10  # jobs per claim
CLAIMS = 200  # claims measured
CALL = 1_000  # jobs per enqueue call
FAR = 1e6  # seconds: no scheduled job becomes due
LEASE = 1e5  # seconds
READY_JOBS = BATCH * (CLAIMS + 20)

_claim_ids = itertools.count()


async def fill(storage: Storage, name: str, count: int, **options: object) -> None:
    for at in range(0, count, CALL):
        some = range(at, min(at + CALL, count))
        await storage.enqueue([NewJob(id=f"{name}{n:08}", task="t", **options) for n in some])  # type: ignore[arg-type]


async def due(storage: Storage, count: int) -> None:
    """Only queued jobs."""
    await fill(storage, "d", max(count, READY_JOBS))


async def later(storage: Storage, count: int) -> None:
    """Jobs that become due in days, and queued ones."""
    await fill(storage, "l", count, delay=FAR)
    await fill(storage, "d", READY_JOBS)


async def blocked(storage: Storage, count: int) -> None:
    """Jobs with a full limit at the head of the queue, and behind them others that may start."""
    await storage.set_limits([Limit("full", slots=1)])
    await fill(storage, "b", count + 1, limits=(("full", 1),))
    await fill(storage, "d", READY_JOBS)
    await storage.claim(Claim(worker=f"w#{next(_claim_ids)}", limit=1, lease=LEASE))
    while True:  # claims block the jobs with the full limit, each of them once
        claimed = await storage.claim(a_claim())
        await settle(storage, claimed.records)
        if len(claimed.records) == BATCH:
            return


CASES: dict[str, Callable[[Storage, int], Awaitable[None]]] = {
    "due": due,
    "scheduled for later": later,
    "blocked by a full limit": blocked,
}


def a_claim() -> Claim:
    return Claim(worker=f"w#{next(_claim_ids)}", queues=(("default", BATCH),), limit=BATCH, lease=LEASE)


async def settle(storage: Storage, rows: Sequence[Record]) -> None:
    await storage.settle([Outcome(id=row.id, version=row.version, state=State.SUCCEEDED) for row in rows])


async def measure(url: str, case: str, counts: Sequence[int]) -> list[float]:
    """ms of a claim of ten with each of these counts. They alternate, so that other load affects all alike."""
    async with AsyncExitStack() as stack:
        storages = []
        for count in counts:
            storage = connect(await stack.enter_async_context(there(url)))
            await storage.open()
            stack.push_async_callback(storage.close)
            await CASES[case](storage, count)
            storages.append(storage)
        took: list[list[float]] = [[] for _ in counts]
        for turn in range(CLAIMS):
            for number, storage in enumerate(storages):
                begun = time.perf_counter()
                claimed = await storage.claim(a_claim())
                ended = time.perf_counter()
                assert len(claimed.records) == BATCH, (case, counts[number], turn, len(claimed.records))
                if turn >= 10:
                    took[number].append(ended - begun)
                await settle(storage, claimed.records)
    return [statistics.quantiles(each, n=4)[0] * 1e3 for each in took]


@asynccontextmanager
async def there(url: str) -> AsyncIterator[str]:
    """The URL of an empty storage for one measurement."""
    if url == "memory":
        yield "memory://"
    elif url == "sqlite":
        with tempfile.TemporaryDirectory() as folder:
            yield f"sqlite:///{folder}/claims.db?synchronous=normal"
    elif url == "valkey":
        from tests.servers.valkey import Valkey

        # a log rewrite would fork and disturb the measurement of claims
        with Valkey("--auto-aof-rewrite-percentage", "0", fsync="everysec") as server:
            print(f"(allocator of the server: {server.info('memory')['mem_allocator']})", file=sys.stderr)
            yield server.url
    elif url == "postgres":
        from tests.servers.postgres import Postgres

        with Postgres() as database:
            yield database.url
    else:
        yield url


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="dev.py bench claim-cost", description=__doc__)
    parser.add_argument("--url", nargs="+", default=["valkey", "sqlite", "memory"])
    parser.add_argument("--sizes", nargs=2, type=int, default=[1_000, 1_000_000])
    parser.add_argument("--blocked", nargs=2, type=int, default=[1_000, 100_000])
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    args = parser.parse_args(words)
    print("| storage | what is stored | few | a claim of 10, ms | many | a claim of 10, ms | ratio |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for url, case in itertools.product(args.url, args.cases):
        few, many = args.blocked if case.startswith("blocked") else args.sizes
        begun = time.perf_counter()
        low, high = asyncio.run(measure(url, case, (few, many)))
        print(f"| {url} | {case} | {few:,} | {low:.3f} | {many:,} | {high:.3f} | {high / low:.2f} |", flush=True)
        print(f"({time.perf_counter() - begun:.0f} s)", file=sys.stderr)
