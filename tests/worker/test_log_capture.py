"""`capture_logs`: the log lines of a run are kept with its job, wherever it runs, and only its own."""

from __future__ import annotations

import asyncio
import logging

import pytest

from tests.kit import work
from tests.worker.process_tasks import app as process_app
from tests.worker.process_tasks import logged
from treadle import App, BadOption, Retry, Worker
from treadle.policy import run_log
from treadle_testkit.shows import shows

log = logging.getLogger("shop")


@pytest.fixture(autouse=True)
def levels() -> None:
    log.setLevel(logging.DEBUG)


async def lines(app: App, job: object) -> list[list[tuple[str, str]]]:
    history = await app.jobs.history(job)  # type: ignore[arg-type]
    return [[(line.level, line.text) for line in attempt.logs] for attempt in history.attempts]


@shows("with `capture_logs` a job keeps the log lines of its last three attempts")
async def test_lines_of_coroutines_and_threads_are_kept_by_attempt(app: App) -> None:
    @app.task(name="f", retry=Retry(attempts=2, base=0.0))
    async def f(n: int) -> None:
        log.info("begins %s", n)
        await asyncio.to_thread(log.warning, "in a thread %s", n)
        log.debug("too low")
        try:
            raise ValueError("no")
        except ValueError:
            log.exception("failed %s", n)
            raise

    @app.task(name="g")
    def g() -> None:
        log.error("plain function")

    jobs = await app.enqueue([f.job(1), f.job(2), g.job()])
    async with work(app, capture_logs="info"):
        for job in jobs:
            await job.ended(timeout=10)
    log.error("outside")
    for n, job in enumerate(jobs[:2], 1):
        for found in await lines(app, job):
            assert found[:2] == [("info", f"begins {n}"), ("warning", f"in a thread {n}")]
            assert found[2][0] == "error"
            assert found[2][1].startswith(f"failed {n}\nTraceback")
            assert len(found) == 3
    assert await lines(app, jobs[2]) == [[("error", "plain function")]]


async def test_without_capture_logs_no_line_is_kept(app: App) -> None:
    @app.task(name="f")
    async def f() -> None:
        log.error("lost")

    handlers = list(logging.getLogger().handlers)
    job = await f.enqueue()
    async with work(app):
        await job.ended(timeout=10)
        assert logging.getLogger().handlers == handlers
    assert (await app.jobs.get(job)).checkpoints == ()
    async with work(app, capture_logs=logging.INFO):
        assert logging.getLogger().handlers != handlers
    assert logging.getLogger().handlers == handlers


async def test_the_last_16_kib_are_kept(app: App) -> None:
    @app.task(name="f")
    async def f() -> None:
        for n in range(1_000):
            log.info("%04d %s", n, "x" * 95)
        log.info("y" * 100_000)

    job = await f.enqueue()
    async with work(app, capture_logs="info"):
        await job.ended(timeout=10)
    [found] = await lines(app, job)
    assert sum(len(text) for _, text in found) <= run_log.MOST
    assert len(found) > 100
    assert found[-2][1].startswith("0999")
    assert found[-1][1] == "y" * (run_log.LINE - 3) + "..."


async def test_lines_of_a_process_are_kept() -> None:
    async with process_app:
        job = await logged.enqueue()
        async with work(process_app, capture_logs="info"):
            await job.ended(timeout=60)
        assert await lines(process_app, job) == [[("info", "in a process")]]


@pytest.mark.parametrize("wrong", ["loud", 0, 99, True, 3.5])
def test_an_invalid_level_is_refused(wrong: object) -> None:
    with pytest.raises(BadOption, match="capture_logs"):
        Worker(App("memory://"), capture_logs=wrong)  # type: ignore[arg-type]
