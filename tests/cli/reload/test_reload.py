"""`--reload`: after a save the new code runs, no job is lost or counted, and an error waits for the next save."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.cli.tools import Command, gone
from treadle import App, Record
from treadle_testkit.shows import shows

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform == "win32", reason="--reload needs signals")]

JOBS = """
import asyncio
import sys

import helper
from treadle import App

app = App("sqlite:///jobs.db")


@app.task
async def number() -> int:
    print("job runs", helper.NUMBER, file=sys.stderr, flush=True)
    while helper.NUMBER == 1:
        await asyncio.sleep(30)
    return helper.NUMBER
"""
NEW_TASK = """

@app.task
async def other() -> None: ...
"""


def row_of(here: Path, id: str) -> Record:
    async def look() -> Record:
        async with App(f"sqlite:///{here}/jobs.db") as app:
            return await app.jobs.get(id)

    return asyncio.run(look())


def enqueue(here: Path, *words: str) -> str:
    with Command("enqueue", "--url", "sqlite:///jobs.db", *words, cwd=here) as command:
        assert command.ended() == 0, command.stderr
        return command.stdout


@pytest.fixture
def lib(tmp_path: Path) -> Path:
    folder = tmp_path / "lib"
    folder.mkdir()
    (folder / "helper.py").write_text("NUMBER = 1\n")
    return folder


@pytest.fixture
def here(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


@shows("`treadle worker --reload` survives every state of the source: the job runs again uncounted, with the new code")
def test_a_worker_follows_the_saves_of_an_editor(here: Path, lib: Path) -> None:
    (here / "jobs.py").write_text(JOBS + "\nx = (\n")
    with Command("worker", "jobs:app", "--reload", "--processes", "2", cwd=here, PYTHONPATH=str(lib)) as worker:
        worker.wait_for("SyntaxError")
        worker.wait_for("waiting for the next save")
        (here / "jobs.py").write_text(JOBS)
        worker.wait_for("jobs.py changed; reloading")
        worker.wait_for("press Ctrl-C")
        enqueue(here, "jobs.number", "--id", "one")
        worker.wait_for("job runs 1")

        replace(here / "jobs.py", JOBS + NEW_TASK)  # as editors save: by renaming
        worker.wait_for("jobs.py changed; reloading")
        worker.wait_for("job runs 1")

        (here / "jobs.py").unlink()
        worker.wait_for("jobs.py was deleted; reloading")
        worker.wait_for("no module 'jobs'")
        worker.wait_for("waiting for the next save")
        (here / "jobs.py").write_text(JOBS)
        worker.wait_for("job runs 1")

        (lib / "helper.py").write_text("NUMBER = 1 / 0\n")  # outside of the project
        worker.wait_for("lib/helper.py changed; reloading")
        worker.wait_for("ZeroDivisionError")
        worker.wait_for("waiting for the next save")
        (lib / "helper.py").write_text("NUMBER = 42\n")
        worker.wait_for("job runs 42")
        worker.ctrl_c()
        assert worker.ended() == 0
        assert gone(worker.process.pid)
    assert "claiming jobs again; new task jobs.other" in worker.stderr
    assert "claiming jobs again; task jobs.other is gone" in worker.stderr
    assert worker.stderr.count("SyntaxError") == 1  # of two processes
    row = row_of(here, "one")
    assert (row.state.final, row.lost, row.attempt) == (True, 0, 1)


def replace(file: Path, text: str) -> None:
    beside = file.with_suffix(".tmp")
    beside.write_text(text[:20])
    beside.write_text(text)
    beside.replace(file)


def test_ctrl_c_during_a_reload_ends_it_after_the_grace(here: Path, lib: Path) -> None:
    (here / "jobs.py").write_text(JOBS)
    (here / "sitecustomize.py").write_text("import sys\nsys.modules['watchfiles'] = None\n")
    command, paths = ["worker", "jobs:app", "--reload", "--grace", "1"], os.pathsep.join(map(str, (here, lib)))
    with Command(*command, cwd=here, PYTHONPATH=paths) as worker:
        worker.wait_for("press Ctrl-C")
        enqueue(here, "jobs.number", "--id", "one")
        worker.wait_for("job runs 1")
        (here / "jobs.py").write_text(JOBS + NEW_TASK)
        worker.wait_for("reloading")
        worker.ctrl_c()
        worker.wait_for("treadle: stopping")
        assert worker.ended() == 0
        assert gone(worker.process.pid)
    assert "again" not in worker.stderr.partition("reloading")[2].replace("deferred; again", "")
    row = row_of(here, "one")
    assert (row.lost, row.attempt) == (0, 0)


def test_up_waits_for_a_save_that_repairs_an_error(here: Path, lib: Path) -> None:
    (here / "jobs.py").write_text(JOBS + "\nx = (\n")
    with Command("up", "--reload", "--port", "0", cwd=here, PYTHONPATH=str(lib)) as up:
        up.wait_for("was never closed")
        up.wait_for("waiting for the next save")
        (here / "jobs.py").write_text(JOBS)
        up.wait_for("a worker with 20 slots")
        (lib / "helper.py").write_text("NUMBER = 42\n")
        up.wait_for("helper.py changed; reloading")
        up.wait_for("a worker with 20 slots")
        up.ctrl_c()
        assert up.ended() == 0


def test_a_server_watches_other_files_and_stops_when_its_supervisor_dies(here: Path) -> None:
    settings = here / "settings"
    settings.mkdir()
    with Command("server", "--reload", "--port", "0", "--watch", "settings", cwd=here) as server:
        server.wait_for("http://127.0.0.1:")
        (settings / ".env").write_text("A=1")
        server.wait_for("settings/.env changed; reloading")
        server.wait_for("http://127.0.0.1:")
        server.signal(signal.SIGKILL)
        assert gone(server.process.pid)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["worker", "--watch", "."], "add --reload"),
        (["worker", "--reload", "--protocol", "delayed"], "an option of `treadle up`"),
        (["up", "--reload", "--watch", "nowhere"], "nowhere"),
    ],
)
def test_options_that_do_not_go_together(here: Path, words: list[str], said: str) -> None:
    with Command(*words, cwd=here) as command:
        assert command.ended() == 2
    assert said in command.stderr
