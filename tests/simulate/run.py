"""Many seeds of our own fleets, over several processes: `python3 dev.py simulate --seeds 100000`.

The first failing case is reduced, its story is printed, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed

from tests.simulate.fleets import FLEETS
from treadle.testing import SimulationFailed, simulate
from treadle.testing.simulation import Report

PART = 200  # seeds that a process runs before it reports


def run(fleet: str, first: int, last: int, storage: str) -> Report | str:
    """Run these seeds. Return a summary, or the message of the first failure."""
    try:
        return simulate(**FLEETS[fleet], seeds=range(first, last), storage=storage)
    except SimulationFailed as failure:
        return f"fleet {fleet}: {failure}"


def parts(fleets: Sequence[str], first: int, seeds: int) -> Iterator[tuple[str, int, int]]:
    """The seeds of each fleet in parts."""
    for at in range(first, first + seeds, PART):
        for fleet in fleets:
            yield fleet, at, min(at + PART, first + seeds)


def main() -> int:
    ask = argparse.ArgumentParser(prog="dev.py simulate", description="Run simulated fleets under many seeds.")
    ask.add_argument("--seeds", type=int, default=2_000, help="How many seeds of each fleet. [default: 2000]")
    ask.add_argument("--first", type=int, default=0, help="The first seed. [default: 0]")
    ask.add_argument("--fleet", choices=tuple(FLEETS), help="Only this fleet. [default: each]")
    ask.add_argument("--storage", choices=("memory", "sqlite"), default="memory", help="[default: memory]")
    ask.add_argument("--processes", type=int, default=1, help="Processes that run seeds. [default: 1]")
    asked = ask.parse_args()
    begun, done, runs, faults = time.perf_counter(), 0, 0, 0
    fleets = (asked.fleet,) if asked.fleet else tuple(FLEETS)
    with ProcessPoolExecutor(asked.processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        tasks = [pool.submit(run, *part, asked.storage) for part in parts(fleets, asked.first, asked.seeds)]
        for task in as_completed(tasks):
            found = task.result()
            if isinstance(found, str):
                print(f"\n{found}", flush=True)
                pool.shutdown(cancel_futures=True)
                return 1
            done, runs, faults = done + found.seeds, runs + found.runs, faults + found.faults
            print(Report(done, runs, faults, time.perf_counter() - begun), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
