"""An agent that is killed at random moments pays each call at most once more per kill."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from tests.faults.ledger import kills
from tests.fixtures import a_url
from treadle_testkit.shows import shows

KILLS = 20


@kills
@pytest.mark.slow
@shows("an agent that is killed 20 times at random pays at most the calls in flight once more")
@pytest.mark.parametrize("storage", ["sqlite", "postgres"])
async def test_an_agent_is_killed_at_random(tmp_path: Path, storage: str) -> None:
    with a_url(storage, tmp_path) as url:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.faults.agent_kills", url, str(tmp_path), str(KILLS), "1"),
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        out, _ = await process.communicate()
    assert process.returncode == 0
    found = json.loads(out)
    assert (found["missing"], found["result"]) == ([], f"after {KILLS} turns")
    assert found["more"]["model"] + found["more"]["tool"] / 2 <= KILLS
