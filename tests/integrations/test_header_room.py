"""Headers of Sentry and OpenTelemetry: they are left out where a job has no room for them, so that no call fails."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sentry_sdk
from opentelemetry.sdk.trace import TracerProvider
from sentry_sdk.transport import Transport

from tests.kit import work
from treadle import App, chain, current, flow
from treadle.core.defaults import MAX_HEADERS
from treadle.core.model import NewJob
from treadle.core.ranges import MOST_HEADERS
from treadle.integrations.otel import Tracing
from treadle.integrations.sentry import TreadleIntegration
from treadle.testing import drain
from treadle_testkit.shows import shows

OURS = {"sentry-trace", "traceparent", "baggage"}
NAMES = {"Sentry": "sentry-trace", "OpenTelemetry": "traceparent"}


class Nowhere(Transport):
    def capture_envelope(self, envelope: object) -> None: ...


@pytest.fixture(params=["Sentry", "OpenTelemetry"])
def traced(request: pytest.FixtureRequest, app: App) -> Iterator[str]:
    """An integration of the app; it adds a header to each job."""
    if request.param == "OpenTelemetry":
        app.middleware(Tracing(tracer_provider=TracerProvider()))
        yield request.param
        return
    sentry_sdk.init(
        dsn="https://key@sentry.invalid/1",
        transport=Nowhere,
        default_integrations=False,
        auto_enabling_integrations=False,
        integrations=[TreadleIntegration()],
        traces_sample_rate=1.0,
    )
    yield request.param
    sentry_sdk.get_client().close(timeout=0)
    sentry_sdk.get_global_scope().set_client(None)


def size(job: NewJob) -> int:
    return sum(len(name) + len(text) for name, text in job.headers)


def mine(bytes_: int) -> dict[str, str]:
    """One header of so many bytes."""
    return {"mine": "x" * (bytes_ - len("mine"))}


def tasks_of(app: App) -> Any:
    @app.task(name="leaf")
    async def leaf(before: object = None) -> dict[str, str]:
        return dict(current().headers)

    ways: dict[str, Callable[[], Any]] = {
        "spec": leaf.job,
        "flow": lambda: flow(leaf.job(), leaf.job()),
        "chain": lambda: chain(leaf.job(), leaf.job()),
        "flow of chains": lambda: flow(chain(leaf.job(), leaf.job()), flow(leaf.job())),
    }

    @app.task(name="parent")
    async def parent(way: str) -> Any:
        if way == "enqueue":
            await leaf.options(headers=mine(MAX_HEADERS)).enqueue()
            await flow(leaf.options(headers=mine(MAX_HEADERS)).job(), leaf.job()).enqueue()
            return None
        return ways[way]()

    return parent


WAYS = ("spec", "flow", "chain", "flow of chains", "enqueue")


@shows("an integration leaves its headers out of a job that has no room for them, and no job fails because of it")
@pytest.mark.parametrize("room", [1, 50])
async def test_children_of_a_job_with_headers_of_the_largest_size(
    app: App, traced: str, caplog: pytest.LogCaptureFixture, room: int
) -> None:
    """Such a parent has inherited them from its own parents. A child inherits them from it."""
    parent = tasks_of(app)
    headers = tuple(mine(MOST_HEADERS - room).items())
    with caplog.at_level(logging.WARNING, "treadle"):
        async with work(app):
            for way in WAYS:
                job = await app.enqueue(parent.job(way).changed(headers=headers))
                await job.workflow.result(timeout=10)
    rows = (await app.jobs.list(task="leaf")).records
    assert len(rows) == 1 + 2 + 2 + 3 + 3
    assert all(size(row.job) <= MOST_HEADERS for row in rows)
    assert not [name for row in rows for name, _ in row.job.headers if name in OURS and size(row.job) > MAX_HEADERS]
    said = [each.getMessage() for each in caplog.records if "have no room" in each.getMessage()]
    assert len(said) == 1
    assert traced in said[0]


async def test_the_trace_is_passed_on_while_there_is_room(app: App, traced: str) -> None:
    parent = tasks_of(app)
    async with work(app):
        for way in WAYS[:-1]:
            job = await parent.options(headers=mine(4_000)).enqueue(way)
            await job.workflow.result(timeout=10)
    for row in (await app.jobs.list(task="leaf")).records:
        assert {"mine", NAMES[traced]} <= {name for name, _ in row.job.headers}


async def test_jobs_of_a_schedule_with_headers_of_the_largest_size(
    app: App, traced: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A tick has headers of its own in addition to those of its job."""
    tasks_of(app)
    spec = app.tasks["leaf"].options(headers=mine(MAX_HEADERS)).job()
    await app.schedules.upsert("daily", spec, every=86_400)
    with caplog.at_level(logging.WARNING, "treadle"):
        for _ in range(2):
            await app.schedules.trigger("daily")
            await drain(app)
    rows = (await app.jobs.list(task="leaf")).records
    assert [row.state for row in rows] == ["succeeded"] * len(rows)
    assert rows
    assert not [name for row in rows for name, _ in row.job.headers if name in OURS]
    assert caplog.text.count("have no room") == 1
