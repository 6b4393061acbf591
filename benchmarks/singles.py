"""The cost of hints for single enqueues of many processes on PostgreSQL, also with slow commits.

    python3 dev.py bench singles [--processes 16] [--seconds 3] [--commits 0 20] [--rounds 2]

Each process enqueues jobs one after the other into one server, on which a commit takes `commits` ms longer
(`commit_delay`, and every commit waits). With `listen=on` a worker of another program listens, so every call has a
hint to send; with `listen=off` no process listens. Rounds alternate; figures are enqueues per second, the best of each.
The goal is 0.9.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import time

from tests.servers.postgres import Postgres
from treadle import App
from treadle.core.model import NewJob
from treadle.storage.postgres.notifier import NEW


def slow(commit: int) -> tuple[str, ...]:
    if not commit:
        return ()
    return ("fsync=on", "synchronous_commit=on", f"commit_delay={commit * 1_000}", "commit_siblings=0")


async def measure(commit: int, listen: bool, processes: int, seconds: float) -> float:
    """Enqueues per second of all processes."""
    with Postgres(settings=slow(commit)) as server:
        async with App(server.url) as app:
            heard = asyncio.create_task(app.storage.watch(["queue:nobody"], 600.0)) if listen else None
            await app.storage.enqueue([NewJob(id="first", task="t")])
            url = server.url if listen else f"{server.url}{'&' if '?' in server.url else '?'}listen=off"
            if not listen:
                await app.close()
            command = [sys.executable, "-m", "benchmarks.singles", url, str(seconds)]
            children = [
                subprocess.Popen([*command, str(number)], stdout=subprocess.PIPE, text=True)  # noqa: ASYNC220
                for number in range(processes)
            ]
            counts = [int((await asyncio.to_thread(child.communicate))[0]) for child in children]
            if heard is not None:
                heard.cancel()
    return sum(counts) / seconds


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="dev.py bench singles", description=__doc__)
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--commits", nargs="+", type=int, default=[0, 20])
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args(words)
    print("| ms of a commit | processes | without hints, /s | with, /s | ratio |\n|---|---|---|---|---|", flush=True)
    for commit in args.commits:
        rates: list[list[float]] = [[], []]
        for _ in range(args.rounds):
            for listen in (False, True):
                rates[listen].append(asyncio.run(measure(commit, listen, args.processes, args.seconds)))
        off, on = map(max, rates)
        print(f"| {commit} | {args.processes} | {off:,.0f} | {on:,.0f} | {on / off:.2f} |", flush=True)


async def work(url: str, seconds: float, number: int) -> int:
    done = 0
    async with App(url) as app:
        storage = app.storage
        await storage.enqueue([NewJob(id=f"warm{number:02}", task="t")])
        await asyncio.sleep(NEW + 2.0)  # until all processes have started, and none of them listens any more
        over = time.monotonic() + seconds
        while time.monotonic() < over:
            await storage.enqueue([NewJob(id=f"p{number:02}-{done:06}", task="t")])
            done += 1
    return done


if __name__ == "__main__":
    print(asyncio.run(work(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]))))
