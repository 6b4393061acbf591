"""Kill -9 at random moments, then look at what is left. Used by the short test and by the soak."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests.faults.workload import make
from treadle import State, Worker


class Found:
    """What the ledgers and the storage say after the killing."""

    def __init__(self) -> None:
        self.stored: set[str] = set()
        self.starts: Counter[str] = Counter()
        self.settled: Counter[str] = Counter()
        self.kills = 0
        self.missing: list[str] = []
        self.unfinished: list[str] = []
        self.foreign: list[str] = []  # the stored result is not that of the run that was told it had settled


async def kill_rounds(url: str, folder: Path, rounds: int, jobs_per_round: int, chance: random.Random,
                      say: Callable[[str], None] = lambda _: None) -> Found:  # fmt: skip
    """Two workers and a producer; each round kills one, the other or all of them, and starts them anew."""
    found, serial = Found(), 0
    processes: dict[str, asyncio.subprocess.Process] = {}

    async def start(role: str) -> None:
        nonlocal serial
        serial += 1
        processes[role] = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.faults.workload", role.rstrip("12"), url, str(folder / f"{serial}.ledger"),
            str(jobs_per_round),
        )  # fmt: skip

    try:
        for role in ("worker1", "worker2", "producer"):
            await start(role)
        for turn in range(rounds):
            await asyncio.sleep(chance.uniform(0.3, 1.0))  # the random moment itself
            for role in chance.choice((("worker1",), ("producer",), ("worker1", "producer"), tuple(processes))):
                if processes[role].returncode is None:
                    os.kill(processes[role].pid, signal.SIGKILL)
                    found.kills += 1
                await processes[role].wait()
                await start(role)
            say(f"round {turn + 1} of {rounds}, {found.kills} kills")
    finally:
        for process in processes.values():
            if process.returncode is None:
                process.kill()
            await process.wait()
    _read(folder, found)
    await _drain_and_compare(url, folder, found)
    return found


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
    """Let a last worker end what is left, then hold the rows against the ledgers."""
    book = os.open(folder / "last.ledger", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    app = make(url, book)
    async with app, Worker(app, concurrency=64, lease=5, poll=0.2):
        async with asyncio.timeout(120):
            while (await app.jobs.list(state=("ready", "running", "waiting"), limit=1)).records:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
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
