"""Five workers with one schedule, started and killed with kill -9 at random: each tick has its job, and only one."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from datetime import datetime
from pathlib import Path

import pytest

from tests.faults.scheduled import EVERY, make
from tests.fixtures import LASTING, a_url
from tests.waiting import random_moment, until
from treadle import App, Worker
from treadle_testkit.shows import shows

pytestmark = pytest.mark.slow

ROUNDS = 4


@shows("a schedule makes one job for each of its times while its workers are killed")
@pytest.mark.parametrize("kind", LASTING)
async def test_each_tick_has_one_job(tmp_path: Path, kind: str) -> None:
    await each_moment_has_one_job(kind, tmp_path, ROUNDS)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", LASTING)
async def test_each_tick_has_one_job_for_long(tmp_path: Path, kind: str) -> None:
    await each_moment_has_one_job(kind, tmp_path, 200)


async def enough(app: App, jobs: int) -> bool:
    return sum(count.jobs for count in (await app.queues.stats()).counts if count.task == "beat") >= jobs


async def all_back(app: App) -> bool:
    """Jobs of killed processes are claimed again when their leases expire."""
    left = await app.jobs.list(task="beat", state=("ready", "running", "waiting"), limit=1)
    [schedule] = await app.schedules.list()
    assert schedule.next_at is not None
    [row] = await app.storage.get([schedule.id])
    assert row is not None
    return not left.records and row.due_at is not None and row.state == "ready"


async def each_moment_has_one_job(kind: str, folder: Path, rounds: int) -> None:
    with a_url(kind, folder) as url:
        await ticking_and_killed(url, rounds)


async def ticking_and_killed(url: str, rounds: int) -> None:
    rng, workers, kills = random.Random(os.urandom(4)), list[asyncio.subprocess.Process](), 0
    app = make(url)
    await app.open()
    try:
        for turn in range(rounds):
            while len(workers) < 5:
                workers.append(
                    await asyncio.create_subprocess_exec(sys.executable, "-m", "tests.faults.scheduled", url)
                )
            await until(lambda turn=turn: enough(app, 3 * turn), "three more ticks")  # type: ignore[misc]
            await random_moment(rng, 0.1, 0.5)
            for worker in rng.sample(workers, rng.choice((1, 2, 5))):
                os.kill(worker.pid, signal.SIGKILL)
                await worker.wait()
                workers.remove(worker)
                kills += 1
    finally:
        for worker in workers:
            worker.kill()
            await worker.wait()
        await app.release()
    async with app:
        async with Worker(app, poll=0.1):
            await until(lambda: all_back(app), "the leases of the dead are over")
        made = [row async for row in app.jobs.iterate(task="beat")]
    moments = [datetime.fromisoformat(dict(row.job.headers)["treadle-moment"]).timestamp() for row in made]
    assert kills
    assert len(moments) >= rounds
    gaps = [
        round((after - before) / EVERY) for before, after in zip(sorted(moments), sorted(moments)[1:], strict=False)
    ]
    assert set(gaps) == {1}, f"of {len(moments)} moments some came twice (0) or never (2 and more): {gaps}"
