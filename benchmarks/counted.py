"""The cost of counting for scrapers (`treadle worker --health`, `TreadleCollector`), in CPU time of a job that does
nothing, on the memory storage.

    python3 dev.py bench counted [--rounds 9] [--jobs 20000]

The rounds alternate between the modes (A B C A B C ...), each in a new process. "enqueue" are calls with 100 jobs each,
and "run" is a worker with 20 slots that runs them. Each figure is the median of the rounds, of the CPU time of the
whole process; in brackets the least and the most. CPU time because other programs may use the machine meanwhile.

off      a worker with its metrics, as always
counted  the same, and everything is counted for scrapers
asked    the same, and the supervisor asks for the numbers once a second, more often than a scraper does
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from treadle import App

from benchmarks.modes import compare

MODES = ("off", "counted", "asked")
FIGURES = ("enqueue", "run")


async def answer(app: App) -> None:
    """Make the reply to the supervisor once a second."""
    counts = app._core.counts
    assert counts is not None
    while True:
        msgspec.json.encode(counts.numbers())
        await asyncio.sleep(1)


async def measure(mode: str, jobs: int) -> dict[str, float]:
    from treadle import App, Worker
    from treadle.worker.core import calm_collector

    app = App("memory://")

    @app.task(name="nothing")
    async def nothing(n: int) -> None: ...

    @app.task(name="last")
    async def last() -> None: ...

    if mode != "off":
        app._core.count()
    async with app:
        began = time.process_time()
        for _ in range(jobs // 100):
            await app.enqueue([nothing.job(n) for n in range(100)])
        found = {"enqueue": (time.process_time() - began) / jobs}
        end = await last.enqueue()
        answering = asyncio.create_task(answer(app)) if mode == "asked" else None
        calm_collector()  # as `Worker.run` does: collections would cost more than all that is measured here
        began = time.process_time()
        async with Worker(app, concurrency=20):
            await end.ended(600)
        found["run"] = (time.process_time() - began) / jobs
        if answering is not None:
            answering.cancel()
    return {name: 1e6 * seconds for name, seconds in found.items()}


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="dev.py bench counted", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--jobs", type=int, default=20_000)
    compare(parser, words, "counted", MODES, FIGURES, digits=2)


if __name__ == "__main__":
    print(json.dumps(asyncio.run(measure(sys.argv[1], int(sys.argv[2])))))
