"""The programs of `tests/faults/programs`, killed by SIGKILL behind each line of their ledgers: no step that was stored
runs again, and each program ends as it would have without the kill."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.faults.ledger import kills
from tests.faults.lives import PROGRAMS, Life, load
from tests.fixtures import LASTING, a_url
from treadle_testkit.shows import shows

MODULES: dict[str, Any] = {path.stem: load(path.stem) for path in sorted(PROGRAMS.glob("*.py"))}
CASES = [
    (name, kind, storage)
    for name, module in MODULES.items()
    for kind in getattr(module, "KINDS", ["async", "thread"])
    for storage in getattr(module, "STORAGES", LASTING)
]

pytestmark = kills


async def lived(lives: Sequence[Life]) -> None:
    """Run them in the processes of one driver."""
    driver = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.faults.lives"),
        stdin=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    _, errors = await driver.communicate(json.dumps(lives).encode())
    assert driver.returncode == 0, errors.decode()


def is_right(life: Life) -> None:
    """Compare the ledger and the result with those of the program."""
    module, line = MODULES[life.program], life.kill_at
    effects = Path(life.folder, "ledger").read_text().splitlines()
    result = json.loads(Path(life.folder, "result").read_text())
    if hasattr(module, "right"):
        module.right(effects, result, line)
        return
    expected, in_flight = module.LINES, getattr(module, "IN_FLIGHT", 1)
    assert result == getattr(module, "RESULT", None)
    if in_flight == 1:
        assert effects == expected[:line] + expected[max(line - 1, 0) :]
    else:
        more = Counter(effects) - Counter(expected)
        assert not Counter(expected) - Counter(effects)
        assert more <= Counter(effects[:line])  # what is repeated was done before the kill
        assert more.total() <= in_flight


@pytest.mark.slow
@shows("programs as users write them, killed behind any line of their ledgers, end as without the kill")
@pytest.mark.parametrize(("name", "kind", "storage"), CASES)
async def test_a_program_is_killed_behind_each_line(tmp_path: Path, name: str, kind: str, storage: str) -> None:
    lines = len(MODULES[name].LINES)
    with ExitStack() as stack:
        lives = []
        for line in range(lines + 1):
            folder = tmp_path / str(line)
            folder.mkdir()
            url = stack.enter_context(a_url(storage, folder))
            if storage == "sqlite":
                url += "&shared=true"  # for programs with tables of their own
            lives.append(Life(name, kind, url, str(folder), line))
        await lived(lives)
    for life in lives:
        is_right(life)


async def test_programs_end_well_after_one_kill(tmp_path: Path) -> None:
    """One line of every third program, on SQLite: the slow test kills each of them behind all lines."""
    lives = []
    for name, module in list(MODULES.items())[::3]:
        folder = tmp_path / name
        folder.mkdir()
        url = f"sqlite:///{folder / 'jobs.db'}?synchronous=normal&shared=true"
        kind = getattr(module, "KINDS", ["async"])[0]
        lives.append(Life(name, kind, url, str(folder), len(module.LINES) // 2 + 1))
    await lived(lives)
    for life in lives:
        is_right(life)
