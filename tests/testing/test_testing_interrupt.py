"""Ctrl-C in a test of synchronous code ends the test, also while the function of a task runs in its thread."""

from __future__ import annotations

import asyncio

import pytest

from treadle import App

app = App("memory://")


@app.task
def interrupted() -> None:
    raise KeyboardInterrupt


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


async def test_in_a_thread_it_fails_the_attempt() -> None:
    async with app.testing() as t:
        job = await interrupted.enqueue()
        assert await asyncio.wait_for(t.drain(), 10) == 1
        assert "KeyboardInterrupt was raised in a thread" in str((await t.jobs.get(job)).error)
