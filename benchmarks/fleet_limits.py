"""The cost of limits in a fleet: worker processes drain jobs with many limits, and plain jobs on the same storage.

    python3 dev.py bench fleet-limits [--url postgres postgres-server valkey sqlite ...] [--workers 1 2 4]
                                      [--concurrency 20 100] [--cases tenants rates ...] [--jobs 20000]

Tenants are drawn so that some are far busier than others. `to plain` is the ratio to plain jobs with the same storage,
workers and concurrency, measured just before; `to one worker` is the ratio to the same case with the first number of
workers. The goals: two and four workers are at least as fast as one, and one reaches 0.6 of plain. In `children` each
job returns four children with a key each, and all of them count; it is compared with `family`, the same without keys.
`postgres-server` is PostgreSQL behind `treadle server`. A case that has not ended after 20 s is cut, and its rate is
that of the jobs done until then. The last two columns are the CPU per job of the servers and of the workers, which
other load on the machine affects less.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import NamedTuple

from benchmarks.claim_cost import there
from benchmarks.draining import drained
from benchmarks.harness import procs
from benchmarks.over_http import serving
from treadle import App, Flow, Limit, State, Worker, flow
from treadle.core.model import NewJob

LOOK = 0.1  # seconds between two counts
QUEUES = tuple(f"q{number}" for number in range(6))
CHILDREN = 4  # children per parent
SERVED = "-server"
Make = Callable[[int, random.Random], NewJob]


def _job(number: int, *limits: str, queue: str = QUEUES[0]) -> NewJob:
    return NewJob(
        id=f"j{number:07}", task="noop", payload="[]", queue=queue, limits=tuple((name, 1) for name in limits)
    )


def _plain(number: int, _: random.Random) -> NewJob:
    return _job(number)


def _family(number: int, _: random.Random) -> NewJob:
    return NewJob(id=f"j{number:07}", task="parent", payload=f"[{number}, false]", queue=QUEUES[0])


def _keyed(number: int, _: random.Random) -> NewJob:
    return NewJob(id=f"j{number:07}", task="parent", payload=f"[{number}, true]", queue=QUEUES[0])


def _tenant(rng: random.Random) -> int:
    return min(rng.randrange(300), rng.randrange(300))


CASES: dict[str, tuple[tuple[Limit, ...], Make]] = {
    "tenants": ((Limit("tenant", slots=2),), lambda n, rng: _job(n, f"tenant:{_tenant(rng)}")),
    "rates": ((Limit("user", rate=1_000, per=1.0),), lambda n, rng: _job(n, f"user:{rng.randrange(5_000)}")),
    "strict": ((Limit("account", slots=1, hold="ended"),), lambda n, rng: _job(n, f"account:{_tenant(rng)}")),
    "queues": ((Limit("queue", slots=1_000),), lambda n, rng: _job(n, queue=QUEUES[n % len(QUEUES)])),
    "two": (
        (Limit("smtp", slots=1_000), Limit("tenant", slots=20)),
        lambda n, rng: _job(n, "smtp", f"tenant:{_tenant(rng)}"),
    ),
    "children": ((), _keyed),
}


PLAIN: dict[str, tuple[str, Make]] = {  # baselines of cases; all others: plain jobs of one queue
    "children": ("family", _family),
    "queues": ("six queues", lambda n, _: _job(n, queue=QUEUES[n % len(QUEUES)])),
}


@asynccontextmanager
async def place(kind: str) -> AsyncIterator[str]:
    """The URL of an empty storage, or of a server over one."""
    async with there(kind.removesuffix(SERVED)) as url:
        if not kind.endswith(SERVED):
            yield url
            return
        with serving(url, pinned=False) as server:
            yield f"http://127.0.0.1:{server.port}"


class Cost(NamedTuple):
    rate: float  # jobs per second
    server: float  # us of CPU per job
    workers: float


def _spent(workers: Iterable[int]) -> tuple[float, float]:
    """CPU seconds of the servers and of the workers so far."""
    ours = procs.cpu(workers)
    return procs.cpu([os.getpid()]) - time.process_time() - ours, ours


async def measure(kind: str, limits: tuple[Limit, ...], make: Make, workers: int, concurrency: int, jobs: int) -> Cost:
    """Measures from the first count that finds ended jobs."""
    rng, each = random.Random(1), 1 + CHILDREN if make in (_family, _keyed) else 1
    sent = jobs // each
    async with place(kind) as url, App(url) as app:
        await app.limits.set(*limits)
        for start in range(0, sent, 1_000):
            await app.storage.enqueue([make(n, rng) for n in range(start, min(start + 1_000, sent))])
        command = [sys.executable, "-m", "benchmarks.fleet_limits", url, str(concurrency)]
        pipe = subprocess.PIPE
        processes = [subprocess.Popen(command, stdin=pipe, stdout=pipe) for _ in range(workers)]  # noqa: ASYNC220 - nothing else runs here
        try:
            for process in processes:
                assert process.stdout is not None
                process.stdout.readline()  # the worker is ready
            for process in processes:
                assert process.stdin is not None
                process.stdin.write(b"\n")
                process.stdin.flush()
            pids = [process.pid for process in processes]
            before = _spent(pids)
            rate = await drained(lambda: _succeeded(app), sent * each, LOOK)
            done = max(await _succeeded(app), 1)
            server, worked = (1e6 * (now - then) / done for now, then in zip(_spent(pids), before, strict=True))
            return Cost(rate, server, worked)
        finally:
            for process in processes:
                process.kill()
                process.communicate()


async def _succeeded(app: App) -> int:
    return sum(each.jobs for each in (await app.storage.stats()).counts if each.state is State.SUCCEEDED)


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="dev.py bench fleet-limits", description=__doc__)
    parser.add_argument("--url", nargs="+", default=["postgres", "postgres-server", "valkey", "sqlite"])
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2, 4])
    parser.add_argument("--concurrency", nargs="+", type=int, default=[20, 100])
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--jobs", type=int, default=20_000)
    args = parser.parse_args(words)
    print(
        "| storage | concurrency | workers | case | jobs/s | to plain | to one worker | server, us a job "
        "| of the workers |\n|---|---|---|---|---|---|---|---|---|",
        flush=True,
    )
    for url in args.url:
        for concurrency in args.concurrency:
            firsts: dict[str, float] = {}
            for workers in args.workers:
                size = workers, concurrency, args.jobs
                plain: dict[str, Cost] = {}
                for case in args.cases:
                    name, make = PLAIN.get(case, ("plain", _plain))
                    if name not in plain:
                        plain[name] = asyncio.run(measure(url, (), make, *size))
                        _print(url, concurrency, workers, name, plain[name], plain[name], firsts)
                    cost = asyncio.run(measure(url, *CASES[case], *size))
                    _print(url, concurrency, workers, case, cost, plain[name], firsts)


def _print(
    url: str, concurrency: int, workers: int, case: str, cost: Cost, plain: Cost, firsts: dict[str, float]
) -> None:
    rate, first = cost.rate, firsts.setdefault(case, cost.rate)
    where = f"{url} | {concurrency} | {workers} | {case}"
    ratios = f"{rate / max(plain.rate, 1):.2f} | {rate / max(first, 1):.2f}"
    print(f"| {where} | {rate:,.0f} | {ratios} | {cost.server:,.0f} | {cost.workers:,.0f} |", flush=True)


def work(url: str, concurrency: int) -> None:
    """Run one worker, which waits for a line on stdin."""
    app = App(url)

    @app.task(name="noop")
    async def noop() -> None: ...

    @app.task(name="parent")
    async def parent(number: int, keyed: bool) -> Flow[list[None]]:
        keys = (f"{number}-{child}" if keyed else None for child in range(CHILDREN))
        return flow(noop.options(key=key).job() for key in keys)

    print("ready", flush=True)
    sys.stdin.readline()
    asyncio.run(Worker(app, concurrency=concurrency, queues=[*QUEUES, "default"]).run())


if __name__ == "__main__":
    work(sys.argv[1], int(sys.argv[2]))
