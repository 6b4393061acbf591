"""The measures, one function each. A measure returns {name: figure}; CPU is that of this process, in us per job."""

from __future__ import annotations

import asyncio
import os
import resource
import statistics
import sys
import time
from dataclasses import dataclass

from treadle import App, Worker
from treadle.core import defaults
from treadle.storage import connect
from treadle.storage.contract import Storage
from treadle.worker.core import calm_collector

Figures = dict[str, float]


@dataclass(frozen=True)
class Setting:
    """The parameters of a measure: the URL of its storage, and how much to do."""

    url: str
    jobs: int = 40_000
    concurrency: int = 256


class Meter:
    """Wall and CPU time of a block."""

    def __enter__(self) -> Meter:
        self.wall, self.cpu = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall, self.cpu = time.perf_counter() - self.wall, time.process_time() - self.cpu


def make(setting: Setting, storage: Storage | None = None) -> App:
    app = App(setting.url) if storage is None else App(storage=storage)

    @app.task(name="noop")
    async def noop(x: int) -> int:
        return x

    @app.task(name="nap")
    async def nap(x: int) -> int:
        await asyncio.sleep(0.005)
        return x

    return app


async def bulk_enqueue(setting: Setting) -> Figures:
    """Create and store specs, 1,000 per call."""
    async with make(setting) as app:
        task = app.find_task("noop")
        with Meter() as meter:
            for start in range(0, setting.jobs, 1_000):
                await app.enqueue([task.job(i) for i in range(start, start + 1_000)])
    return {"bulk enqueue, jobs/s": setting.jobs / meter.wall, "bulk enqueue, CPU us": meter.cpu / setting.jobs * 1e6}


async def concurrent_enqueue(setting: Setting) -> Figures:
    """100 coroutines, each awaiting one enqueue after the other."""
    async with make(setting) as app:
        task, each = app.find_task("noop"), setting.jobs // 100

        async def producer() -> None:
            for i in range(each):
                await task.enqueue(i)

        with Meter() as meter:
            await asyncio.gather(*(producer() for _ in range(100)))
    return {"enqueue from 100 coroutines, jobs/s": each * 100 / meter.wall}


async def single_enqueue(setting: Setting) -> Figures:
    """One enqueue awaited after the other, as in a web request."""
    jobs = min(setting.jobs, 4_000)
    async with make(setting) as app:
        task = app.find_task("noop")
        with Meter() as meter:
            for i in range(jobs):
                await task.enqueue(i)
    return {"enqueue one at a time, jobs/s": jobs / meter.wall}


async def drain(setting: Setting, task_name: str = "noop", label: str = "drain") -> Figures:
    """Drain no-op jobs that are already queued, until the last is settled, with one worker in this process."""
    async with make(setting) as app:
        task = app.find_task(task_name)
        for start in range(0, setting.jobs, 1_000):
            await app.enqueue([task.job(i) for i in range(start, start + 1_000)])
        ended = 0
        done = asyncio.Event()

        # Other jobs may end after the last queued one: count the applied outcomes.
        @app.on("succeeded")
        def count(_: object) -> None:
            nonlocal ended
            ended += 1
            if ended == setting.jobs:
                done.set()

        worker = Worker(app, concurrency=setting.concurrency)
        with Meter() as meter:
            await worker.start()
            await done.wait()
        await worker.stop()
    rate, cpu = setting.jobs / meter.wall, meter.cpu / setting.jobs * 1e6
    name = f"{label} at {setting.concurrency}"
    return {f"{name}, jobs/s": rate, f"{name}, CPU us": cpu}


async def round_trip(setting: Setting) -> Figures:
    """From enqueue to result, one job at a time, with the worker in the same process."""
    jobs = min(setting.jobs, 500)
    async with make(setting) as app, Worker(app):
        task, times = app.find_task("noop"), []
        for i in range(jobs):
            start = time.perf_counter()
            job = await task.enqueue(i)
            await job.result(timeout=30)
            times.append(time.perf_counter() - start)
    return percentiles("enqueue to result, same process", times)


async def pick_up_same(setting: Setting) -> Figures:
    """From the enqueue call to the first line of the task: an idle worker in the same process, 50 jobs/s."""
    app = App(setting.url)
    times: list[float] = []

    @app.task(name="stamp")
    async def stamp(sent: float) -> None:
        times.append(time.perf_counter() - sent)

    async with app, Worker(app):
        for _ in range(150):
            await asyncio.sleep(0.02)
            await stamp.enqueue(time.perf_counter())
        while len(times) < 150:  # noqa: ASYNC110  there is no event to wait for
            await asyncio.sleep(0.01)
    return percentiles("pick-up, same process", times)


