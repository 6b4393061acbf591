"""Middleware that knows its app and process: `added`, `enabled`, `close_process`; and texts for later runs: `memo`."""

from __future__ import annotations

import gc
import weakref
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.execution import closing_calls
from tests.kit import work
from treadle import App, BadOption, Middleware, Retry, Worker, current
from treadle.execution import every_app
from treadle.execution.context import Context
from treadle.execution.middleware import Run, Send, Specs, overrides
from treadle.testing import drain
from treadle_testkit.shows import shows


@pytest.fixture
async def app() -> AsyncIterator[App]:
    async with App("memory://", retry=Retry(attempts=3, base=0, jitter=0)) as app:
        yield app


class Counts(Middleware):
    """Counts the calls of its methods while it is on."""

    def __init__(self) -> None:
        self.on, self.seen = False, list[str]()

    @property
    def enabled(self) -> bool:
        return self.on

    async def enqueue(self, specs: Specs, proceed: Send) -> Any:
        self.seen.append("enqueue")
        return await proceed(specs)

    async def run(self, context: Context, proceed: Run) -> Any:
        self.seen.append("run")
        return await proceed()


@shows("A middleware that is not enabled is no layer of a worker; the lifespan of the app may still enable it")
async def test_a_layer_that_is_not_enabled_is_absent() -> None:
    app, layer = App("memory://"), Counts()
    app.middleware(layer)
    wanted = False

    @app.lifespan
    async def life() -> AsyncIterator[None]:
        layer.on = wanted
        yield

    @app.task
    async def task() -> None: ...

    async with app:
        for now in (False, True, False):
            wanted = now  # the lifespan reads it when a worker starts
            async with Worker(app):
                await (await task.enqueue()).result(timeout=10)
        assert layer.seen == ["enqueue", "run"]
    assert overrides([layer], "run") == []


async def test_added_is_called_with_the_app_and_may_refuse(app: App) -> None:
    class Once(Middleware):
        app: App | None = None

        def added(self, app: App) -> None:
            if self.app is not None:
                raise BadOption("middleware", "one for each app")
            self.app = app

    layer = Once()
    assert app.middleware(layer) is layer
    assert layer.app is app
    with pytest.raises(BadOption):
        app.middleware(layer)
    assert app._core.layers == [layer]


class Chain(Middleware):
    """Each run sees what the one before stored, and stores its own number."""

    def __init__(self) -> None:
        self.found: list[tuple[str, str | None]] = []

    async def run(self, context: Context, proceed: Run) -> Any:
        self.found.append((context.task, context.memo("last")))
        context.set_memo("last", f"run {len(self.found)}")
        return await proceed()


@shows(
    "A text that middleware stores with `set_memo` reaches the next run of the job, after a failure and after a sleep"
)
async def test_a_memo_reaches_the_next_run(tmp_path: Path) -> None:
    layer = Chain()
    for url in ("memory://", f"sqlite:///{tmp_path}/jobs.db?synchronous=normal"):
        layer.found.clear()
        app = App(url, retry=Retry(attempts=2, base=0, jitter=0))
        app.middleware(layer)

        @app.task(name="fails")
        async def fails() -> None:
            raise ValueError("always")

        @app.task(name="sleeps")
        async def sleeps() -> None:
            await current().sleep(0.05)

        @app.task(name="plain")
        async def plain() -> None: ...

        async with app, work(app):
            failed = await fails.enqueue()
            await failed.ended(10)
            await (await sleeps.enqueue()).ended(10)
            done = await (await plain.enqueue()).ended(10)
        assert layer.found == [
            ("fails", None),
            ("fails", "run 1"),
            ("sleeps", None),
            ("sleeps", "run 3"),
            ("plain", None),
        ]
        assert done.checkpoints == (), "a job that succeeds at once stores nothing more"


async def test_a_memo_is_short(app: App) -> None:
    @app.task
    async def task() -> list[str]:
        found = list[str]()
        for name, text in (("", ""), ("n" * 41, ""), ("name", "t" * 501)):
            try:
                current().set_memo(name, text)
            except BadOption as error:
                found.append(str(error))
        for number in range(8):
            current().set_memo(f"name {number}", "t" * 500)
        with pytest.raises(BadOption, match="at most 8"):
            current().set_memo("more", "")
        return found

    job = await task.enqueue()
    await drain(app)
    assert len(await job.result()) == 3


@pytest.mark.parametrize("wrapped", [False, True])
async def test_the_kind_of_a_run(app: App, wrapped: bool) -> None:
    if wrapped:
        app.middleware(Chain())

    async def one() -> str:
        return current().kind

    def two() -> str:
        return current().kind

    jobs = [await app.task(name=f.__name__)(f).enqueue() for f in (one, two)]
    await drain(app)
    assert [await job.result() for job in jobs] == ["async", "thread"]


@shows("Middleware flushes what it buffers in a process of `kind='process'` before the process ends")
async def test_a_process_lets_middleware_flush(app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLUSHED", str(tmp_path / "flushed"))
    app.middleware(closing_calls.Flushes())
    pid = app.task(kind="process", name=closing_calls.pid.name)(closing_calls.pid.function)
    async with work(app):
        child = await (await pid.enqueue()).result(timeout=30)
    assert (tmp_path / "flushed").read_text() == f"flushed by {child}"


async def test_instrumentation_of_a_program_keeps_no_app_alive() -> None:
    """A program may make an app for each tenant or each test. A layer knows its app."""

    class Knows(Middleware):
        def added(self, app: App) -> None:
            self.app = app

    undo = every_app.add(lambda app: Knows())
    try:
        app: App | None = App("memory://")
        found = weakref.ref(app)
        assert isinstance(app._core.layers[0], Knows)
        app = None
        gc.collect()
        assert found() is None
    finally:
        undo()
