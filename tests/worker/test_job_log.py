"""The log of a worker inside an app: one record for each failure and retry, with the exception and the job."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from treadle import Abort, App, Defer, JobFilter, RemoteFailure, Retry, Worker

LOG = "treadle.jobs"


class Kept(logging.Handler):
    """Keeps the records of `treadle.jobs`, and what a standard formatter prints of each."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self.texts: list[str] = []
        self.addFilter(JobFilter())

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)
        self.texts.append(self.format(record))


@pytest.fixture
def kept() -> Iterator[Kept]:
    handler, log = Kept(), logging.getLogger(LOG)
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    yield handler
    log.removeHandler(handler)
    log.setLevel(logging.NOTSET)


def in_process() -> None:
    raise ValueError("no such order")


def app_of(kind: str) -> tuple[App, Any]:
    app, retry = App("memory:"), Retry(attempts=2, base=0.001)
    if kind == "process":
        return app, app.task(name="bad", kind="process", retry=retry)(in_process)
    if kind == "async":

        @app.task(name="bad", retry=retry)
        async def bad() -> None:
            raise ValueError("no such order")

        return app, bad
    if kind == "batch":

        @app.batch(name="bad", size=2, max_wait=0.01, retry=retry)
        async def together(items: list[int]) -> list[None]:
            raise ValueError("no such order")

        return app, together

    @app.task(name="bad", retry=retry)
    def plain() -> None:
        raise ValueError("no such order")

    return app, plain


@pytest.mark.parametrize("kind", ["async", "thread", "process", "batch"])
async def test_a_retry_and_a_failure_are_logged_with_what_was_raised(kept: Kept, kind: str) -> None:
    app, bad = app_of(kind)
    async with app, Worker(app, poll=0.01):
        job = await (bad.enqueue(1) if kind == "batch" else bad.enqueue())
        await job.ended(30)
    assert [(each.levelname, each.__dict__["attempt"]) for each in kept.records] == [("WARNING", 1), ("ERROR", 2)]
    assert [each.msg for each in kept.records] == ["%s retrying: %s; again %s", "%s failed: %s"]
    for record, text in zip(kept.records, kept.texts, strict=True):
        fields = record.__dict__
        assert (record.name, fields["job"], fields["task"]) == (LOG, job.id, "bad")
        assert "bad" in text.splitlines()[0]
        assert "ValueError: no such order" in text.splitlines()[0]
        assert text.count("Traceback (most recent call last):") == 1
        assert 'raise ValueError("no such order")' in text
        assert record.exc_info is not None
        assert record.exc_info[0] is (RemoteFailure if kind == "process" else ValueError)
        assert "treadle/worker" not in text
        assert "treadle/runner" not in text


async def test_a_level_that_is_off_logs_nothing(kept: Kept) -> None:
    logging.getLogger(LOG).setLevel(logging.ERROR)
    app, bad = app_of("async")
    async with app, Worker(app, poll=0.01):
        await (await bad.enqueue()).ended(30)
    assert [each.levelname for each in kept.records] == ["ERROR"]


async def test_two_workers_log_starts_and_successes_once_at_debug(kept: Kept) -> None:
    logging.getLogger(LOG).setLevel(logging.DEBUG)
    app = App("memory:")

    @app.task(name="good")
    async def good() -> None: ...

    async with app, Worker(app), Worker(app):
        await (await good.enqueue()).result(30)
    assert [each.msg for each in kept.records if each.__dict__["task"] == "good"] == ["%s started", "%s succeeded"]


async def test_two_workers_with_listeners_log_a_failure_once(kept: Kept) -> None:
    app, bad = app_of("async")
    heard = asyncio.Event()
    app.on("failed")(lambda event: heard.set())
    async with app, Worker(app), Worker(app):
        await (await bad.enqueue()).ended(30)
        await asyncio.wait_for(heard.wait(), 30)  # the listener may be called after the job has ended
    assert [each.levelname for each in kept.records] == ["WARNING", "ERROR"]


async def test_deferring_and_aborting_show_no_traceback(kept: Kept) -> None:
    app = App("memory:")

    @app.task(name="later", retry=Retry(attempts=1))
    async def later() -> None:
        if not kept.records:
            raise Defer(0.001)
        raise Abort("no such customer\x1b[31m")

    async with app, Worker(app, poll=0.01):
        await (await later.enqueue()).ended(30)
    assert [each.levelname for each in kept.records] == ["INFO", "ERROR"]
    assert kept.texts[1] == "later failed: no such customer\\x1b[31m"
    assert not any("Traceback" in text for text in kept.texts)


async def test_a_deadline_that_passes_is_an_error(kept: Kept) -> None:
    app = App("memory:")

    @app.task(name="slow")
    async def slow() -> None:
        await asyncio.Event().wait()

    async with app, Worker(app):
        await (await slow.options(deadline=datetime.now(UTC) + timedelta(seconds=0.1)).enqueue()).ended(30)
    assert [(each.levelname, each.msg) for each in kept.records] == [("ERROR", "%s expired: %s")]


async def test_dict_config_with_its_defaults_does_not_silence_a_worker(kept: Kept) -> None:
    """It disables every logger that exists and that it does not name, and those of Treadle exist before the app."""
    app = App("memory://", retry=Retry(attempts=1))

    @app.task
    async def charge() -> None:
        raise ValueError("card refused")

    for name in ("treadle", LOG):
        logging.getLogger(name).disabled = True
    async with Worker(app, poll=0.05):
        job = await charge.enqueue()
        with pytest.raises(Exception, match="card refused"):
            await job.result(timeout=20)
    assert any("card refused" in text for text in kept.texts)
