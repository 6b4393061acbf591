"""Runs the demo: enqueues a job for each module of the standard library, starts workers, shows progress, kills a worker
on request, counts the outcomes, and prints the report."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from treadle import App, Job, State, all_done
from treadle.cli.output import FAILED, Stop, data, note, plural, table
from treadle.cli.progress import Bar
from treadle.cli.supervise import fleet_of
from treadle.contrib.demo import tasks
from treadle.core.claim_ids import worker_name
from treadle.core.clock import monotonic
from treadle.worker.fleet import Hello, Orders

LEASE = 2.0  # s; short, so that lost jobs run again while the user watches
SLOTS = 4  # jobs at once in each process
KILL_AT = 0.4  # share of the jobs that is done when a worker is killed
LOOK = 0.1  # s between updates of the progress bar
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


SKIPPED = frozenset({"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__", "lib-dynload"})


def modules() -> list[tuple[str, str]]:
    """(name, path) of each module except tests, sorted by name."""
    root = Path(sysconfig.get_path("stdlib"))
    names = []
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in SKIPPED]
        for file in files:
            if file.endswith(".py"):
                path = Path(folder, file)
                name = ".".join(path.relative_to(root).with_suffix("").parts)
                names.append((name.removesuffix(".__init__"), str(path)))
    return sorted(names)


class Numbers(Struct, kw_only=True):
    """The counts of the demo's jobs by outcome, and its duration."""

    enqueued: int
    succeeded: int
    failed: int
    lost: int  # run again because their worker was lost
    missing: int  # enqueued, but without success or failure: always 0
    killed: int  # workers
    processes: int
    seconds: float


class Demo:
    """One run of the demo. `kill`: kill -9 a worker when about 40 % of the jobs are done."""

    def __init__(self, app: App, modules: Sequence[tuple[str, str]], processes: int, kill: bool) -> None:
        self.app, self.modules, self.processes, self.kill = app, modules, processes, kill
        self.queue = f"demo-{os.urandom(4).hex()}"  # unique, so that a shared storage's own jobs stay out
        self.names: dict[int, str] = {}  # workers, by number
        self.held: tuple[str, ...] = ()  # jobs that the killed worker held
        self.killed_at = 0.0
        self.bar = Bar("indexing", len(modules), after=0.0)
        orders = Orders(
            app="treadle.contrib.demo.tasks:app",
            name="demo",
            concurrency=SLOTS,
            lease=LEASE,
            grace=5.0,
            queues={self.queue: 1},
            log_level="error",
        )
        self.fleet = fleet_of(orders, processes, say=self.bar.say, greeted=self._greeted)

    async def run(self) -> tuple[tasks.Report, Numbers]:
        """Run the demo -> the report and the counts. Stops all workers also when it fails."""
        began = monotonic()
        fleet = asyncio.create_task(self.fleet.run())
        try:
            with self.bar:
                jobs, last = await self._enqueue()
                ended = asyncio.create_task(last.ended())
                try:
                    await self._watch(fleet, ended)
                finally:
                    ended.cancel()
            report = await last.result()
            seconds = monotonic() - began
            numbers = await self._count([*jobs, last], seconds)
            self.fleet.stop()
            await fleet
            return report, numbers
        finally:
            await self._end(fleet)

    async def _end(self, fleet: asyncio.Task[int]) -> None:
        """Stop all workers at once; kill those that take more than 1.5 s."""
        if not fleet.done():
            self.fleet.stop()
            self.fleet.stop()
            await asyncio.wait([fleet], timeout=1.5)
        fleet.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await fleet

    def _greeted(self, hello: Hello, number: int) -> None:
        self.names[number] = hello.worker

    async def _enqueue(self) -> tuple[list[Job[tasks.Module, tasks.Module]], Job[tasks.Report, tasks.Report]]:
        task = tasks.index.options(queue=self.queue)
        jobs = await self.app.enqueue([task.job(name, path) for name, path in self.modules])
        last = await self.app.enqueue(tasks.report.options(queue=self.queue).job(), after=jobs, when=all_done())
        note(f"enqueued {plural(len(jobs), 'job')}, one per module, and a last one that waits for all of them")
        return jobs, last

    async def _watch(self, fleet: asyncio.Task[int], ended: asyncio.Task[object]) -> None:
        """Show the progress until the last job has ended."""
        total, began, came_back = len(self.modules), 0.0, False
        while not ended.done():
            done, running = await self._progress()
            began = began or (monotonic() if done else 0.0)
            rate = f", {done / (monotonic() - began):,.0f} jobs/s" if began and monotonic() - began > LOOK else ""
            self.bar.update(done, f"{running} running{rate}")
            if self.kill and not self.held and done >= KILL_AT * total:
                await self._kill_one()
            if self.held and not came_back:
                came_back = await self._look_for_the_lost()
            await asyncio.wait([fleet, ended], timeout=LOOK, return_when=asyncio.FIRST_COMPLETED)
            if fleet.done():
                raise Stop(fleet.result() or FAILED, "the demo's workers could not start; see above")
        if self.held and not came_back:  # the lost jobs ended last
            await self._look_for_the_lost()

    async def _progress(self) -> tuple[int, int]:
        done, running = 0, 0
        for count in (await self.app.queues.stats()).counts:
            if count.queue == self.queue and count.task == tasks.index.name:
                done += count.jobs if count.state.final else 0
                running += count.jobs if count.state is State.RUNNING else 0
        return done, running

    async def _kill_one(self) -> None:
        """Kill -9 a worker that holds jobs. SIGSTOP first, so that the printed number of its jobs is exact."""
        for number, pid in self.fleet.pids.items():
            name = self.names.get(number)
            if name is None:
                continue
            os.kill(pid, signal.SIGSTOP)
            with contextlib.suppress(ChildProcessError):  # it has already ended
                await asyncio.to_thread(os.waitpid, pid, os.WUNTRACED)
            rows = (await self.app.jobs.list(queue=self.queue, state="running", limit=1_000)).records
            held = tuple(row.id for row in rows if worker_name(row.worker) == name)
            if not held:
                os.kill(pid, signal.SIGCONT)
                continue
            os.kill(pid, signal.SIGKILL)
            self.held, self.killed_at = held, monotonic()
            self.bar.say(
                f"killed worker {number} (kill -9, process {pid}) while it held {plural(len(held), 'job')}; "
                f"their leases expire within {LEASE:g} s"
            )
            return

    async def _look_for_the_lost(self) -> bool:
        """Whether all jobs of the killed worker have ended; prints how many ran again.

        Some may have ended in time: the server may have received their outcome before the kill.
        """
        rows = (await self.app.jobs.list(ids=self.held, limit=1_000)).records
        if not all(row.state.final for row in rows):
            return False
        lost = sum(row.lost > 0 for row in rows)
        self.bar.say(
            f"the {plural(lost, 'job')} of the killed worker came back and were run again, "
            f"{monotonic() - self.killed_at:.1f} s after the kill"
        )
        return True

    async def _count(self, jobs: Sequence[Job[object, object]], seconds: float) -> Numbers:
        states: dict[str, State] = {}
        lost = 0
        async for row in self.app.jobs.iterate(queue=self.queue):
            states[row.id] = row.state
            lost += row.lost > 0
        ended = [states.get(job.id) for job in jobs]
        succeeded, failed = ended.count(State.SUCCEEDED), ended.count(State.FAILED)
        return Numbers(
            enqueued=len(jobs),
            succeeded=succeeded,
            failed=failed,
            lost=lost,
            missing=len(jobs) - succeeded - failed,
            killed=1 if self.held else 0,
            processes=self.processes,
            seconds=seconds,
        )


