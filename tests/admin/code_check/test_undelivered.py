"""`treadle storage check` also reads the jobs of an outbox, and nothing that the app prints gets into its document."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from treadle import App, Outbox
from treadle.cli.output import Stop
from treadle.cli.root import treadle
from treadle_testkit.shows import shows

PROGRAM = """
from treadle import App, Outbox

print("this program prints at its import")
app = App("sqlite:///jobs.db", outbox=Outbox("sqlite:///{database}"))


@app.task(name="pay")
async def pay(order: str) -> None: ...
"""


def check(*words: str) -> Result:
    sys.modules.pop("undelivered_app", None)
    return CliRunner().invoke(treadle, ["storage", "check", *words], standalone_mode=False)


async def fill() -> None:
    """An outbox with three jobs: a misfit, one without a task, and one that cannot be read."""
    database = sqlite3.connect("shop.db")
    outbox = Outbox("sqlite:///shop.db")
    await outbox.create()
    app = App("sqlite:///jobs.db", outbox=outbox)

    @app.task(name="pay")
    async def pay(order: int) -> None: ...

    @app.task(name="gone")
    async def gone() -> None: ...

    async with app:
        jobs = [pay.job(17), gone.job(), gone.job()]
        with database:
            await app.enqueue(jobs, within=database)
    with database:
        database.execute("UPDATE treadle_outbox SET job = '{' WHERE seq = 3")
    database.close()


@shows("`treadle storage check` finds jobs that new code cannot run in an outbox, before they are delivered")
def test_jobs_of_an_outbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "undelivered_app.py").write_text(PROGRAM.format(database="shop.db"))
    asyncio.run(fill())
    ended = check("undelivered_app:app", "--json")
    report = json.loads(ended.stdout)
    assert "this program prints" in ended.stderr
    assert (report["outbox"], report["looked"], ended.return_value) == (2, 0, 1)
    found = {(each["kind"], each["subject"], *each["states"]) for each in report["findings"]}
    assert found == {
        ("arguments", "pay", "in the outbox"),
        ("task", "gone", "in the outbox"),
        ("outbox", "a row", "in the outbox"),
    }
    assert "and 2 jobs of the outbox checked" in check("undelivered_app:app").stderr
    assert check("undelivered_app:app", "--no-outbox").return_value == 0
    away = check("undelivered_app:app", "--outbox", "sqlite:///none.db")
    assert away.return_value == 0  # its rights may be for the storage only
    assert "its jobs were not checked" in away.stdout


def test_a_storage_in_memory_is_no_storage_to_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "memory_app.py").write_text("from treadle import App\n\napp = App('memory://')\n")
    error = check("memory_app.py:app").exception
    assert isinstance(error, Stop)
    assert "give the one to check with --url" in error.text
