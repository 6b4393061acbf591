"""Plain functions that sleep, wait and are undone run in a test of synchronous code as in a worker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from treadle import Abort, App, Retry, current

app = App("memory://")
done: list[str] = []


@app.task
def double(number: int) -> int:
    return number * 2


@app.task
def parcel(order: int) -> str:
    here = current().sync
    here.step("charge", done.append, f"charged {order}")
    here.sleep(60)
    try:
        with here.timeout(600):
            answer = here.wait_for("approved", returns=str)
    except TimeoutError:
        answer = "nobody"
    return f"{answer} {here.call(double.job(order))}"


@app.task(retry=Retry(attempts=1))
def refused() -> None:
    current().on_undo(done.append, "undone")
    current().sync.step("book", done.append, "booked")
    current().sync.sleep(60)
    raise Abort("no")


@pytest.fixture(params=["memory", "sqlite"])
def given(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    done.clear()
    return {} if request.param == "memory" else {"storage": f"sqlite:///{tmp_path / 'jobs.db'}"}


def test_a_plain_function_sleeps_waits_and_calls(given: dict[str, Any]) -> None:
    with app.sync.testing(**given) as t:
        job = parcel.enqueue_sync(7)
        assert t.drain() == 1
        assert t.advance(60) == 1
        assert t.jobs.get(job).state == "waiting"
        t.jobs.signal(job, "approved", "ada")
        t.drain()
        assert (job.result_sync(timeout=0), done) == ("ada 14", ["charged 7"])


def test_its_waits_are_skipped_to_the_end_of_their_limits(given: dict[str, Any]) -> None:
    with app.sync.testing(**given) as t:
        job = parcel.enqueue_sync(7)
        t.finish()
        assert job.result_sync(timeout=0) == "nobody 14"


def test_its_undos_run(given: dict[str, Any]) -> None:
    with app.sync.testing(**given) as t:
        job = refused.enqueue_sync()
        t.finish()
        assert (t.jobs.get(job).state, done) == ("failed", ["booked", "undone"])
