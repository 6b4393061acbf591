"""Measures how fast worker processes end the jobs of one feature, on an empty storage.

The jobs are stored before the workers start. The time counts from the start of the first job to the last counted
ending, so it excludes the enqueue and the start of the processes.
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
from benchmarks.fleet.tasks import MARK, Kit, make
from benchmarks.harness import procs
from treadle import App

CALL: Final = 500  # units per enqueue call
LOOK: Final = 0.02  # seconds between two polls of the marks
KINDS: Final = {"noop": 0.0, "nap": 0.05}  # seconds that each run sleeps


class Shape(NamedTuple):
    """A fleet and the kind of its jobs."""

    kind: str
    workers: int  # processes
    concurrency: int  # slots per process


@dataclass(frozen=True)
class Effort:
    """How much a cell measures."""

    noops: int  # no-op jobs, in plain jobs
    naps: int  # jobs of 50 ms per slot of the fleet
    cut: float  # seconds; after that the rate is that of the jobs ended until then
    acts: int  # jobs per act
    rows: int  # stored jobs while statistics and lists are read
    seconds: float  # duration of single calls

    def jobs(self, shape: Shape) -> int:
        return self.noops if shape.kind == "noop" else self.naps * shape.workers * shape.concurrency


class Drained(NamedTuple):
    rate: float  # plain jobs per second
    left: int  # jobs that had not ended at the cut
    quiet: float  # seconds from the last ending to the cut; 0 if it was not cut
    server: float  # us of CPU per plain job
    workers: float


class Marks:
    """The files in which workers record the first start and every ending."""

    def __init__(self, folder: Path, workers: int) -> None:
        self.paths = [folder / f"marks{number}" for number in range(workers)]

    def ended(self) -> int:
        """Number of endings recorded so far."""
        sizes = [path.stat().st_size for path in self.paths if path.exists()]
        return sum(max(size // MARK.size - 1, 0) for size in sizes)

    def span(self) -> tuple[float, float]:
        """The times of the first start and of the last ending."""
        moments = [list(MARK.iter_unpack(path.read_bytes())) for path in self.paths if path.exists()]
        found = [[moment for (moment,) in each] for each in moments if each]
        return min(each[0] for each in found), max(each[-1] for each in found)


def drained(url: str, feature: Feature, shape: Shape, effort: Effort) -> Drained:
    """Store the jobs, start the workers, and wait until all jobs have ended or the time is over."""
    units = max(1, round(effort.jobs(shape) / feature.weight))
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_filled(url, Path(folder), feature, KINDS[shape.kind], units))
        marks = Marks(Path(folder), shape.workers)
        with fleet(url, shape, marks.paths, feature.ways) as pids:
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


async def _filled(url: str, folder: Path, feature: Feature, seconds: float, units: int) -> None:
    async with make(url, folder, feature.ways) as app:
        await fill(app, feature, seconds, units)


async def fill(app: App, feature: Feature, seconds: float, units: int) -> None:
    """Set the rules of a feature and store its jobs, each run of which sleeps for that many seconds."""
    if feature.rules:
        await app.limits.set(*feature.rules)
    kit, rng = Kit(app, seconds), random.Random(1)
    for start in range(0, feature.beside, CALL):
        some = min(CALL, feature.beside - start)
        await app.enqueue([kit.job("plain", delay=FAR) for _ in range(some)])
    for start in range(0, units, CALL):
        some = range(start, min(start + CALL, units))
        await app.enqueue([spec for number in some for spec in feature.make(kit, number, rng)])


@contextlib.contextmanager
def fleet(url: str, shape: Shape, paths: Sequence[Path], ways: Sequence[str] = ()) -> Iterator[list[int]]:
    """Start worker processes, yield their process ids once they have begun, and kill them at the end."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-m", "benchmarks.fleet.tasks", url, str(shape.concurrency)]
    workers = [subprocess.Popen([*command, str(path), *ways], stdin=pipe, stdout=pipe) for path in paths]
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
    """CPU seconds of the servers and of the workers so far."""
    if not procs.known():
        return 0.0, 0.0
    ours = procs.cpu(workers)
    return procs.cpu([os.getpid()]) - time.process_time() - ours, ours
