"""The time to enqueue many jobs in one call, by their options, compared with as many plain jobs.

    python3 dev.py bench bulk [--url postgres ...] [--sizes 5000 20000] [--rounds 3] [--cases keys lanes ...]

keys, held       unique keys: new ones, and all of them held by stored jobs
lanes            100 tenants take turns
labels, chosen   two labels per job; ids chosen by the caller
after            each job waits for another one of the call
ageing           a priority that rises with time

Rounds alternate with plain calls of the same size, each in an empty storage. Figures are the best of each, in seconds,
and `ratio` is to the best plain one. The goal for keys is 3; no ratio should grow with the size.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import time
from collections.abc import Callable

from benchmarks.claim_cost import there
from treadle.core.model import NewJob
from treadle.storage import connect

Make = Callable[[int], NewJob]


def _job(number: int, **options: object) -> NewJob:
    return NewJob(id=f"j{number:07}", task="t", payload="[1]", **options)  # type: ignore[arg-type]


CASES: dict[str, Make] = {
    "keys": lambda n: _job(n, key=f"k{n}"),
    "held": lambda n: _job(n, key=f"k{n}"),
    "lanes": lambda n: _job(n, lane=f"tenant{n % 100}"),
    "labels": lambda n: _job(n, labels=(f"even={n % 2}", f"tenant={n % 100}")),
    "chosen": lambda n: _job(n, nonce=f"{n:016x}"),
    "after": lambda n: _job(n, after=(f"j{n - 1:07}",)) if n % 2 else _job(n),
    "ageing": lambda n: _job(n, priority=n % 3, aging=0.01),
}


async def measure(url: str, case: str, size: int) -> float:
    """Seconds of one call."""
    make: Make = CASES.get(case, _job)
    async with there(url) as place:
        storage = connect(place)
        await storage.open()
        try:
            await storage.enqueue([_job(0, lane="warm", labels=("warm",), after=()), _job(1, key="warm")])
            if case == "held":
                await storage.enqueue([_job(10_000_000 + n, key=f"k{n}") for n in range(2, size + 2)])
            jobs = [make(n) for n in range(2, size + 2)]
            begun = time.perf_counter()
            rows = await storage.enqueue(jobs)
            took = time.perf_counter() - begun
            assert len(rows) == size
            return took
        finally:
            await storage.close()


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="dev.py bench bulk", description=__doc__)
    parser.add_argument("--url", nargs="+", default=["postgres"])
    parser.add_argument("--sizes", nargs="+", type=int, default=[5_000, 20_000])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    args = parser.parse_args(words)
    print("| storage | jobs of the call | case | plain, s | this, s | ratio |\n|---|---|---|---|---|---|", flush=True)
    for url, size, case in itertools.product(args.url, args.sizes, args.cases):
        took: list[list[float]] = [[], []]
        for _ in range(args.rounds):
            for number, each in enumerate(("plain", case)):
                took[number].append(asyncio.run(measure(url, each, size)))
        plain, this = map(min, took)
        print(f"| {url} | {size:,} | {case} | {plain:.2f} | {this:.2f} | {this / plain:.1f} |", flush=True)
