"""Span trees over every way in which a job reaches its function: threads, processes, transactions, outbox, HTTP."""

from __future__ import annotations

import asyncio
import sqlite3
import time
import uuid
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import psycopg
import pytest

from tests.integrations.otel import traced_process
from tests.integrations.otel.trees import Recorded
from tests.outbox.kit import a_database, an_app, relayed
from tests.served import host
from tests.server.test_api import Client
from tests.servers import postgres
from treadle import App, Worker
from treadle.integrations.otel import Tracing
from treadle.server import Settings
from treadle.testing import drain
from treadle_testkit.shows import shows


@pytest.fixture
def recorded() -> Recorded:
    return Recorded()


def mailing(app: App, recorded: Recorded) -> Any:
    """A task whose function has a span of its own, in a thread."""

    @app.task(name="mail")
    def mail(to: str) -> None:
        with recorded.tracer.start_as_current_span("smtp"):
            pass

    return mail


ONE_JOB = """
    view
      enqueue default
        run mail
          smtp
"""


@shows("OpenTelemetry: `app.sync`, a function in a thread, and inline jobs keep the active span")
async def test_synchronous_code(recorded: Recorded) -> None:
    app = recorded.on(App("memory://"))
    mail = mailing(app, recorded)

    def view() -> None:
        with recorded.tracer.start_as_current_span("view"):
            mail.enqueue_sync("ada")

    async with app:
        await asyncio.to_thread(view)
        await drain(app)
        recorded.check(ONE_JOB)
        with recorded.tracer.start_as_current_span("view"):
            job = await mail.options(inline=True).enqueue("ada")
        await job.ended(10)
        recorded.check(ONE_JOB)


