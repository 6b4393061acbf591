"""What the kept counts cost and what they save: `stats` with many unfinished jobs, and a drain next to that of another
checkout.

    python3 dev.py bench counting [--storages sqlite postgres ...] [--rows 1000000]
    python3 dev.py bench counting --against FOLDER [--pairs 8] [--jobs 20000] [--concurrency 16 256] [--tasks 1 5]

The first form stores jobs of 20 tasks in four queues and calls `stats`, `glance` and `recount`; the figures are the
fastest and the slowest of ten calls (three of `recount`), and the mean CPU time. The second one alternates drains with
the `treadle` of this checkout and that of FOLDER/src, each in a process and on a storage of its own, and reports the
CPU time of a job, the worker's and the server's together. The ratio is the median over the pairs. On a busy machine
count instructions with callgrind instead. The figures are in docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.looks import cpu
from treadle import App, Worker
from treadle.core.model import NewJob
from treadle.storage import connect

CALL = 1_000  # jobs of one call while a storage is filled
QUEUES, TASKS = 4, 20
HERE = Path(__file__).resolve().parents[1]


@contextmanager
def places(storage: str) -> Iterator[tuple[Callable[[], str], int | None]]:
    """A function that returns the URL of an empty storage, and the process of its server."""
    numbers = itertools.count()
    if storage == "postgres":
        from tests.servers.postgres import Postgres

        with Postgres() as server:
            yield lambda: f"{server.url}?schema=t{next(numbers)}", server.pid
    elif storage == "redis":
        from tests.servers.valkey import Valkey

        with Valkey() as server:
            yield lambda: f"{server.url}?ns=t{next(numbers)}", server.pid
    else:
        with tempfile.TemporaryDirectory() as folder:
            yield lambda: f"sqlite:///{folder}/{next(numbers)}.db?synchronous=normal", None


# --- statistics


async def statistics_of(url: str, rows: int, pid: int | None) -> list[str]:
    storage = connect(url)
    await storage.open()
    try:
        for at in range(0, rows, CALL):
            await storage.enqueue(
                [NewJob(id=f"{at + n:026}", task=f"t{n % TASKS}", queue=f"q{n % QUEUES}") for n in range(CALL)]
            )
        lines = []
        for name, times in (("stats", 10), ("glance", 10), ("recount", 3)):
            took, used = list[float](), list[float]()
            for _ in range(times):
                begun, before = time.perf_counter(), sum(cpu(pid))
                await getattr(storage, name)()
                took.append((time.perf_counter() - begun) * 1e3)
                used.append((sum(cpu(pid)) - before) * 1e3)
            lines.append(f"| {name} | {min(took):,.2f} | {max(took):,.2f} | {statistics.mean(used):,.1f} |")
        return lines
    finally:
        await storage.close()


# --- drains


async def drain(url: str, jobs: int, concurrency: int, tasks: int, pid: int | None) -> float:
    """CPU us of a job, of this process and of the server."""
    app = App(url)
    ended = 0
    done = asyncio.Event()

    async def nothing() -> None: ...

    made = [app.task(name=f"t{n}")(nothing) for n in range(tasks)]

    @app.on("succeeded")
    def count(_: object) -> None:
        nonlocal ended
        ended += 1
        if ended == jobs:
            done.set()

    async with app:
        for at in range(0, jobs, CALL):
            await app.enqueue([made[n % tasks].job() for n in range(at, min(at + CALL, jobs))])
        worker = Worker(app, concurrency=concurrency)
        before = sum(cpu(pid))
        await worker.start()
        await done.wait()
        used = sum(cpu(pid)) - before
        await worker.stop()
    return used / jobs * 1e6


def in_child(source: Path, url: str, words: Sequence[int], pid: int | None) -> float:
    """One drain with the `treadle` of this folder."""
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks", "counting", "--child", url, *map(str, words), str(pid or 0)],
        cwd=HERE,
        env={**os.environ, "PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode:
        raise SystemExit(ran.stderr)
    return float(ran.stdout.splitlines()[-1])


def compare(storage: str, against: Path, pairs: int, words: Sequence[int]) -> str:
    ours, theirs = list[float](), list[float]()
    with places(storage) as (fresh, pid):
        for number in range(pairs):
            sources = [(HERE / "src", ours), (against / "src", theirs)]
            for source, found in sources if number % 2 else reversed(sources):
                found.append(in_child(source, fresh(), words, pid))
    changes = [(one / other - 1) * 100 for one, other in zip(ours, theirs, strict=True)]
    _, concurrency, tasks = words
    return (
        f"| {storage} | {concurrency} | {tasks} | {statistics.median(theirs):.2f} | {statistics.median(ours):.2f} | "
        f"{statistics.median(changes):+.1f} % ({min(changes):+.1f} to {max(changes):+.1f}) |"
    )


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="dev.py bench counting", description=__doc__)
    parser.add_argument(
        "--storages", nargs="+", default=["sqlite", "postgres", "redis"], choices=["sqlite", "postgres", "redis"]
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--against", type=Path, help="another checkout, to compare drains with")
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[16, 256])
    parser.add_argument("--tasks", type=int, nargs="+", default=[1, 5], help="tasks of the jobs, in turn")
    parser.add_argument("--child", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    if options.child:
        url, jobs, concurrency, tasks, pid = options.child
        print(asyncio.run(drain(url, int(jobs), int(concurrency), int(tasks), int(pid) or None)))
        return
    if options.against is None:
        print(f"{options.rows:,} unfinished jobs\n\n| | fastest, ms | slowest, ms | CPU, ms |\n|---|---|---|---|")
        for storage in options.storages:
            with places(storage) as (fresh, pid):
                lines = asyncio.run(statistics_of(fresh(), options.rows, pid))
                print("\n".join(f"| {storage}: {line[2:]}" for line in lines), flush=True)
        return
    print("| storage | concurrency | tasks | before, CPU us a job | now | change |\n|---|---|---|---|---|---|")
    for storage in options.storages:
        for concurrency in options.concurrency:
            for tasks in options.tasks:
                numbers = (options.jobs, concurrency, tasks)
                print(compare(storage, options.against.resolve(), options.pairs, numbers), flush=True)
