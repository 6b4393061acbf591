"""`defaults.py` is the only place of the defaults: a number that is changed there applies on every storage."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

from tests.fixtures import KINDS, a_url
from treadle.core import defaults
from treadle.storage.constants import filled

CHANGED = """
import asyncio, importlib.util, sys
spec = importlib.util.spec_from_file_location("treadle.core.defaults", sys.argv[2])  # before anything reads it
sys.modules["treadle.core.defaults"] = defaults = importlib.util.module_from_spec(spec)
spec.loader.exec_module(defaults)
defaults.KEEP, defaults.KEEP_FAILED, defaults.KEEP_LEAST = 172_800.0, 1_000_000.0, 300.0
from treadle.core.model import Claim, NewJob, Outcome, State
from treadle.storage import connect

async def main(url):
    storage = connect(url)
    await storage.open()
    plain = [NewJob(id=id, task="t") for id in ("good", "bad", "short")]
    keyed = [NewJob(id=f"{id}-keyed", task="t", key=id) for id in ("good", "bad", "short")]
    laned = [NewJob(id=f"{id}-laned", task="t", lane=id) for id in ("good", "bad", "short")]
    for jobs in (plain, keyed, laned):
        await storage.enqueue(jobs)
    rows = (await storage.claim(Claim(worker="w#1", limit=9))).records
    words = {"good": (State.SUCCEEDED, None), "bad": (State.FAILED, None), "short": (State.SUCCEEDED, 0.0)}
    for row in rows:
        state, keep = words[row.id.partition("-")[0]]
        await storage.settle([Outcome(id=row.id, version=row.version, state=state, attempt=1, keep=keep)])
    for row in await storage.get([row.id for row in rows]):
        print(row.id, round(row.expires_at - row.ended_at))
    await storage.close()

asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.parametrize("kind", KINDS)
def test_retention_follows_the_defaults(kind: str, tmp_path: Path) -> None:
    """For plain jobs, jobs with keys, and others."""
    with a_url(kind, tmp_path) as url:
        run = subprocess.run(
            [sys.executable, "-c", CHANGED, url, str(defaults.__file__)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert run.returncode == 0, run.stderr
    expected = {"good": 172_800, "bad": 1_000_000, "short": 300}
    assert dict(line.split() for line in run.stdout.splitlines()) == {
        id + way: str(seconds) for id, seconds in expected.items() for way in ("", "-keyed", "-laned")
    }


def test_statements_and_scripts_repeat_no_default() -> None:
    """They contain the retention defaults as names, not as numbers."""
    own = {"drop_unused.sql", "tidy.lua"}  # ages of claim ids and of silent workers, which have no setting
    numbers = {f"{number:.0f}" for number in (defaults.KEEP, defaults.KEEP_FAILED)}
    found = []
    for package, folder in (("postgres", "functions"), ("redis", "lua")):
        for entry in files(f"treadle.storage.{package}").joinpath(folder).iterdir():
            text = re.sub(r"--.*", "", entry.read_text("utf-8")) if entry.name not in own else ""
            found += [(entry.name, number) for number in re.findall(r"\b\d{5,}\b", text) if number in numbers]
            assert "${" not in filled(text)
    assert found == []


def test_a_name_without_a_default_is_an_error() -> None:
    with pytest.raises(AttributeError, match="NO_SUCH"):
        filled("${NO_SUCH}")