async def pick_up_other(setting: Setting) -> Figures:
    """The same with the worker in another process (CLOCK_MONOTONIC is the same for all processes)."""
    if setting.url.startswith("memory"):
        return {}
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.stamper", setting.url, stdout=asyncio.subprocess.PIPE
    )
    assert child.stdout is not None
    await child.stdout.readline()
    app = App(setting.url)
    stub = app.stub("stamp")
    async with app:
        for _ in range(150):
            await asyncio.sleep(0.02)
            await stub.enqueue(time.monotonic())
        times = [float(await child.stdout.readline()) for _ in range(150)]
    child.terminate()
    await child.wait()
    return percentiles("pick-up, other process", times)


def percentiles(name: str, times: list[float]) -> Figures:
    ordered = sorted(times)
    return {
        f"{name}, p50 ms": statistics.median(ordered) * 1e3,
        f"{name}, p99 ms": ordered[int(len(ordered) * 0.99)] * 1e3,
    }


def memory_mb() -> float:
    """Current memory of this process (Linux), otherwise its peak."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


async def flat_memory(setting: Setting) -> Figures:
    """A worker's memory after a tenth of the jobs and after all of them; jobs are enqueued while others drain."""
    async with make(setting) as app:
        task, ended = app.find_task("noop"), 0
        done = asyncio.Event()

        @app.on("succeeded")
        def count(_: object) -> None:
            nonlocal ended
            ended += 1
            if ended == setting.jobs:
                done.set()

        early = 0.0
        async with Worker(app, concurrency=setting.concurrency):
            for start in range(0, setting.jobs, 1_000):
                await app.enqueue([task.options(keep=0).job(i) for i in range(start, start + 1_000)])
                while start - ended > 20_000:  # noqa: ASYNC110  polling now and then is enough
                    await asyncio.sleep(0.005)
                if not early and ended >= setting.jobs // 10:
                    early = memory_mb()
            await done.wait()
            late = memory_mb()
    return {"memory after a tenth, MB": early, "memory at the end, MB": late}


class Ticker:
    """The worst lateness of a 1 ms timer, which is how long something else held the loop. Time that the process waited
    for a core is subtracted where the system reports it; a blocking write or lock is not."""

    def __init__(self) -> None:
        self.worst = self.worst_of_all = 0.0
        self._task = asyncio.create_task(self._tick())

    async def _tick(self) -> None:
        while True:
            before, waited = time.perf_counter(), waited_for_a_core()
            await asyncio.sleep(TICK)
            late = time.perf_counter() - before - TICK
            self.worst_of_all = max(self.worst_of_all, late)
            if late > self.worst:
                self.worst = max(self.worst, late - (waited_for_a_core() - waited))

    async def stop(self) -> float:
        """The longest hold, in ms."""
        await asyncio.sleep(2 * TICK)
        self._task.cancel()
        return self.worst * 1e3


TICK = 0.001  # seconds


def waited_for_a_core() -> float:
    """Seconds so far that this thread was runnable but had no core (Linux); 0 if unknown."""
    try:
        with open("/proc/thread-self/schedstat") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


async def loop_hold(setting: Setting) -> Figures:
    """The longest time that the loop was held: while a new storage is opened and migrated, while jobs drain (SQLite
    makes checkpoints meanwhile), and while ended jobs are pruned. The garbage collector is configured as in
    `Worker.run`.

    In addition: while a thousand jobs are created and stored at once, mostly the caller's own list comprehension."""
    ahead = 0.0
    calm_collector()
    ticker, found = Ticker(), dict[str, float]()
    storage = connect(setting.url, now=lambda: time.time() + ahead)
    app = make(setting, storage)
    async with app:
        found["opening"] = await ticker.stop()
        task, ended = app.find_task("noop").options(keep=0), 0
        ticker = Ticker()
        for start in range(0, setting.jobs, 1_000):
            await app.enqueue([task.job(i) for i in range(start, start + 1_000)])
        found["a thousand jobs made and stored"] = await ticker.stop()
        done = asyncio.Event()

        @app.on("succeeded")
        def count(_: object) -> None:
            nonlocal ended
            ended += 1
            if ended == setting.jobs:
                done.set()

        ticker = Ticker()
        async with Worker(app, concurrency=setting.concurrency):
            await done.wait()
        found["drain"] = await ticker.stop()
        shared = ticker.worst_of_all * 1e3
        ahead, ticker = 3_600.0, Ticker()
        while await storage.prune(defaults.PRUNE_STEP):  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # like a worker
        found["prune"] = await ticker.stop()
    figures = {f"longest hold of the loop: {what}, ms": worst for what, worst in found.items()}
    return figures | {
        "longest hold of the loop: drain, with the wait for a core, ms": shared,
        "longest hold of the loop, ms": max(found[what] for what in ("opening", "drain", "prune")),
    }