@shows("OpenTelemetry: jobs of `within=` belong to the trace of the code that holds the transaction")
async def test_within_a_transaction(recorded: Recorded, tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    app = recorded.on(App(f"sqlite:///{path}?shared=true&synchronous=normal"))
    mail = mailing(app, recorded)
    async with app:
        with closing(sqlite3.connect(path)) as db:
            with recorded.tracer.start_as_current_span("view"):
                await app.enqueue(mail.job("ada"), within=db)
            db.commit()
        await drain(app)
        recorded.check(ONE_JOB)


def test_within_a_synchronous_transaction(recorded: Recorded) -> None:
    """On PostgreSQL, without an event loop of the program."""
    url = postgres.database()
    app = recorded.on(App(url))
    mail = mailing(app, recorded)
    app.sync.call(app.jobs.list())  # makes the tables
    with psycopg.connect(url) as db:
        with recorded.tracer.start_as_current_span("view"):
            mail.options(within=db).enqueue_sync("ada")
        db.commit()
    app.sync.call(drain(app))
    app.sync.close()
    recorded.check(ONE_JOB)


@shows("OpenTelemetry: the trace of a job passes through the outbox and its relay")
async def test_the_outbox(recorded: Recorded, tmp_path: Path) -> None:
    data = a_database("sqlite", tmp_path)
    app = an_app(data, f"otel{uuid.uuid4().hex}")
    recorded.on(app)
    assert app.outbox is not None
    await app.outbox.create()
    async with app:
        with closing(data.connect()) as db:
            with recorded.tracer.start_as_current_span("view"):
                await app.enqueue(app.find_task("mail").job("ada"), within=db)
            db.commit()
        assert await relayed(app) == 1
        await drain(app)
    recorded.check("""
        view
          enqueue default
            run mail
    """)


@shows("OpenTelemetry: a function of `kind='process'` runs within the span of its run, and its process flushes spans")
async def test_a_function_in_a_process(recorded: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPANS", str(tmp_path / "spans"))
    app = recorded.on(App("memory://"))
    resize = app.task(kind="process", name=traced_process.resize.name)(traced_process.resize.function)
    async with app, Worker(app, grace=20):
        trace_id, span_id, pid = await (await resize.enqueue()).result(timeout=30)
    run = recorded.named(f"run {resize.name}").context
    assert run is not None
    assert (trace_id, span_id) == (f"{run.trace_id:032x}", f"{run.span_id:016x}")
    lines = (tmp_path / "spans").read_text().splitlines()
    assert lines == [f"in the child {trace_id} {span_id} {pid}"], "and no second span of the run"


@pytest.fixture
def site() -> tuple[App, str]:
    app = App("memory://")
    return app, host().add(app, Settings(max_wait=5))


@shows("OpenTelemetry: a worker over HTTP records its runs; the server adds no span of them")
async def test_a_worker_over_http(recorded: Recorded, site: tuple[App, str]) -> None:
    server, url = site
    recorded.on(server)
    app = recorded.on(App(url))
    mail = mailing(app, recorded)
    async with app:
        with recorded.tracer.start_as_current_span("view"):
            job = await mail.enqueue("ada")
        async with Worker(app):
            await job.ended(10)
    assert (recorded.named("run mail").attributes or {})["server.address"] == "127.0.0.1"
    recorded.check(ONE_JOB)


@pytest.mark.parametrize("runner_spans", [True, False])
@shows("OpenTelemetry: a runner in another language gets `traceparent`, and the server records the run that it reports")
async def test_a_runner_in_another_language(recorded: Recorded, site: tuple[App, str], runner_spans: bool) -> None:
    app, url = site
    recorded.on(app, runner_spans=runner_spans)
    queue = uuid.uuid4().hex
    traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with aiohttp.ClientSession() as session:
        call = Client(url, session)
        # The client of another language sends its own span, and gets no job without one.
        given = {"task": "parent", "queue": queue, "headers": {"traceparent": traceparent, "mine": "kept"}}
        _, job = await call("POST", "/v1/jobs", given)
        ask = {"worker": f"r#{uuid.uuid4().hex}", "queues": [[queue, 1]], "max_lost": 3, "limit": 1}
        _, claimed = await call("POST", "/v1/work/claim", ask)
        [row] = claimed["records"]
        headers = dict(row["job"]["headers"])
        sent = next(span for span in recorded.spans if span.name.startswith("enqueue"))
        assert sent.parent is not None
        assert sent.context is not None
        assert f"{sent.parent.span_id:016x}" == "b7ad6b7169203331"
        assert headers == {
            "traceparent": f"00-0af7651916cd43dd8448eb211c80319c-{sent.context.span_id:016x}-01",
            "mine": "kept",
        }
        said = {"id": job["id"], "version": row["version"], "fail": "KeyError: 'x'\n  at main.go:3"}
        await call("POST", "/v1/work/settle", {"outcomes": [said]})
    run = """
        enqueue QUEUE
          run parent [retrying] > KeyError
    """
    tree = run if runner_spans else "enqueue QUEUE"
    recorded.check(tree.replace("QUEUE", queue), "treadle.outcome")


async def test_the_children_that_such_a_runner_reports(
    recorded: Recorded, site: tuple[App, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They begin after the run, also if the server takes a while to record it."""
    app, url = site
    recorded.on(app)
    monkeypatch.setattr("treadle.integrations.otel.tracing.clock", SimpleNamespace(wall=lambda: time.time() + 0.5))
    queue = uuid.uuid4().hex
    async with aiohttp.ClientSession() as session:
        call = Client(url, session)
        _, job = await call("POST", "/v1/jobs", {"task": "parent", "queue": queue})
        ask = {"worker": f"r#{uuid.uuid4().hex}", "queues": [[queue, 1]], "max_lost": 3, "limit": 1}
        _, claimed = await call("POST", "/v1/work/claim", ask)
        children = [{"id": "", "task": "child", "queue": queue}]
        said = {"id": job["id"], "version": claimed["records"][0]["version"], "followups": children}
        await call("POST", "/v1/work/settle", {"outcomes": [said]})
    recorded.check(f"""
        enqueue {queue}
          run parent
          enqueue {queue}
    """)


async def test_two_apps_in_one_process(recorded: Recorded) -> None:
    """A task of one app enqueues a job of the other."""
    first, second = (recorded.on(App("memory://")) for _ in range(2))

    @second.task(name="second")
    async def in_second() -> None: ...

    @first.task(name="first")
    async def in_first() -> None:
        await in_second.enqueue()

    async with first, second:
        await in_first.enqueue()
        await drain(first)
        await drain(second)
    recorded.check("""
        enqueue default
          run first
            enqueue default
              run second
    """)


def test_one_tracing_belongs_to_one_app(recorded: Recorded) -> None:
    tracing = Tracing(tracer_provider=recorded.provider)
    App("memory://").middleware(tracing)
    with pytest.raises(ValueError, match="one for each app"):
        App("memory://").middleware(tracing)
