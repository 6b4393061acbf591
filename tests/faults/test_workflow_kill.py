"""Workflows whose workers are killed with kill -9: each ends once in each round, after its last job, with the right
value."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.faults.stages import STAGES, Stage, staged
from tests.faults.workflows import gives_up, make, total
from tests.faults.workload import ledger
from tests.waiting import random_moment
from treadle import App, Record, State
from treadle_testkit.shows import shows

UNFINISHED = ("waiting", "ready", "running")
ROUNDS = 3  # rounds of each workflow; one whose children fail is retried twice
AT_A_TIME = 16  # endings that a killed worker may have settled without an event: two dispatchers of eight slots

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("kind", STAGES, ids=lambda kind: kind.name)]


class Fleet:
    """Three workers that are killed and started again, each with a ledger of its events."""

    def __init__(self, url: str, folder: Path, well: Path) -> None:
        self._url, self._folder, self._well = url, folder, well
        self._workers: list[asyncio.subprocess.Process] = []
        self._rng = random.Random(os.urandom(4))
        self.kills = self._serial = 0

    async def fill(self) -> None:
        while len(self._workers) < 3:
            self._serial += 1
            words = self._url, str(self._folder / f"{self._serial}.ledger"), str(self._well)
            self._workers.append(
                await asyncio.create_subprocess_exec(sys.executable, "-m", "tests.faults.workflows", *words)
            )

    async def kill_some(self) -> None:
        for worker in self._rng.sample(self._workers, self._rng.choice((1, 2, 3))):
            os.kill(worker.pid, signal.SIGKILL)
            await worker.wait()
            self._workers.remove(worker)
            self.kills += 1
        await self.fill()

    async def until_done(self, app: App, kills: int) -> None:
        """Wait until all work is done; meanwhile kill some of the workers this many times."""
        async with asyncio.timeout(250):
            while (await app.jobs.list(state=UNFINISHED, limit=1)).records:
                await random_moment(self._rng, 0.05, 0.5)
                if kills:
                    kills -= 1
                    await self.kill_some()

    async def close(self) -> None:
        for worker in self._workers:
            if worker.returncode is None:
                worker.kill()
            await worker.wait()

    def told(self) -> Counter[tuple[str, int, str]]:
        lines = [line.split() for path in self._folder.glob("*.ledger") for line in path.read_text().splitlines()]
        return Counter((line[1], int(line[2]), line[3]) for line in lines if line[0] == "ended")


@shows("a workflow ends once while its workers are killed")
@pytest.mark.timeout(600)
async def test_a_workflow_ends_once_a_round_while_workers_are_killed(kind: type[Stage], tmp_path: Path) -> None:
    await ends_once(kind, tmp_path, workflows=24, kills=2)


@pytest.mark.soak
@pytest.mark.timeout(3600)
async def test_workflows_end_once_a_round_for_long(kind: type[Stage], tmp_path: Path) -> None:
    await ends_once(kind, tmp_path, workflows=1_000, kills=40)


async def ends_once(kind: type[Stage], folder: Path, workflows: int, kills: int) -> None:
    well = folder / "well"
    well.write_text("")
    async with staged(kind) as stage:
        fleet = Fleet(stage.direct, folder, well)
        async with make(stage.direct, ledger(str(folder / "mine")), well) as app:
            outer = app.find_task("outer")
            jobs = await app.enqueue([outer.job(n) for n in range(workflows)])
            numbers = {job.id: n for n, job in enumerate(jobs)}
            try:
                await fleet.fill()
                for _ in range(ROUNDS):
                    await fleet.until_done(app, kills)
                    well.write_text(well.read_text() + "x")
                    # Several callers retry it at the same time, and may find it failed once more.
                    await asyncio.gather(*(app.dead.retry(task="child") for _ in range(4)))
                    await app.dead.retry(task="outer")
                await fleet.until_done(app, 0)
            finally:
                await fleet.close()
            rows = [row async for row in app.jobs.iterate()]
        assert fleet.kills > 0
        verify({row.job.id: row for row in rows}, numbers, fleet.told(), fleet.kills)


def verify(rows: dict[str, Record], numbers: dict[str, int], told: Counter[tuple[str, int, str]], kills: int) -> None:
    ended = set[tuple[str, int, str]]()
    for id, n in numbers.items():
        row = rows[id]
        again = sum(any(gives_up(n, each, round_) for each in range(3)) for round_ in range(ROUNDS))
        assert (row.state, row.value) == (State.SUCCEEDED, str(total(n))), row
        assert row.reopenings >= again  # more if it failed once more during the last retry call
        assert again or row.reopenings == 0
        below = [each for each in rows.values() if each.job.root == id]
        assert len(below) == 8
        assert all(each.state is State.SUCCEEDED for each in below)
        assert row.ended_at is not None
        assert row.ended_at >= max(each.ended_at or 0.0 for each in below)
        ended |= {(id, round_, "failed") for round_ in range(row.reopenings)} | {(id, row.reopenings, "succeeded")}
    assert set(told) <= ended, set(told) - ended
    assert set(told.values()) == {1}, [each for each in told.items() if each[1] > 1]
    assert len(ended) - len(told) <= kills * AT_A_TIME  # endings without an event: settled, and killed before the event
