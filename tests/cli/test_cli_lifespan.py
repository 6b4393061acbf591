"""The lifespan under `treadle worker` and `treadle up`: in every process, and as the reason of a failed start."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.cli.tools import Command
from treadle.worker.fleet import Fleet, child_process
from treadle.worker.fleet.messages import Orders
from treadle_testkit.shows import shows

pytestmark = pytest.mark.slow

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the supervisor needs signals and process groups")

TASKS = """
import asyncio
import os
import sys
from pathlib import Path

from treadle import App

app = App("sqlite:///jobs.db")


@app.lifespan
async def resources():
    if Path("fails").exists():
        raise OSError("no database")
    if Path("only").exists():
        Path("first").mkdir()  # fails in a second process
    print("entered", os.getpid(), file=sys.stderr, flush=True)
    async with asyncio.TaskGroup() as group:
        watching = group.create_task(watch())
        try:
            yield
        finally:  # also if the signal comes before the worker claims
            watching.cancel()
            print("left", os.getpid(), file=sys.stderr, flush=True)


async def watch():
    while not Path("breaks").exists():
        await asyncio.sleep(0.02)
    raise OSError("subscription lost")


@app.task
async def add(a: int, b: int) -> int:
    return a + b
"""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "jobs.py").write_text(TASKS)
    return tmp_path


@shows("each process of `treadle worker --processes` enters and leaves the lifespan")
def test_each_process_enters_and_leaves_the_lifespan(here: Path) -> None:
    with Command("worker", "jobs:app", "--processes", "2", cwd=here) as command:
        pids = {command.wait_for("entered").split()[-1] for _ in range(2)}
        assert len(pids) == 2
        command.process.terminate()
        assert command.ended() == 0
    assert {line.split()[-1] for line in command.said if line.startswith("left")} == pids


@shows("a worker whose lifespan fails prints the reason once, exits with 1, and is not restarted")
def test_a_worker_whose_lifespan_fails_exits_with_the_reason(here: Path) -> None:
    (here / "fails").touch()
    with Command("worker", "jobs:app", "--processes", "2", cwd=here) as command:
        assert command.ended() == 1
    reasons = [line for line in command.said if "failed before its yield: OSError: no database" in line]
    assert len(reasons) == 1
    assert "jobs.py, line 15" in reasons[0]
    assert "Traceback" not in command.stderr
    assert "restarting" not in command.stderr


async def test_a_process_that_cannot_start_stops_the_others(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = list[str]()
    (here / "only").touch()
    monkeypatch.chdir(here)
    monkeypatch.setattr(child_process, "STARTS", 2)
    both = Fleet(Orders(app="jobs:app"), 2, said.append)
    assert await both.run() == 1
    assert said[-1] == "worker 2 could not start 2 times in a row; stopping the others"


@pytest.mark.parametrize("args", [("worker", "jobs:app"), ("up", "jobs:app", "--port", "0")])
def test_a_lifespan_that_fails_later_stops_the_command(here: Path, args: tuple[str, ...]) -> None:
    with Command(*args, cwd=here) as command:
        command.wait_for("entered")
        command.wait_for("claiming jobs" if args[0] == "worker" else "a worker with")
        (here / "breaks").touch()
        if args[0] == "worker":
            command.wait_for("while it was in use")
            (here / "breaks").unlink()
            command.wait_for("restarting it")
            command.wait_for("entered")
            command.process.terminate()
            assert command.ended() == 0
        else:
            assert command.ended() == 1
            assert "while it was in use" in command.stderr
