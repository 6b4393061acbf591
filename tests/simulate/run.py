"""Many seeds of the mixed fleet, over several processes: `python3 dev.py simulate --seeds 100000`.

The first failing case is reduced, its story is printed, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed

from tests.simulate.mix import INVARIANTS, app, work
from treadle.testing import SimulationFailed, simulate
from treadle.testing.simulation import Report

PART = 200  # seeds that a process runs before it reports


def run(first: int, last: int, storage: str) -> Report | str:
    """Run these seeds. Return a summary, or the message of the first failure."""
    kind: object = storage
    try:
        return simulate(app, work, seeds=range(first, last), invariants=INVARIANTS, storage=kind)  # type: ignore[arg-type]
    except SimulationFailed as failure:
        return str(failure)


def parts(first: int, seeds: int) -> Iterator[tuple[int, int]]:
    """The seeds in parts."""
    for at in range(first, first + seeds, PART):
        yield at, min(at + PART, first + seeds)


def main() -> int:
    ask = argparse.ArgumentParser(prog="dev.py simulate", description="Run simulated fleets under many seeds.")
    ask.add_argument("--seeds", type=int, default=2_000, help="How many seeds. [default: 2000]")
    ask.add_argument("--first", type=int, default=0, help="The first seed. [default: 0]")
    ask.add_argument("--storage", choices=("memory", "sqlite"), default="memory", help="[default: memory]")
    ask.add_argument("--processes", type=int, default=1, help="Processes that run seeds. [default: 1]")
    asked = ask.parse_args()
    begun, done, runs, faults = time.perf_counter(), 0, 0, 0
    with ProcessPoolExecutor(asked.processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        tasks = [pool.submit(run, *part, asked.storage) for part in parts(asked.first, asked.seeds)]
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
