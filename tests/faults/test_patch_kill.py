"""A deploy with a patch. The worker was killed by SIGKILL at each line of its ledger, in the old or the new code."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.ledger import killed_and_run_again, kills
from tests.fixtures import LASTING
from treadle_testkit.shows import shows

PROGRAM = """
kind, code = options


async def order():
    here = current()
    await here.step("reserve", effect, "reserve")
    if code == "new" and here.patched("check"):
        await here.step("check", effect, "check")
    await here.step("charge", effect, "charge")
    await here.sleep(0.01)
    await here.step("ship", effect, "ship")
    return "done"


def order_in_thread():
    here = current().sync
    here.step("reserve", effect, "reserve")
    if code == "new" and here.patched("check"):
        here.step("check", effect, "check")
    here.step("charge", effect, "charge")
    here.sleep(0.01)
    here.step("ship", effect, "ship")
    return "done"


task = app.task(name="order", max_lost=0)(order if kind == "async" else order_in_thread)
asyncio.run(ends(task.options(id="the-order").job()))
"""
OLD = ["reserve", "charge", "ship"]
NEW = ["reserve", "check", "charge", "ship"]


@pytest.mark.slow
@shows("a job whose worker was killed at any line before or after a deploy takes one code of a patch as a whole")
@kills
@pytest.mark.parametrize("kind", ["async", "thread"])
@pytest.mark.parametrize("storage", LASTING)
@pytest.mark.parametrize(("code", "line"), [*(("old", n) for n in range(1, 4)), *(("new", n) for n in range(1, 5))])
async def test_a_killed_job_takes_one_code(tmp_path: Path, storage: str, kind: str, code: str, line: int) -> None:
    ended = await killed_and_run_again(tmp_path, storage, PROGRAM, line, (kind, code), then=(kind, "new"))
    assert ended.printed == "done"
    if code == "old":
        # The last step was in progress: the point is passed only if the one before it is behind the point.
        later = OLD[line - 1 :] if line == 3 else NEW[NEW.index("check") :] if line == 2 else NEW
        assert ended.effects == OLD[:line] + later
    else:
        assert ended.effects == NEW[:line] + NEW[line - 1 :]
