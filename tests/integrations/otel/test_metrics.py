"""Metrics of OpenTelemetry: their names by the conventions, their attributes, and the gauges of the stored jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.semconv import schemas
from opentelemetry.semconv._incubating.attributes import messaging_attributes
from opentelemetry.semconv._incubating.metrics import messaging_metrics
from opentelemetry.semconv.attributes import error_attributes, exception_attributes, server_attributes
from opentelemetry.trace import ProxyTracerProvider

from tests.kit import Spy
from treadle import App, Retry, State
from treadle.core.model import NewJob, Record
from treadle.integrations.otel import Tracing
from treadle.integrations.otel import attributes as names
from treadle.integrations.otel.instruments import Instruments
from treadle.storage.memory import MemoryStorage
from treadle.testing import HandClock, drain
from treadle_testkit.shows import shows


class Metered:
    """A meter provider, and its metrics as {name: {attributes: value}}."""

    def __init__(self) -> None:
        self.reader = InMemoryMetricReader()
        self.provider = MeterProvider([self.reader], shutdown_on_exit=False)

    def on(self, app: App, **options: Any) -> App:
        app.middleware(Tracing(tracer_provider=ProxyTracerProvider(), meter_provider=self.provider, **options))
        return app

    def read(self) -> dict[str, dict[tuple[Any, ...], Any]]:
        """Counters and gauges have numbers, histograms (count, sum)."""
        found: dict[str, dict[tuple[Any, ...], Any]] = {}
        data = self.reader.get_metrics_data()
        for metric in data.resource_metrics[0].scope_metrics[0].metrics if data else ():
            for point in metric.data.data_points:
                about = {k: v for k, v in (point.attributes or {}).items() if k != "messaging.system"}
                value: Any = point
                shown = (point.count, round(point.sum, 3)) if hasattr(point, "sum") else value.value
                found.setdefault(metric.name, {})[tuple(sorted(about.items()))] = shown
        return found


@pytest.fixture
def metered() -> Iterator[Metered]:
    found = Metered()
    yield found
    found.provider.shutdown()


def at(found: dict[tuple[Any, ...], Any], **about: Any) -> Any:
    """The value with these attributes; `.` is written `_` in their names."""
    [value] = [
        value for key, value in found.items() if about.items() <= {n.replace(".", "_"): v for n, v in key}.items()
    ]
    return value


@shows("OpenTelemetry: metrics of sends, runs and waits by the conventions for messaging, also without traces")
async def test_sends_runs_and_waits_are_measured(metered: Metered, clock: HandClock) -> None:
    app = metered.on(App(storage=MemoryStorage(clock), clock=clock, retry=Retry(attempts=2, base=0, jitter=0)))

    @app.task(name="leaf", queue="mail")
    async def leaf() -> None: ...

    @app.task(name="fails")
    async def fails() -> None:
        raise ValueError("x")

    @app.batch(name="many", size=2)
    async def many(items: list[int]) -> list[int]:
        return items

    async with app:
        await app.enqueue(leaf.job(), leaf.job(), fails.job(), many.job(1), many.job(2))
        clock.advance(5)
        await drain(app, concurrency=2)
    found = metered.read()
    assert at(found["messaging.client.sent.messages"], treadle_task="leaf", messaging_destination_name="mail") == 2
    assert at(found["messaging.client.operation.duration"], messaging_operation_name="enqueue")[0] == 1
    runs = found["messaging.client.consumed.messages"]
    assert at(runs, treadle_task="leaf", treadle_outcome="succeeded") == 2
    assert at(runs, treadle_task="many", treadle_outcome="succeeded") == 2
    assert at(runs, treadle_task="fails", treadle_outcome="retrying", error_type="ValueError") == 1
    assert at(runs, treadle_task="fails", treadle_outcome="failed", error_type="ValueError") == 1
    assert at(found["messaging.process.duration"], treadle_task="fails", error_type="ValueError")[0] == 2
    assert at(found["treadle.job.wait"], treadle_task="leaf") == (2, 10.0)
    known = {name for values in found.values() for key in values for name, _ in key}
    assert known == {
        "messaging.operation.name",
        "messaging.destination.name",
        "treadle.task",
        "treadle.outcome",
        "error.type",
    }


@shows("OpenTelemetry: the number of stored jobs and the age of the oldest come from one process")
async def test_one_process_reports_the_stored_jobs(metered: Metered, clock: HandClock) -> None:
    spy = Spy(MemoryStorage(clock))
    app = metered.on(App(storage=spy, clock=clock), queue_metrics=True)

    @app.task(name="leaf", queue="mail")
    async def leaf() -> None: ...

    async with app:
        await app.enqueue(leaf.job(), leaf.job(), leaf.options(delay=60).job())
        clock.advance(7)
        found = await in_another_thread(metered)
        jobs = {key[1][1]: value for key, value in found["treadle.queue.jobs"].items()}
        assert jobs == {str(State.READY): 3}
        assert at(found["treadle.queue.oldest"], messaging_destination_name="mail") == 7
        assert spy.calls["stats"] == 1, "one read for both metrics"
    closed = await in_another_thread(metered)
    assert "treadle.queue.jobs" not in closed, "collecting does not open the app"


async def in_another_thread(metered: Metered) -> dict[str, dict[tuple[Any, ...], Any]]:
    """Collect as a periodic reader does."""
    return await asyncio.to_thread(metered.read)


def test_the_names_are_those_of_the_conventions() -> None:
    """Of the installed version, which is that of our schema URL; none of them is deprecated there."""
    known = vars(messaging_attributes) | vars(error_attributes) | vars(exception_attributes) | vars(server_attributes)
    values = {value for name, value in known.items() if name.isupper()}
    ours = {value for name, value in vars(names).items() if name.isupper() and isinstance(value, str)}
    conventional = {name for name in ours if "." in name and not name.startswith(("treadle.", "https:"))}
    assert conventional <= values
    assert names.SCHEMA in {each.value for each in schemas.Schemas}
    metrics = {value for name, value in vars(messaging_metrics).items() if name.startswith("MESSAGING_")}
    assert {
        "messaging.client.sent.messages",
        "messaging.client.operation.duration",
        "messaging.client.consumed.messages",
        "messaging.process.duration",
    } <= metrics


async def test_two_apps_share_their_instruments(metered: Metered, caplog: pytest.LogCaptureFixture) -> None:
    """The SDK would warn of a second instrument of the same name."""
    for _ in range(2):
        app = metered.on(App("memory://"))

        @app.task(name="leaf")
        async def leaf() -> None: ...

        async with app:
            await leaf.enqueue()
    assert at(metered.read()["messaging.client.sent.messages"], treadle_task="leaf") == 2
    assert not caplog.records


async def test_the_stored_jobs_of_several_apps(metered: Metered, clock: HandClock) -> None:
    """The SDK calls only the first of two instruments of one name. Two apps of one storage show the same jobs."""
    storage = MemoryStorage(clock)
    apps = [
        metered.on(App(storage=given, clock=clock), queue_metrics=True)
        for given in (storage, storage, MemoryStorage(clock))
    ]
    async with apps[0], apps[1], apps[2]:
        for app in apps[1:]:

            @app.task(name="leaf", queue="mail")
            async def leaf() -> None: ...

            await leaf.enqueue()
        found = await in_another_thread(metered)
        assert at(found["treadle.queue.jobs"], treadle_state="ready") == 2, "one of each storage"


@shows("OpenTelemetry: names from senders and texts of failures do not become sets of attributes without a bound")
def test_attributes_have_a_bound(metered: Metered) -> None:
    instruments = Instruments(metered.provider.get_meter("treadle"))
    jobs = [NewJob(id=str(n), task=f"task{n}", payload="", queue=f"queue{n}") for n in range(1_000)]
    for job in jobs:
        instruments.sent([job], 0.1, None)
        instruments.ran(
            Record(job=job, version=1, state=State.RUNNING, created_at=0.0), "failed", 0.1, f"Error{job.id}"
        )
    found = metered.read()
    assert len(found["messaging.client.sent.messages"]) == 601, "300 pairs, 300 queues, and the rest"
    assert at(found["messaging.client.sent.messages"], treadle_task="other", messaging_destination_name="other") == 400
    assert {dict(key)["error.type"] for key in found["messaging.client.consumed.messages"]} == {
        *(f"Error{n}" for n in range(300)),
        "_OTHER",
    }


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("ValueError: no", "ValueError"),
        ("mail::Error: no", "mail::Error"),
        ("order 8131 cannot be paid", "_OTHER"),
        ("", "_OTHER"),
    ],
)
def test_the_type_of_a_failure_that_a_runner_reports(text: str, kind: str) -> None:
    """The conventions ask for few values, so a sentence is no type."""
    assert names.Failure(text).kind == kind
