"""Runs the fleet of `treadle worker`: its signals, probes and output."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from treadle.cli.output import note, plural
from treadle.worker.fleet import Fleet, Hello, Orders, Recycling
from treadle.worker.probes import HealthReporter, Page, Probes

if TYPE_CHECKING:
    from treadle.cli.reload.supervisor import Make


def _say(text: str) -> None:
    note(f"treadle: {text}")


def fleet_of(orders: Orders, processes: int, say: Callable[[str], None] = _say, **how: Any) -> Fleet:
    """The processes of one command."""
    return Fleet(orders, processes, say, **how)


def starts(orders: Orders, processes: int) -> Make:
    """Makes the fleet of each start. The first fleet that works prints the whole greeting; later ones print changes."""
    last: list[Hello] = []

    def make(environment: Mapping[str, str], descriptor: int) -> Fleet:
        ready = 0

        def greeted(hello: Hello, _: int) -> None:
            nonlocal ready
            ready += 1
            if ready == 1:
                greet_again(hello, last[0]) if last else greet(hello, processes)
                last[:] = [hello]

        # With --reload a process may stand at a breakpoint.
        recycling = Recycling(restart_stuck=None)
        return fleet_of(
            orders, processes, greeted=greeted, environment=environment, inherited=[descriptor], recycling=recycling
        )

    return make


class Supervision:
    """One run of `treadle worker`. Raises BadOption if the port of the probes is taken."""

    def __init__(self, orders: Orders, processes: int, recycling: Recycling | None, probes: Probes) -> None:
        counts = probes.address is not None
        orders = msgspec.structs.replace(orders, count=counts)
        self._processes, self._greeted, self._signals = processes, False, 0
        self._fleet = fleet_of(orders, processes, greeted=self._hello, recycling=recycling)
        # It takes $NOTIFY_SOCKET out of the environment before the processes inherit it.
        pages = _pages(self._fleet) if counts else {}
        self._health = HealthReporter(probes, lambda: self._fleet.verdict, pages)
        self._rolling: asyncio.Task[None] | None = None
        self._roll_again = False

    async def run(self) -> int:
        """Run the processes until a signal stops them -> the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop)
        if _hangup_is_free():
            loop.add_signal_handler(signal.SIGHUP, self._roll)
        async with self._health:
            if self._health.address is not None:
                note(f"treadle: probes at {self._health.address.url}/livez and /readyz, metrics at /metrics")
            code = await self._fleet.run()
            if self._rolling is not None:
                self._rolling.cancel()
                await asyncio.gather(self._rolling, return_exceptions=True)
        if self._signals and not code:
            note("treadle: stopped")
        return code

    def _hello(self, hello: Hello, _: int) -> None:
        if not self._greeted:
            self._greeted = True
            greet(hello, self._processes)

    def _stop(self) -> None:
        self._signals += 1
        note("treadle: stopping" if self._signals == 1 else "treadle: stopping at once")
        self._health.stopping(self._fleet.patience)
        self._fleet.stop()

    def _roll(self) -> None:
        """Replace all processes. If a signal comes while they are being replaced, replace all of them once more
        afterwards."""
        if self._signals:
            note("treadle: SIGHUP is ignored while it stops")
            return
        self._roll_again = True
        if self._rolling is None or self._rolling.done():
            self._rolling = asyncio.create_task(self._replace_all())

    def _is_stopping(self) -> bool:
        return self._signals > 0

    async def _replace_all(self) -> None:
        self._health.reloading()
        try:
            while self._roll_again and not self._is_stopping():
                self._roll_again = False
                which, negation = ("all", "") if await self._fleet.roll("SIGHUP") else ("the other", "not ")
                if not self._is_stopping():
                    note(f"treadle: {which} worker processes were {negation}replaced")
        finally:
            self._health.reloaded()


def _pages(fleet: Fleet) -> Mapping[str, Page]:
    """The pages besides the probes."""
    from treadle.cli.metrics import MetricsPage  # 2 MB that a supervisor without a port does not need

    return {"/metrics": MetricsPage(fleet.counts)}


def _hangup_is_free() -> bool:
    """Whether SIGHUP means a rolling restart: not on a terminal, which sends it when it closes, or if it is ignored."""
    try:
        return not os.isatty(0) and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    except OSError:
        return True


# --- the first output of a fleet
#
# The first output of a fleet of workers.


def greet_again(hello: Hello, before: Hello) -> None:
    """Print which tasks a reload has added and removed."""
    changes = [f"new task {name}" for name in sorted(set(hello.tasks) - set(before.tasks))]
    changes += [f"task {name} is gone" for name in sorted(set(before.tasks) - set(hello.tasks))]
    note("treadle: claiming jobs again" + "".join(f"; {change}" for change in changes[:8]))


def greet(hello: Hello, processes: int) -> None:
    """Print the storage, queues, tasks and slots, and how to stop."""
    queues = ", ".join(name if weight == 1 else f"{name} (weight {weight})" for name, weight in hello.queues.items())
    tasks = ", ".join(hello.tasks[:8]) + (f" and {len(hello.tasks) - 8} more" if len(hello.tasks) > 8 else "")
    note(f"treadle: jobs live in {hello.url}")
    for text in hello.notes:
        note(f"treadle: {text}")
    if hello.found:
        note(f"  app     {hello.found}")
    note(f"  queues  {queues}")
    note(f"  tasks   {tasks}")
    note(f"  slots   {hello.slots} in each of {plural(processes, 'process')}")
    if hello.labels:
        note(f"  labels  {', '.join(f'{name}={value}' if value else name for name, value in hello.labels.items())}")
    if hello.resources:
        per_process = ", ".join(f"{name}={amount:,}" for name, amount in hello.resources.items())
        total = ", ".join(f"{name}={amount * processes:,}" for name, amount in hello.resources.items())
        note(f"  has     {per_process} in each process" + (f"; {total} in all" if processes > 1 else ""))
    for task in hello.misplaced:
        note(f"  note    task {task!r} is left to other workers: it needs labels or resources that this one has not")
    note(f"treadle: claiming jobs; press Ctrl-C to stop after at most {hello.grace:g} s, twice to stop at once")
