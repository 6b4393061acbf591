"""What limits cost a fleet: worker processes that drain jobs of many limits, against plain jobs on the same storage.

    python3 dev.py bench fleet-limits [--url postgres postgres-server valkey sqlite ...] [--workers 1 2 4]
                                      [--concurrency 20 100] [--cases tenants rates ...] [--jobs 6000]

Tenants are drawn so that some are far busier than others. `to plain` is the ratio to plain jobs of the same storage,
workers and concurrency, measured just before; `to one worker` is the ratio to the same case with the first number of
workers. The goals: two and four workers are at least as fast as one, and one reaches 0.6 of plain. In `children` each
job returns four children with a key each, and all of them count. `postgres-server` is PostgreSQL behind
`treadle server`. A case that has not ended after 20 s is cut, and its rate is that of the jobs done until then.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from benchmarks.claim_cost import there
from benchmarks.draining import drained
from benchmarks.over_http import serving
from treadle import App, Flow, Limit, State, Worker, flow
from treadle.model import NewJob

LOOK = 0.05  # s between two counts
QUEUES = tuple(f"q{number}" for number in range(6))
CHILDREN = 4  # of each job that has some
SERVED = "-server"
Make = Callable[[int, random.Random], NewJob]


def _job(number: int, *limits: str, queue: str = QUEUES[0]) -> NewJob:
    return NewJob(
        id=f"j{number:07}", task="noop", payload="[]", queue=queue, limits=tuple((name, 1) for name in limits)
    )


def _plain(number: int, _: random.Random) -> NewJob:
    return _job(number)


def _parent(number: int, _: random.Random) -> NewJob:
    return NewJob(id=f"j{number:07}", task="parent", payload=f"[{number}]", queue=QUEUES[0])


def _tenant(chance: random.Random) -> int:
    return min(chance.randrange(300), chance.randrange(300))


CASES: dict[str, tuple[tuple[Limit, ...], Make]] = {
    "tenants": ((Limit("tenant", slots=2),), lambda n, chance: _job(n, f"tenant:{_tenant(chance)}")),
    "rates": ((Limit("user", rate=1_000, per=1.0),), lambda n, chance: _job(n, f"user:{chance.randrange(5_000)}")),
    "strict": (
        (Limit("account", slots=1, hold="ended"),), lambda n, chance: _job(n, f"account:{_tenant(chance)}")
    ),
    "queues": ((Limit("queue", slots=1_000),), lambda n, chance: _job(n, queue=QUEUES[n % len(QUEUES)])),
    "two": (
        (Limit("smtp", slots=1_000), Limit("tenant", slots=20)),
        lambda n, chance: _job(n, "smtp", f"tenant:{_tenant(chance)}"),
    ),
    "children": ((), _parent),
}  # fmt: skip


@asynccontextmanager
async def place(kind: str) -> AsyncIterator[str]:
    """The URL of an empty storage, or of a server over one."""
    async with there(kind.removesuffix(SERVED)) as url:
        if not kind.endswith(SERVED):
            yield url
            return
        with serving(url, pinned=False) as server:
            yield f"http://127.0.0.1:{server.port}"


async def measure(kind: str, limits: tuple[Limit, ...], make: Make, workers: int, concurrency: int, jobs: int) -> float:
    """Jobs a second from the first count that finds some ended."""
    chance, parents = random.Random(1), jobs // (1 + CHILDREN) if make is _parent else jobs
    async with place(kind) as url, App(url) as app:
        await app.limits.set(*limits)
        for start in range(0, parents, 1_000):
            await app.storage.enqueue([make(n, chance) for n in range(start, min(start + 1_000, parents))])
        command = [sys.executable, "-m", "benchmarks.fleet_limits", url, str(concurrency)]
        pipe = subprocess.PIPE
        processes = [subprocess.Popen(command, stdin=pipe, stdout=pipe) for _ in range(workers)]  # noqa: ASYNC220 - nothing else runs here
        try:
            for process in processes:
                assert process.stdout is not None
                process.stdout.readline()  # it has started
            for process in processes:
                assert process.stdin is not None
                process.stdin.write(b"\n")
                process.stdin.flush()
            return await drained(lambda: _succeeded(app), jobs if parents == jobs else parents * (1 + CHILDREN), LOOK)
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
    parser.add_argument("--jobs", type=int, default=6_000)
    args = parser.parse_args(words)
    print(
        "| storage | concurrency | workers | case | jobs/s | to plain | to one worker |\n|---|---|---|---|---|---|---|",
        flush=True,
    )
    for url in args.url:
        for concurrency in args.concurrency:
            firsts: dict[str, float] = {}
            for workers in args.workers:
                size = workers, concurrency, args.jobs
                plain = asyncio.run(measure(url, (), _plain, *size))
                _print(url, concurrency, workers, "plain", plain, plain, firsts)
                for case in args.cases:
                    rate = asyncio.run(measure(url, *CASES[case], *size))
                    _print(url, concurrency, workers, case, rate, plain, firsts)


def _print(
    url: str, concurrency: int, workers: int, case: str, rate: float, plain: float, firsts: dict[str, float]
) -> None:
    first = firsts.setdefault(case, rate)
    where = f"{url} | {concurrency} | {workers} | {case}"
    print(f"| {where} | {rate:,.0f} | {rate / max(plain, 1):.2f} | {rate / max(first, 1):.2f} |", flush=True)


def work(url: str, concurrency: int) -> None:
    """One worker, once it is told to begin."""
    app = App(url)

    @app.task(name="noop")
    async def noop() -> None: ...

    @app.task(name="parent")
    async def parent(number: int) -> Flow[list[None]]:
        return flow(noop.options(key=f"{number}-{child}").job() for child in range(CHILDREN))

    print("ready", flush=True)
    sys.stdin.readline()
    asyncio.run(Worker(app, concurrency=concurrency, queues=[*QUEUES, "default"]).run())


if __name__ == "__main__":
    work(sys.argv[1], int(sys.argv[2]))
