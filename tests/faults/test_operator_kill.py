"""A durable job whose worker is killed by SIGKILL at each line of its ledger is paused, resumed and run again from a
step: no step runs once more than an operator has asked for."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.faults.ledger import killed_and_run_again, kills
from tests.fixtures import LASTING
from treadle_testkit.shows import shows

PROGRAM = """
kind, operator = options
NAMES = ("reserve", "charge", "ship")


async def order():
    here = current()
    for name in NAMES:
        await here.step(name, effect, name)
        await here.sleep(0.01)
    return await here.step("end", lambda: "done")


def order_in_thread():
    here = current().sync
    for name in NAMES:
        here.step(name, effect, name)
        here.sleep(0.01)
    return here.step("end", lambda: "done")


task = app.task(name="order", max_lost=0)(order if kind == "async" else order_in_thread)


async def main():
    job = task.options(id="the-order").job()
    if operator == "none":
        return await ends(job)
    async with app:
        await app.jobs.pause(job.id)  # its worker is dead, and its lease may last
        async with Worker(app, lease=1, poll=0.05):
            await app.jobs.resume(job.id)
            await (await app.jobs.handle(job.id)).ended(timeout=60)
            await app.jobs.rerun(job.id, from_step="charge")
            print(await (await app.jobs.handle(job.id)).result(timeout=60))


asyncio.run(main())
"""
LINES = ["reserve", "charge", "ship"]


@pytest.mark.slow
@shows("a job whose worker was killed at any line is paused, resumed and run again from a step")
@kills
@pytest.mark.parametrize("kind", ["async", "thread"])
@pytest.mark.parametrize("storage", LASTING)
@pytest.mark.parametrize("line", range(1, len(LINES) + 1))
async def test_acts_after_a_kill_repeat_only_what_they_name(tmp_path: Path, storage: str, line: int, kind: str) -> None:
    ended = await killed_and_run_again(tmp_path, storage, PROGRAM, line, (kind, "none"), then=(kind, "acts"))
    assert ended.printed == "done"
    once = Counter(reserve=1, charge=2, ship=2)
    again = Counter(ended.effects) - once
    assert again <= Counter([LINES[line - 1]])  # the step that was killed may have run twice
    assert once <= Counter(ended.effects)
