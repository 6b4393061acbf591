"""Ctrl-C in a test of synchronous code ends the test, also while the function of a task runs in its thread."""

from __future__ import annotations

import asyncio
import signal
import sys

import pytest

from treadle import App
from treadle.testing import Simulation, simulate

app = App("memory://")


@app.task
def interrupted() -> None:
    raise KeyboardInterrupt


@app.task
def fails_the_test() -> None:
    pytest.fail("an assertion of the test's own")


@app.task
def exits() -> None:
    sys.exit(3)


@app.task
def quiet() -> int:
    return 1


def test_ctrl_c_in_a_plain_function_ends_the_test(caplog: pytest.LogCaptureFixture) -> None:
    with app.sync.testing() as t:
        interrupted.enqueue_sync()
        with pytest.raises(KeyboardInterrupt):
            t.drain()
    assert "destroyed" not in caplog.text  # the drain has ended before its loop
    with app.sync.testing() as t:
        job = quiet.enqueue_sync()
        assert t.drain() == 1
        assert job.result_sync(timeout=0) == 1


def test_a_failure_of_pytest_in_a_plain_function_fails_the_test() -> None:
    with app.sync.testing() as t:
        fails_the_test.enqueue_sync()
        with pytest.raises(pytest.fail.Exception, match="of the test's own"):
            t.drain()


def test_an_exit_in_a_plain_function_fails_the_attempt_as_in_production() -> None:
    with app.sync.testing() as t:
        job = exits.enqueue_sync()
        assert t.drain() == 1
        assert "SystemExit" in str(t.jobs.get(job).error)


def test_ctrl_c_in_a_plain_function_ends_a_simulation(monkeypatch: pytest.MonkeyPatch) -> None:
    # Under another handler, Ctrl-C raises nothing in the function.
    monkeypatch.setattr(signal, "getsignal", lambda number: signal.default_int_handler)

    async def scenario(sim: Simulation) -> None:
        await interrupted.options(id="a").enqueue()

    with pytest.raises(KeyboardInterrupt):
        simulate(app, scenario, faults=[], seeds=1)


def test_a_simulation_without_a_run_is_reported() -> None:
    async def scenario(sim: Simulation) -> None:
        """It enqueues nothing, like one that forgot an `await`."""

    with pytest.warns(UserWarning, match="no job ran in 2 seeds; does the scenario await its calls?"):
        simulate(app, scenario, seeds=2)


async def test_in_a_thread_it_fails_the_attempt() -> None:
    async with app.testing() as t:
        job = await interrupted.enqueue()
        assert await asyncio.wait_for(t.drain(), 10) == 1
        assert "KeyboardInterrupt was raised in a thread" in str((await t.jobs.get(job)).error)
