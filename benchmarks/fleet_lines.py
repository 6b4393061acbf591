"""The cost of other queued jobs for a fleet: jobs of tasks that no worker runs, and batch tasks with a backlog.

    python3 dev.py bench fleet-lines [--url postgres valkey sqlite ...] [--workers 1 2] [--concurrency 20]
                                     [--cases foreign between batch] [--jobs 16000] [--ahead 4000]

foreign   jobs of another task precede the counted ones
between   every other job is of another task
batch     all jobs are of a batch task (calls of 50)

The rate counts calls of the functions, from the first to the last job. `ratio` is to plain jobs with the same storage
and number of workers, measured just before. The goal is half of plain for `foreign` on Redis and for `batch` on
PostgreSQL and Redis. A case that has not ended after 20 s is cut, and its rate is that of the jobs done until then.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile

from benchmarks.claim_cost import there
from benchmarks.draining import drained
from treadle import App, Worker
from treadle.core.model import NewJob

LOOK = 0.02  # seconds between two counts
CALL = 1_000  # jobs per enqueue call
CASES = ("foreign", "between", "batch")


def tasks_of(case: str, jobs: int, ahead: int) -> list[str]:
    if case == "foreign":
        return ["foreign"] * ahead + ["noop"] * jobs
    if case == "between":
        return ["foreign", "noop"] * jobs
    return ["many" if case == "batch" else "noop"] * jobs


async def measure(url: str, case: str, workers: int, concurrency: int, jobs: int, ahead: int) -> float:
    """Jobs per second."""
    async with there(url) as place:
        async with App(place) as app:
            line = [
                NewJob(id=f"j{n:07}", task=task, payload="[1]") for n, task in enumerate(tasks_of(case, jobs, ahead))
            ]
            for start in range(0, len(line), CALL):
                await app.storage.enqueue(line[start : start + CALL])
        with tempfile.NamedTemporaryFile() as marks:
            command = [sys.executable, "-m", "benchmarks.fleet_lines", place, str(concurrency), marks.name]
            processes = [subprocess.Popen(command) for _ in range(workers)]  # noqa: ASYNC220 - nothing else runs here
            try:
                return await drained(lambda: _marked(marks.name), jobs, LOOK)
            finally:
                for process in processes:
                    process.kill()
                    process.wait()


async def _marked(marks: str) -> int:
    return os.stat(marks).st_size


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="dev.py bench fleet-lines", description=__doc__)
    parser.add_argument("--url", nargs="+", default=["postgres", "valkey", "sqlite"])
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--concurrency", type=int, default=20)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--jobs", type=int, default=16_000)
    parser.add_argument("--ahead", type=int, default=4_000)
    args = parser.parse_args(words)
    print("| storage | workers | case | jobs/s | ratio to plain |\n|---|---|---|---|---|", flush=True)
    for url in args.url:
        for workers in args.workers:
            size = workers, args.concurrency, args.jobs, args.ahead
            plain = asyncio.run(measure(url, "plain", *size))
            print(f"| {url} | {workers} | plain | {plain:,.0f} | |", flush=True)
            for case in args.cases:
                rate = asyncio.run(measure(url, case, *size))
                print(f"| {url} | {workers} | {case} | {rate:,.0f} | {rate / plain:.2f} |", flush=True)


def work(url: str, concurrency: int, marks: str) -> None:
    app, file = App(url), os.open(marks, os.O_WRONLY | os.O_APPEND)

    @app.task(name="noop")
    async def noop(number: int) -> None:
        os.write(file, b".")

    @app.batch(name="many", size=50)
    async def many(numbers: list[int]) -> list[None]:
        os.write(file, b"." * len(numbers))
        return [None] * len(numbers)

    asyncio.run(Worker(app, concurrency=concurrency).run())


if __name__ == "__main__":
    work(sys.argv[1], int(sys.argv[2]), sys.argv[3])
