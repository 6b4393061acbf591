"""The saga of every tutorial, whose process is killed by SIGKILL at each line of its ledger, ends as one run would."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.fixtures import LASTING, a_url
from treadle_testkit.shows import shows

PROGRAM = '''
import asyncio, os, signal, sys
from treadle import Abort, App, JobFailed, Retry, Worker, current

url, ledger, kill_at, rooms, kind = sys.argv[1:6]
app = App(url)


def effect(text):
    """One line on disk. The process dies behind the one with this number."""
    with open(ledger, "a") as out:
        out.write(text + "\\n")
        out.flush()
        os.fsync(out.fileno())
    with open(ledger) as lines:
        if len(lines.readlines()) == int(kill_at):
            os.kill(os.getpid(), signal.SIGKILL)


def book(what):
    if what == "hotel" and rooms == "full":
        effect("no room")
        raise RuntimeError("no room")
    effect(f"book {what}")


def cancel(what):
    effect(f"cancel {what}")


async def trip():
    here, booked = current(), []
    try:
        for what in ("flight", "car", "hotel"):
            await here.step(f"book:{what}", book, what)
            booked.append(what)
    except Exception as error:
        for what in booked:
            await here.step(f"cancel:{what}", cancel, what)
        raise Abort(f"no trip: {error}") from error
    return "booked"


def trip_in_thread():
    here, booked = current().sync, []
    try:
        for what in ("flight", "car", "hotel"):
            here.step(f"book:{what}", book, what)
            booked.append(what)
    except Exception as error:
        for what in booked:
            here.step(f"cancel:{what}", cancel, what)
        raise Abort(f"no trip: {error}") from error
    return "booked"


task = app.task(name="trip", retry=Retry(attempts=3, base=0), max_lost=0)(trip if kind == "async" else trip_in_thread)


async def main():
    async with Worker(app, lease=1, poll=0.05):
        job = await task.options(id="the-trip").enqueue()
        try:
            print(await job.result(timeout=60))
        except JobFailed as error:
            print("failed")


asyncio.run(main())
'''
LINES = ["book flight", "book car", "no room", "cancel flight", "cancel car"]


async def run(program: Path, url: str, ledger: Path, kill_at: int, rooms: str, kind: str) -> tuple[int, str]:
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        *(str(program), url, str(ledger), str(kill_at), rooms, kind),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    out, _ = await child.communicate()
    return child.returncode or 0, out.decode().strip()


@pytest.mark.slow
@shows("a saga that is killed at any line is booked as a whole or undone as a whole")
@pytest.mark.skipif(sys.platform == "win32", reason="kills its worker by SIGKILL")
@pytest.mark.parametrize("kind", ["async", "thread"])
@pytest.mark.parametrize("storage", LASTING)
@pytest.mark.parametrize("line", range(1, len(LINES) + 1))
async def test_a_killed_saga_is_done_or_undone_as_a_whole(tmp_path: Path, storage: str, line: int, kind: str) -> None:
    """Meanwhile a room has become free, so a run that called the failed step again would book it."""
    program, ledger = tmp_path / "trip.py", tmp_path / "ledger"
    program.write_text(PROGRAM)
    with a_url(storage, tmp_path) as url:
        async with asyncio.timeout(100):
            assert (await run(program, url, ledger, line, "full", kind))[0] == -signal.SIGKILL
            code, end = await run(program, url, ledger, 0, "free", kind)
    effects = ledger.read_text().splitlines()
    last = {what: deed for deed, _, what in (effect.partition(" ") for effect in effects) if deed != "no"}
    assert code == 0
    if line <= LINES.index("no room") + 1:
        assert (end, last) == ("booked", dict.fromkeys(("flight", "car", "hotel"), "book"))
    else:
        assert (end, last) == ("failed", dict.fromkeys(("flight", "car"), "cancel"))
    assert len(effects) <= len(LINES) + 1  # the step that was killed has run twice
