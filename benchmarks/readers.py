"""The cost of a forgotten reader and of a large log for the writers of an SQLite file.

    python3 dev.py bench readers [--log 300] [--jobs 40000] [--rounds 2]

A second connection keeps a read transaction open while the log grows to the given size in MB, so no checkpoint can
reset it. Then jobs are enqueued, claimed and settled, 100 at a time. Figures are jobs per second, the best of the
rounds, without and with that reader. The goal is two thirds.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sqlite3
import tempfile
import time

from treadle.core.model import Claim, NewJob, Outcome, State
from treadle.storage import connect

CALL = 100
LARGE = "x" * 60_000  # a payload: each call adds 6 MB to the log


async def measure(log: int, jobs: int, read: bool) -> float:
    """Jobs per second."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/readers.db"
        storage = connect(f"sqlite:///{path}?synchronous=normal")
        await storage.open()
        try:
            with contextlib.closing(sqlite3.connect(path)) as reader:
                if read:
                    reader.execute("BEGIN")
                    reader.execute("SELECT count(*) FROM job").fetchone()
                    turn = 0
                    while os.stat(f"{path}-wal").st_size < log * 2**20:
                        await storage.enqueue(
                            [
                                NewJob(id=f"big{turn}-{n}", task="t", queue="large", payload=f'["{LARGE}"]')
                                for n in range(CALL)
                            ]
                        )
                        turn += 1
                begun = time.perf_counter()
                for at in range(0, jobs, CALL):
                    await storage.enqueue([NewJob(id=f"j{at + n:06}", task="t") for n in range(CALL)])
                    ask = Claim(worker=f"w#{at}", queues=(("default", CALL),), limit=CALL, lease=1e5)
                    rows = (await storage.claim(ask)).records
                    await storage.settle(
                        [Outcome(id=row.id, version=row.version, state=State.SUCCEEDED) for row in rows]
                    )
                return jobs / (time.perf_counter() - begun)
        finally:
            await storage.close()


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="dev.py bench readers", description=__doc__)
    parser.add_argument("--log", type=int, default=300)
    parser.add_argument("--jobs", type=int, default=40_000)
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args(words)
    rates: list[list[float]] = [[], []]
    for _ in range(args.rounds):
        for read in (False, True):
            rates[read].append(asyncio.run(measure(args.log, args.jobs, read)))
    off, on = map(max, rates)
    print("| log, MB | without a reader, jobs/s | with, jobs/s | ratio |\n|---|---|---|---|")
    print(f"| {args.log} | {off:,.0f} | {on:,.0f} | {on / off:.2f} |")
