"""The saga of every tutorial, whose process is killed by SIGKILL at each line of its ledger, ends as one run would."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.ledger import killed_and_run_again, kills
from tests.fixtures import LASTING
from treadle_testkit.shows import shows

PROGRAM = """
rooms, kind = options


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
asyncio.run(ends(task.options(id="the-trip").job()))
"""
LINES = ["book flight", "book car", "no room", "cancel flight", "cancel car"]


@pytest.mark.slow
@shows("a saga that is killed at any line is booked as a whole or undone as a whole")
@kills
@pytest.mark.parametrize("kind", ["async", "thread"])
@pytest.mark.parametrize("storage", LASTING)
@pytest.mark.parametrize("line", range(1, len(LINES) + 1))
async def test_a_killed_saga_is_done_or_undone_as_a_whole(tmp_path: Path, storage: str, line: int, kind: str) -> None:
    """Meanwhile a room has become free, so a run that called the failed step again would book it."""
    ended = await killed_and_run_again(tmp_path, storage, PROGRAM, line, ("full", kind), then=("free", kind))
    last = {what: deed for deed, _, what in (effect.partition(" ") for effect in ended.effects) if deed != "no"}
    if line <= LINES.index("no room") + 1:
        assert (ended.printed, last) == ("booked", dict.fromkeys(("flight", "car", "hotel"), "book"))
    else:
        assert (ended.printed, last) == ("JobFailed", dict.fromkeys(("flight", "car"), "cancel"))
    assert len(ended.effects) <= len(LINES) + 1  # the step that was killed has run twice
