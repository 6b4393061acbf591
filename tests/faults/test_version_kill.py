"""A deploy with a second version of a task, after the worker was killed by SIGKILL at each line of its ledger."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.ledger import killed_and_run_again, kills
from tests.fixtures import LASTING
from treadle_testkit.shows import shows

PROGRAM = """
kind, release = options


async def order():
    here = current()
    await here.step("reserve", effect, "reserve")
    await here.step("charge", effect, "charge")
    await here.sleep(0.01)
    await here.step("ship", effect, "ship")
    return 1


async def order_2():
    here = current()
    await here.step("check", effect, "check")
    await here.step("pay", effect, "pay")
    return 2


def order_in_thread():
    here = current().sync
    here.step("reserve", effect, "reserve")
    here.step("charge", effect, "charge")
    here.sleep(0.01)
    here.step("ship", effect, "ship")
    return 1


task = app.task(name="order", max_lost=0)(order if kind == "async" else order_in_thread)
if release == "second":
    task = app.task(name="order", max_lost=0, version=2)(order_2)
asyncio.run(ends(task.options(id="the-order").job()))
"""
OLD = ["reserve", "charge", "ship"]


@pytest.mark.slow
@shows("a job whose worker was killed at any line before a deploy keeps to the version whose step is stored")
@kills
@pytest.mark.parametrize("kind", ["async", "thread"])
@pytest.mark.parametrize("storage", LASTING)
@pytest.mark.parametrize("line", range(1, 4))
async def test_a_killed_job_keeps_to_its_version(tmp_path: Path, storage: str, kind: str, line: int) -> None:
    """The first step was in progress at the first line, and is not stored: the job has not begun."""
    ended = await killed_and_run_again(tmp_path, storage, PROGRAM, line, (kind, "first"), then=(kind, "second"))
    later = ["check", "pay"] if line == 1 else OLD[line - 1 :]
    assert (ended.printed, ended.effects) == ("2" if line == 1 else "1", OLD[:line] + later)
