"""Undos, and steps in a `finally`, whose process is killed by SIGKILL at each line of its ledger, run to their end."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.ledger import killed_and_run_again, kills
from tests.fixtures import LASTING
from treadle_testkit.shows import shows

TRIP = """
from treadle.policy.cleanups import cleanup_id
kind, how = options


def do(what):
    effect(what)
    if what == "book hotel":
        raise RuntimeError("no room")


async def trip():
    here = current()
    for what in ("flight", "car"):
        here.on_undo(do, f"cancel {what}")
        await here.step(f"book:{what}", do, f"book {what}")
    if how == "expired":
        await here.sleep(60)
    await here.step("book:hotel", do, "book hotel")


def trip_in_thread():
    here = current()
    for what in ("flight", "car"):
        here.on_undo(do, f"cancel {what}")
        here.sync.step(f"book:{what}", do, f"book {what}")
    if how == "expired":
        here.sync.sleep(60)
    here.sync.step("book:hotel", do, "book hotel")


task = app.task(name="trip", retry=Retry(attempts=1), max_lost=0)(trip if kind == "async" else trip_in_thread)


async def main():
    async with Worker(app, lease=1, poll=0.05):
        job = await task.options(id="j", **({"expires": 3} if how == "expired" else {})).enqueue()
        try:
            await job.result(timeout=60)
        except JobNotDone as error:
            print(type(error).__name__)
        await (await app.jobs.handle(cleanup_id("j", 0))).result(timeout=60)


asyncio.run(main())
"""
BOOKED, UNDONE = ["book flight", "book car"], ["cancel car", "cancel flight"]
TRIPS = {"failed": [*BOOKED, "book hotel", *UNDONE], "expired": [*BOOKED, *UNDONE]}

RESERVED = """
from treadle.policy.cleanups import cleanup_id
kind, how = options


def held():
    effect("hold")
    current().wait(60)


async def hold():
    effect("hold")
    await asyncio.Event().wait()


async def reserve():
    here = current()
    await here.step("reserve", effect, "reserve")
    try:
        if how == "in a step":
            await here.step("hold", hold)
        await here.sleep(60)
    finally:
        await here.step("release", effect, "release")
        await here.step("tell", effect, "tell")


def reserve_in_thread():
    here = current().sync
    here.step("reserve", effect, "reserve")
    try:
        if how == "in a step":
            here.step("hold", held)
        here.sleep(60)
    finally:
        here.step("release", effect, "release")
        here.step("tell", effect, "tell")


task = app.task(name="reserve", retry=Retry(attempts=1), max_lost=0)(reserve if kind == "async" else reserve_in_thread)


async def is_there(job):
    row = await app.jobs.get(job)
    if how == "in a step":
        return row.state.final or (row.state == "running" and open(ledger).read().endswith("hold\\n"))
    return row.state.final or (row.reason or "").startswith("asleep")


async def main():
    async with Worker(app, lease=1, poll=0.05):
        job = await task.options(id="j", **({"expires": 3} if how == "expired" else {})).enqueue()
        if how != "expired":
            while not await is_there(job):
                await asyncio.sleep(0.02)
            await app.jobs.cancel(job)
            await app.jobs.cancel(job)
        try:
            await job.result(timeout=60)
        except JobNotDone as error:
            print(type(error).__name__)
        await (await app.jobs.handle(cleanup_id("j", 0))).result(timeout=60)


asyncio.run(main())
"""
RELEASED = ["reserve", "release", "tell"]
RESERVATIONS = {"asleep": RELEASED, "expired": RELEASED, "in a step": ["reserve", "hold", "release", "tell"]}
ENDINGS = {"failed": "JobFailed", "expired": "JobExpired", "asleep": "JobCancelled", "in a step": "JobCancelled"}


def once_each(effects: list[str], lines: list[str], line: int) -> None:
    """Each effect has happened once, in this order, but the one that was killed may have happened twice."""
    killed = lines[line - 1]
    repeated = [effect for n, effect in enumerate(effects) if effect == killed and effect in effects[:n]]
    assert len(repeated) <= 1
    if repeated:
        effects = [effect for n, effect in enumerate(effects) if not (effect == killed and effect in effects[:n])]
    assert effects == lines


@pytest.mark.slow
@shows("undos that are killed at any line run to their end, in reverse")
@kills
@pytest.mark.parametrize("kind", ["async", "thread"])
@pytest.mark.parametrize("storage", LASTING)
@pytest.mark.parametrize(("how", "line"), [(how, n + 1) for how, lines in TRIPS.items() for n in range(len(lines))])
async def test_killed_undos_run_to_their_end(tmp_path: Path, storage: str, how: str, line: int, kind: str) -> None:
    ended = await killed_and_run_again(tmp_path, storage, TRIP, line, (kind, how))
    assert ended.printed == ENDINGS[how]
    if how == "expired" and line <= len(BOOKED) and len(ended.effects) < len(TRIPS[how]) + 1:
        # The deadline passed before the next worker took the job: what was booked is undone, in reverse.
        booked = ended.effects[: ended.effects.index("cancel flight" if line == 1 else "cancel car")]
        assert set(ended.effects[len(booked) :]) >= {effect.replace("book", "cancel") for effect in booked}
    else:
        once_each(ended.effects, TRIPS[how], line)


@pytest.mark.slow
@shows("a cleanup that is killed at any line runs to its end, after a cancellation and at the deadline")
@kills
@pytest.mark.parametrize("kind", ["async", "thread"])
@pytest.mark.parametrize("storage", LASTING)
@pytest.mark.parametrize(
    ("how", "line"),
    # Killed in its first step before its deadline, the job has taken no step: see the guide for what that needs.
    [(how, n + 1) for how, lines in RESERVATIONS.items() for n in range(len(lines)) if how != "expired" or n],
)
async def test_a_killed_cleanup_runs_to_its_end(tmp_path: Path, storage: str, how: str, line: int, kind: str) -> None:
    ended = await killed_and_run_again(tmp_path, storage, RESERVED, line, (kind, how))
    assert ended.printed == ENDINGS[how]
    once_each(ended.effects, RESERVATIONS[how], line)
