"""Measures how fast worker processes end the jobs of one feature, on an empty storage.

The jobs are stored before the workers start. The clock runs from the start of the first job to the last counted ending,
so neither the enqueue nor the start of the processes is in the figure.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.fleet.features import FAR, Feature
from benchmarks.fleet.tasks import MARK, Kit, define
from benchmarks.harness import procs
from treadle import App

CALL: Final = 500  # units of one enqueue
LOOK: Final = 0.02  # s between two looks at the marks
KINDS: Final = {"noop": 0.0, "nap": 0.05}  # s each run sleeps


class Shape(NamedTuple):
    """A fleet and what its jobs do."""

    kind: str
    workers: int  # processes
    concurrency: int  # slots of each


@dataclass(frozen=True)
class Effort:
    """How much a cell measures."""

    noops: int  # jobs that do nothing, in plain jobs
    naps: int  # jobs of 50 ms for each slot of the fleet
    cut: float  # s; then the rate is that of the jobs ended until then
    acts: int  # jobs of an act
    rows: int  # jobs stored while statistics and lists are polled
    seconds: float  # that single calls are made

    def jobs(self, shape: Shape) -> int:
        return self.noops if shape.kind == "noop" else self.naps * shape.workers * shape.concurrency


class Drained(NamedTuple):
    rate: float  # plain jobs a second
    left: int  # jobs that had not ended when it was cut
    quiet: float  # s from the last ending to the cut; 0 if it was not cut
    server: float  # us of CPU for a plain job
    workers: float


class Marks:
    """The files in which workers note the first start and every ending."""

    def __init__(self, folder: Path, workers: int) -> None:
        self.paths = [folder / f"marks{number}" for number in range(workers)]

    def ended(self) -> int:
        """Endings that were noted by now."""
        sizes = [path.stat().st_size for path in self.paths if path.exists()]
        return sum(max(size // MARK.size - 1, 0) for size in sizes)

    def span(self) -> tuple[float, float]:
        """Moments of the first start and of the last ending."""
        moments = [list(MARK.iter_unpack(path.read_bytes())) for path in self.paths if path.exists()]
        found = [[moment for (moment,) in each] for each in moments if each]
        return min(each[0] for each in found), max(each[-1] for each in found)


def drained(url: str, feature: Feature, shape: Shape, effort: Effort) -> Drained:
    """Store the jobs, start the workers, wait until all have ended or the time is over."""
    units = max(1, round(effort.jobs(shape) / feature.weight))
    asyncio.run(_filled(url, feature, KINDS[shape.kind], units))
    with tempfile.TemporaryDirectory() as folder:
        marks = Marks(Path(folder), shape.workers)
        with fleet(url, shape, marks.paths, feature.scheduled) as pids:
            before = spent(pids)
            wanted, over = units * feature.ends, time.monotonic() + effort.cut
            while (ended := marks.ended()) < wanted and time.monotonic() < over:
                time.sleep(LOOK)
            now, after = time.monotonic(), spent(pids)
        if not ended:
            raise RuntimeError(f"no job ended within {effort.cut:g} s")
        first, last = marks.span()
    done = ended / feature.ends * feature.weight
    server, worked = (max(1e6 * (late - early) / done, 0.0) for late, early in zip(after, before, strict=True))
    left = max(wanted - ended, 0)
    return Drained(done / max(last - first, LOOK), left, max(now - last, 0.0) if left else 0.0, server, worked)


async def _filled(url: str, feature: Feature, seconds: float, units: int) -> None:
    async with App(url) as app:
        await fill(define(app), feature, seconds, units)


async def fill(app: App, feature: Feature, seconds: float, units: int) -> None:
    """Set the rules of a feature and store its jobs, each run of which sleeps for so many seconds."""
    if feature.rules:
        await app.limits.set(*feature.rules)
    kit, chance = Kit(app, seconds), random.Random(1)
    for start in range(0, feature.beside, CALL):
        some = min(CALL, feature.beside - start)
        await app.enqueue([kit.job("plain", delay=FAR) for _ in range(some)])
    for start in range(0, units, CALL):
        some = range(start, min(start + CALL, units))
        await app.enqueue([spec for number in some for spec in feature.make(kit, number, chance)])


@contextlib.contextmanager
def fleet(url: str, shape: Shape, paths: Sequence[Path], scheduled: bool = False) -> Iterator[list[int]]:
    """Worker processes that have begun to work, by their process ids; killed at the end."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-m", "benchmarks.fleet.tasks", url, str(shape.concurrency)]
    tail = ["scheduled"] if scheduled else []
    workers = [subprocess.Popen([*command, str(path), *tail], stdin=pipe, stdout=pipe) for path in paths]
    try:
        for worker in workers:
            assert worker.stdout is not None
            if not worker.stdout.readline():
                raise RuntimeError("a worker process ended before it was ready; its error is above")
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write(b"\n")
            worker.stdin.flush()
        yield [worker.pid for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()


def spent(workers: Sequence[int]) -> tuple[float, float]:
    """Seconds of CPU of the servers, and of the workers, so far."""
    if not procs.known():
        return 0.0, 0.0
    ours = procs.cpu(workers)
    return procs.cpu([os.getpid()]) - time.process_time() - ours, ours
