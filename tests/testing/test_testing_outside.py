"""Outside of its block a test has no storage of its own: it refuses, and runs no job of the app's real storage."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from treadle import App, BadOption, UnknownTask, Worker
from treadle.testing import HandClock

INSIDE = r"only inside the block: `async with app.testing\(\) as t:`, or `with app.sync.testing\(\) as t:`"
ran: list[int] = []


@pytest.fixture
def app(tmp_path: Path) -> App:
    app = App(f"sqlite:///{tmp_path / 'real.db'}")

    @app.task(name="work")
    async def work(n: int) -> None:
        ran.append(n)

    ran.clear()
    return app


async def test_nothing_runs_before_the_block_and_after_it(app: App) -> None:
    work: Any = app.find_task("work")
    async with app:
        await work.enqueue(1)  # on the real storage
        t = app.testing()
        for call in (t.drain, t.finish, lambda: t.advance(1)):
            with pytest.raises(BadOption, match=INSIDE):
                await call()
        for look in (t.assert_enqueued, t.assert_not_enqueued, t.enqueued):
            with pytest.raises(BadOption, match=INSIDE):
                look(work)
    async with t:
        await work.enqueue(2)
        await t.drain()
    with pytest.raises(BadOption, match=INSIDE):
        await t.drain()
    t.assert_enqueued(work, 2)  # in memory, the jobs of the test can still be read
    with pytest.raises(BadOption, match="a test can be entered once"):
        await t.__aenter__()
    assert ran == [2]


async def test_an_assertion_after_the_block_raises(app: App, tmp_path: Path) -> None:
    work: Any = app.find_task("work")
    async with app.testing(storage=f"sqlite:///{tmp_path / 'given.db'}") as t:
        await work.enqueue(1)
    with pytest.raises(BadOption, match=INSIDE):
        t.assert_not_enqueued(work)


def test_synchronous_tests_run_nothing_outside_the_block(app: App) -> None:
    work: Any = app.find_task("work")
    t = app.sync.testing()

    def all_refused() -> None:
        for call in (t.drain, t.finish, lambda: t.advance(1), lambda: t.call(app.jobs.list())):
            with pytest.raises(BadOption, match=INSIDE):
                call()

    all_refused()
    with t:
        work.enqueue_sync(1)
    all_refused()
    t.assert_enqueued(work, 1)
    assert not ran


def test_a_storage_in_the_place_of_the_clock_is_refused() -> None:
    """Otherwise the test would run in memory, while it seems to run on this storage."""
    app = App("memory://")
    for make in (app.testing, app.sync.testing):
        with pytest.raises(BadOption, match=r"expected a .*HandClock, found 'sqlite:///t.db'; .*testing\(storage="):
            make("sqlite:///t.db")  # type: ignore[arg-type]


def test_the_clock_takes_what_advance_takes() -> None:
    clock = HandClock(100.0)
    assert clock.advance(timedelta(minutes=1)) == 160.0
    assert clock.advance(-60) == 100.0
    for wrong in ("60", None, float("nan"), float("inf")):
        with pytest.raises(BadOption, match="expected seconds or a timedelta"):
            clock.advance(wrong)  # type: ignore[arg-type]
    assert clock.moment == 100.0


async def test_a_mistyped_name_is_no_task_without_jobs(app: App) -> None:
    async with app.testing() as t:
        with pytest.raises(UnknownTask, match="work"):
            t.enqueued("wrok")
        assert t.enqueued("work") == []
        elsewhere: Any = app.stub("of.another.program")
        assert t.enqueued(elsewhere) == []
        t.assert_not_enqueued(elsewhere)
        with pytest.raises(AssertionError, match="no jobs"):
            t.assert_enqueued(elsewhere)
        await app.stub("of.another.program").enqueue()
        assert len(t.enqueued("of.another.program")) == 1


@pytest.mark.parametrize("single", ["name", "task"])
async def test_a_single_task_is_no_list(app: App, single: str) -> None:
    tasks: Any = "work" if single == "name" else app.find_task("work")
    async with app.testing() as t:
        with pytest.raises(BadOption, match="expected a list of tasks or names"):
            await t.drain(tasks=tasks)
    with pytest.raises(BadOption, match="expected a list of tasks or names"):
        Worker(app, tasks=tasks)


async def test_the_storage_of_another_test_was_not_emptied(app: App, caplog: pytest.LogCaptureFixture) -> None:
    """Each test has a storage of its own."""
    async with app.testing() as t:
        await t.drain()
    async with app.testing() as t:
        await t.drain()
    assert "emptied" not in caplog.text
