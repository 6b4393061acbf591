"""kill -9 at random times, followed by a check of what is stored. The short test and the soak use it."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from tests.faults.stages import Stage
from tests.faults.workload import make
from tests.waiting import Signal, random_moment, until
from treadle import State, Worker
from treadle.core.defaults import SYSTEM_QUEUE

PATIENCE = 280.0  # s: starting Python takes long on a busy machine


class Found:
    """Compares the ledgers with the storage after the kills."""

    def __init__(self) -> None:
        self.stored: set[str] = set()
        self.starts: Counter[str] = Counter()
        self.settled: Counter[str] = Counter()
        self.kills = self.server_kills = self.acknowledged = 0
        self.missing: list[str] = []
        self.unfinished: list[str] = []
        self.foreign: list[str] = []  # the stored result is not that of the run whose settle was confirmed


CLIENTS = (("worker1",), ("producer",), ("worker1", "producer"), ("worker1", "worker2", "producer"))
SERVER = (("server",), ("server",), ("server", "worker1"), ("worker2", "server", "producer"))


async def kill_rounds(
    stage: Stage,
    folder: Path,
    rounds: int,
    jobs_per_round: int,
    rng: random.Random,
    say: Callable[[str], None] = lambda _: None,
) -> Found:
    """Run two workers and a producer. Each round kills one, the other or all of them, and starts them again. If there
    is a server, every second round kills it too."""
    found, serial, url = Found(), 0, stage.direct
    processes: dict[str, asyncio.subprocess.Process] = {}
    ledgers: dict[str, Path] = {}

    async def start(role: str) -> None:
        nonlocal serial
        serial += 1
        ledgers[role] = folder / f"{serial}.ledger"
        processes[role] = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.faults.workload",
            role.rstrip("12"),
            url,
            str(ledgers[role]),
            str(jobs_per_round),
        )

    async def end(role: str) -> bool:
        """Start a process again after killing it, or after it ended by itself. Return whether it was killed."""
        if processes[role].returncode is None:
            processes[role].kill()
        killed = await processes[role].wait() == -signal.SIGKILL
        await start(role)
        return killed

    try:
        for role in ("worker1", "worker2", "producer"):
            await start(role)
        for turn in range(rounds):
            await _at_work(ledgers.values())
            await random_moment(rng, 0.01, 0.6)
            roles = rng.choice(SERVER if stage.server and turn % 2 else CLIENTS)
            if "server" in roles:
                await stage.kill_server()
                found.server_kills += 1
            killed = 0
            for role in roles:
                if role != "server":
                    killed += await end(role)
            if not killed and "server" not in roles:
                killed = await end("worker2")  # a producer that has finished cannot be killed any more
            found.kills += killed
            say(f"round {turn + 1} of {rounds}, {found.kills} kills, {found.server_kills} of the server")
    finally:
        for process in processes.values():
            if process.returncode is None:
                process.kill()
            await process.wait()
    _read(folder, found)
    found.acknowledged = len(found.stored)
    await _drain_and_compare(url, folder, found)
    return found


async def _at_work(ledgers: Iterable[Path]) -> None:
    """Wait until each process has done something: a kill before that would show nothing."""
    at_work = "the first line of each process"
    await until(lambda: all(path.exists() and path.stat().st_size for path in ledgers), at_work, PATIENCE)


def _read(folder: Path, found: Found) -> None:
    for path in folder.glob("*.ledger"):
        for line in path.read_text().splitlines():
            match line.split():
                case ["stored", id]:
                    found.stored.add(id)
                case ["start", id, _]:
                    found.starts[id] += 1
                case ["settled", id, _]:
                    found.settled[id] += 1


async def _drain_and_compare(url: str, folder: Path, found: Found) -> None:
    """Let a last worker finish the remaining jobs, then compare the rows with the ledgers."""
    book = os.open(folder / "last.ledger", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    app, events = make(url, book), Signal()
    app.on("*")(events.send)

    async def all_ended() -> bool:
        # Counts are of one moment. A list reads state by state, and misses suspects that are released together.
        counts = (await app.queues.stats()).counts
        return not any(each.jobs for each in counts if not each.state.final and each.queue != SYSTEM_QUEUE)

    async with app, Worker(app, concurrency=64, lease=5, poll=0.2):
        await events.until(all_ended, "the end of all jobs", PATIENCE)
    _read_settled(folder / "last.ledger", found)
    async with app:
        for row in [row async for row in app.jobs.iterate()]:
            found.stored.discard(row.job.id)
            if row.state is not State.SUCCEEDED:
                found.unfinished.append(f"{row.job.id} {row.state} {row.error}")
            elif row.result is None or row.job.id not in row.result:
                found.foreign.append(row.job.id)
    found.missing = sorted(found.stored)
    os.close(book)


def _read_settled(path: Path, found: Found) -> None:
    for line in path.read_text().splitlines():
        if line.startswith("settled "):
            found.settled[line.split()[1]] += 1