def run(modules: Sequence[tuple[str, str]], processes: int, kill: bool) -> tuple[tasks.Report, Numbers]:
    """Run the demo on the storage of TREADLE_URL. SIGINT, SIGTERM and SIGHUP raise KeyboardInterrupt."""

    async def work() -> tuple[tasks.Report, Numbers]:
        loop, here, is_stopping = asyncio.get_running_loop(), asyncio.current_task(), False
        assert here is not None

        def stop() -> None:
            """Cancel the demo once. A second signal must not interrupt the clean-up, which takes at most 2 s."""
            nonlocal is_stopping
            if not is_stopping:
                is_stopping = True
                here.cancel()

        for number in ENDING:
            loop.add_signal_handler(number, stop)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        async with tasks.app as app:
            return await Demo(app, modules, processes, kill).run()

    # A half-made loop cannot be interrupted cleanly: block the signals until it has its handlers.
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        return asyncio.run(work())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)


def show(report: tasks.Report, numbers: Numbers) -> None:
    """Print the report to stdout."""
    data(
        f"The standard library of this Python: {report.modules:,} modules, {report.lines:,} lines, "
        f"{report.functions:,} functions, {report.classes:,} classes.\n"
    )
    rows = [(function.name, function.lines) for function in report.longest]
    table(("longest functions", "lines"), rows, "no functions", right=("lines",))
    data("")
    big = [(module.name, module.lines, module.functions, module.classes) for module in report.biggest]
    counts = ("lines", "functions", "classes")
    table(("biggest modules", *counts), big, "no modules", right=counts)
    lost = f"{numbers.lost:,} whose worker was killed ran again" if numbers.killed else "0 lost"
    data(
        f"\n{plural(numbers.enqueued, 'job')} enqueued: {numbers.succeeded:,} succeeded, {numbers.failed:,} failed, "
        f"{lost}, {numbers.missing:,} missing."
    )
    data(
        f"{numbers.seconds:.1f} s with {plural(numbers.processes, 'worker process')}, "
        f"{numbers.enqueued / numbers.seconds:,.0f} jobs/s."
    )
