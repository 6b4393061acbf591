"""What a claim costs when very much is stored: due, scheduled for later, or held back by a limit that is full.

    python3 dev.py bench claim-cost [--url valkey sqlite memory ...] [--sizes 1000 1000000] [--blocked 1000 100000]

A workload of its own size is made in an empty storage, then a batch of ten jobs is claimed and settled, again and
again; the figure is the lower quartile of what the claims took, in turns with one where little is stored. It must not
grow with what is stored. A url stands for itself; `valkey` and `postgres` start a server as the tests do, `sqlite`
makes a file, `memory` is this process. TEST_VALKEY_BIN names another server; the one that the tests bring is built with
libc's allocator, whose calls get dearer with what it holds, so it is no measure.
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

from treadle.core.model import Claim, Limit, NewJob, Outcome, Record, State
from treadle.storage import connect
from treadle.storage.contract import Storage

BATCH = 10  # jobs a claim
CLAIMS = 200  # measured
CALL = 1_000  # jobs of one enqueue
FAR = 1e6  # s: nothing that is scheduled here comes due
LEASE = 1e5  # s
READY_JOBS = BATCH * (CLAIMS + 20)

_tickets = itertools.count()


async def fill(storage: Storage, name: str, count: int, **options: object) -> None:
    for at in range(0, count, CALL):
        some = range(at, min(at + CALL, count))
        await storage.enqueue([NewJob(id=f"{name}{n:08}", task="t", **options) for n in some])  # type: ignore[arg-type]


async def due(storage: Storage, count: int) -> None:
    """So many in line, and that is all."""
    await fill(storage, "d", max(count, READY_JOBS))


async def later(storage: Storage, count: int) -> None:
    """So many that come due in days; beside them a line."""
    await fill(storage, "l", count, delay=FAR)
    await fill(storage, "d", READY_JOBS)


async def blocked(storage: Storage, count: int) -> None:
    """So many at the head of the line whose limit is full; behind them others, who may start."""
    await storage.set_limits([Limit("full", slots=1)])
    await fill(storage, "b", count + 1, limits=(("full", 1),))
    await fill(storage, "d", READY_JOBS)
    await storage.claim(Claim(worker=f"w#{next(_tickets)}", limit=1, lease=LEASE))
    while True:  # they step aside when they are met, each of them once
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
    return Claim(worker=f"w#{next(_tickets)}", queues=(("default", BATCH),), limit=BATCH, lease=LEASE)


async def settle(storage: Storage, rows: Sequence[Record]) -> None:
    await storage.settle([Outcome(id=row.id, version=row.version, state=State.SUCCEEDED) for row in rows])


async def measure(url: str, case: str, counts: Sequence[int]) -> list[float]:
    """A claim of ten with each of these stored, in ms; they take turns, so that other load falls on all alike."""
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
    """A place of its own for one measure."""
    if url == "memory":
        yield "memory://"
    elif url == "sqlite":
        with tempfile.TemporaryDirectory() as folder:
            yield f"sqlite:///{folder}/claims.db?synchronous=normal"
    elif url == "valkey":
        from tests.servers.valkey import Valkey

        # no rewriting of the log while we measure: it forks, and this is about claims
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
