"""One trial: a fleet at work, a nemesis against it, then healing, draining and the verdict."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psycopg
from msgspec import Struct

from tests.faults.stages import PostgresStage, ShardsStage, SqliteStage, Stage
from tests.soak.clusters import ClusterShardsStage
from tests.soak.fleet import Fleet
from tests.soak.moving import MovingStage
from tests.soak.nemesis import Nemesis
from tests.soak.producer import give
from tests.soak.set_clock import SetClockStage
from tests.soak.tasks import TABLES, make
from tests.soak.verdict import judge, summary
from tests.waiting import NotSeen, until
from treadle import App, StorageError, StorageUnavailable
from treadle.testing.history import History, Violation, read

PATIENCE = 3.0  # seconds that a call of the fleet waits for an answer
DRAIN = 90.0  # seconds without an ending after which the remaining jobs count as stuck
SAID = 5.0  # seconds between two lines of progress
ROLES = ("worker1", "worker2", "producer1", "producer2")
CLOCKS = "clocks"  # this fault is chosen when a process starts
UNFINISHED = ("waiting", "ready", "running")


class Verdict(Struct):
    """The result of a trial.

    counts      numbers of acknowledged jobs, runs, settled outcomes, and faults by name
    violations  promises that were not kept
    died        processes that ended by themselves
    """

    seed: int
    counts: Counter[str]
    violations: list[Violation]
    died: list[str]
    folder: str

    @property
    def ok(self) -> bool:
        return not self.violations and not self.died

    def __str__(self) -> str:
        lines = [
            f"seed {self.seed}: {len(self.violations)} violations, {len(self.died)} processes died; "
            f"{summary(self.counts)}"
        ]
        lines += [str(found) for found in self.violations[:5]] + self.died[:3]
        rules = Counter(found.rule for found in self.violations)
        return "\n".join([*lines, *([f"all violations: {dict(rules)}; histories in {self.folder}"] if rules else [])])


async def trial(
    stage: Stage,
    seed: int,
    seconds: float,
    say: Callable[[str], None],
    *,
    only: tuple[str, ...] = (),
    clocks: bool = True,
    plant: str = "",
    other_version: Path | None = None,
    drain: float = DRAIN,
) -> Verdict:
    """Harm a fleet on this open stage for `seconds`, let it drain, and judge. The stage must be empty.

    clocks  about half of the processes have a wrong clock
    other_version  a folder with another version of Treadle, which half of the processes use
    """
    folder = Path(tempfile.mkdtemp(prefix=f"treadle-soak-{seed}-"))
    url, direct = _shared(stage, stage.url), _shared(stage, stage.direct)
    database = _database(stage)
    async with make(direct, "first", str(folder / "first.jsonl"))[0]:  # the storage exists, with its limits
        await asyncio.to_thread(_make_tables, stage)
    # The clock of a file is that of the processes that use it.
    skewed = clocks and not isinstance(stage, SqliteStage | MovingStage) and (not only or CLOCKS in only)
    settable = isinstance(stage, SetClockStage)
    fleet = Fleet(
        folder, url, database, seed, PATIENCE, plant, skewed=skewed, settable=settable, other_version=other_version
    )
    nemesis = Nemesis(fleet, stage, seed, only)
    try:
        await asyncio.gather(*(fleet.start(role) for role in ROLES))
        await _torment(fleet, nemesis, seconds, say)
        await nemesis.heal()
        await fleet.end("producer")
        return await _judged(stage, fleet, say, drain)
    finally:
        await fleet.close()


async def _opened(app: App) -> bool:
    """Whether the storage answers. A server that was killed last may still recover."""
    try:
        await app.open()
    except StorageUnavailable:
        return False
    return True


async def _judged(stage: Stage, fleet: Fleet, say: Callable[[str], None], drain: float) -> Verdict:
    """Let the fleet finish the remaining jobs, and compare its histories with the rows."""
    app, history = make(_shared(stage, stage.direct), "judge", str(fleet.folder / "judge.jsonl"))
    try:
        await until(lambda: _opened(app), "a storage that answers, after the last fault", 60)
        await _drain(app, history, fleet, say, drain)
        await fleet.end("worker")
        rows = [row async for row in app.jobs.iterate()]
        found = judge(
            app,
            read(*fleet.paths),
            rows,
            await app.limits.list(),
            await asyncio.to_thread(_tables, stage),
            await app.storage.recount(),
            ordered=not isinstance(stage, ShardsStage | ClusterShardsStage | MovingStage),
        )
    finally:
        await app.close()
        history.close()
    stage.check()
    fleet.count()
    verdict = Verdict(fleet.seed, _counts(fleet, len(rows)), found, fleet.died, str(fleet.folder))
    if verdict.ok:
        shutil.rmtree(fleet.folder)
    return verdict


def _counts(fleet: Fleet, rows: int) -> Counter[str]:
    names = {"stored": "acknowledged", "began": "runs", "act": "cancels asked", "signal": "signals", "kill": "kills"}
    return Counter({"jobs": rows} | {names.get(name, name): count for name, count in sorted(fleet.done.items())})


async def _torment(fleet: Fleet, nemesis: Nemesis, seconds: float, say: Callable[[str], None]) -> None:
    begun = time.monotonic()
    task = asyncio.create_task(nemesis.run())
    try:
        while (left := begun + seconds - time.monotonic()) > 0:
            await asyncio.sleep(min(SAID, left))
            if task.done():
                await task  # it raised, or had nothing to do
            fleet.count()
            say(f"{time.monotonic() - begun:.0f} s of {seconds:.0f}: {summary(dict(sorted(fleet.done.items())))}")
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _drain(app: App, history: History, fleet: Fleet, say: Callable[[str], None], patience: float) -> None:
    """Let the workers finish the remaining jobs; send the signals that no process sent."""
    await _again(lambda: app.schedules.pause("tick"))
    moved, left, said = time.monotonic(), (-1, 0), 0.0
    for role in [role for role in fleet.roles if role.startswith("worker")]:
        await fleet.start_if_dead(role)
    while time.monotonic() - moved < patience:
        fleet.count()
        page = await app.jobs.list(state=UNFINISHED, limit=500)
        now = sum(not row.job.id.startswith("treadle") for row in page.records), fleet.done["settled"]
        if not now[0]:
            return
        if now != left:
            moved, left = time.monotonic(), now
        if time.monotonic() - said > SAID:
            said = time.monotonic()
            say(f"draining: {now[0]} jobs left")
        for row in (await app.jobs.list(task="approve", state=UNFINISHED, limit=100)).records:
            await give(app, history, row.job.id, -1)
        await asyncio.sleep(0.2)


async def _again(act: Callable[[], Any]) -> None:
    """Once more as long as the storage is away: a server that was killed may still recover."""

    async def acted() -> bool:
        with contextlib.suppress(StorageError):
            await act()
            return True
        return False

    with contextlib.suppress(NotSeen):
        await until(acted, "an answer of the storage", 20)


# --- users' own tables


def _shared(stage: Stage, url: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}shared=true" if isinstance(stage, SqliteStage) else url


def _database(stage: Stage) -> str | None:
    if isinstance(stage, PostgresStage):
        return stage.url
    return str(stage.path) if isinstance(stage, SqliteStage) else None


def _make_tables(stage: Stage) -> None:
    if isinstance(stage, PostgresStage):
        with psycopg.connect(stage.direct, autocommit=True) as connection:
            for statement in TABLES:
                connection.execute(statement.encode())
    elif isinstance(stage, SqliteStage):
        with contextlib.closing(sqlite3.connect(stage.path)) as db:
            for statement in TABLES:
                db.execute(statement)


def _tables(stage: Stage) -> Mapping[str, Sequence[str]]:
    names = ("soak_order", "soak_done")
    if isinstance(stage, PostgresStage):
        with psycopg.connect(stage.direct) as connection:
            return {name: [row[0] for row in connection.execute(f"SELECT id FROM {name}".encode())] for name in names}
    if isinstance(stage, SqliteStage):
        with contextlib.closing(sqlite3.connect(stage.path)) as db:
            return {name: [row[0] for row in db.execute(f"SELECT id FROM {name}")] for name in names}
    return {}
