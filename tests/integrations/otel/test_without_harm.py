"""Tracing that is off, broken, slow, sampled out or too large for a header: no job and no call is affected."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from opentelemetry import baggage, context, metrics, trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import ProxyTracerProvider

from tests.integrations.otel.trees import Recorded
from tests.kit import work
from treadle import App, BadOption, Retry, Sizes, current
from treadle.execution.middleware import overrides
from treadle.integrations.otel import Tracing, trace_ids
from treadle.testing import drain
from treadle_testkit.shows import shows


def an_app(**options: Any) -> App:
    app = App("memory://", **options)

    @app.task(name="leaf")
    async def leaf() -> dict[str, str]:
        return dict(current().headers)

    return app


@shows("OpenTelemetry: without an SDK, tracing is no layer of a call or of a worker, and adds no header")
async def test_without_an_sdk_no_tracing_is_added() -> None:
    app = an_app()
    tracing = Tracing(tracer_provider=ProxyTracerProvider(), meter_provider=metrics.NoOpMeterProvider())
    app.middleware(tracing)
    assert not tracing.enabled
    for method in ("enqueue", "run", "call", "step", "judged", "reported", "close_process"):
        assert overrides([tracing], method) == [], method
    async with app:
        job = await app.find_task("leaf").enqueue()
        async with work(app) as worker:
            assert await job.result(10) == {}
            session = worker._core.session
            assert session is not None
            assert session.executor._run_reports is None
            assert not session.executor._runner._is_wrapped


async def test_an_sdk_that_is_set_up_in_the_lifespan_is_found() -> None:
    recorded, app = Recorded(), an_app()
    tracing = Tracing(tracer_provider=ProxyTracerProvider(), meter_provider=metrics.NoOpMeterProvider())
    app.middleware(tracing)

    @app.lifespan
    async def life() -> Any:
        tracing._providers = recorded.provider, tracing._providers[1]
        yield

    async with app:
        job = await app.find_task("leaf").enqueue()
        async with work(app):
            await job.ended(10)
    recorded.check("run leaf")


class Broken(SpanProcessor):
    """Raises when a span begins, or when it ends."""

    def __init__(self, when: str) -> None:
        self.when = when

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        if self.when == "start":
            raise RuntimeError("a broken processor")

    def on_end(self, span: ReadableSpan) -> None:
        if self.when == "end":
            raise RuntimeError("a broken processor")


@shows("OpenTelemetry: a span processor that raises fails no call and no job, and is logged once")
@pytest.mark.parametrize("when", ["start", "end"])
@pytest.mark.parametrize("create_spans", [False, True])
async def test_a_processor_that_raises(when: str, create_spans: bool, caplog: pytest.LogCaptureFixture) -> None:
    app, provider = an_app(), TracerProvider()
    provider.add_span_processor(Broken(when))
    app.middleware(Tracing(tracer_provider=provider, create_spans=create_spans))

    @app.batch(name="many", size=2)
    async def many(items: list[int]) -> list[int]:
        return items

    @app.task(name="order")
    async def order() -> int:
        async def one() -> int:
            return 1

        return await current().step("one", one)

    async with app:
        jobs = [await app.find_task("leaf").enqueue(), await many.enqueue(1), await order.enqueue()]
        await app.stub("order").enqueue("too many arguments")
        await drain(app)
        assert [(await job.ended(0)).state for job in jobs] == ["succeeded"] * 3
    said = [each for each in caplog.records if "tracing failed" in each.getMessage()]
    assert len(said) == 1


class Hanging(SpanExporter):
    """An exporter whose collector does not answer until it is released."""

    def __init__(self) -> None:
        self.asked, self.release = threading.Event(), threading.Event()
        self.exported = list[str]()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.asked.set()
        self.release.wait(30)
        self.exported += [span.name for span in spans]
        return SpanExportResult.SUCCESS

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return True


@shows("OpenTelemetry: a collector that does not answer holds up no job")
async def test_an_exporter_that_hangs() -> None:
    app, provider, exporter = an_app(), TracerProvider(shutdown_on_exit=False), Hanging()
    provider.add_span_processor(BatchSpanProcessor(exporter, max_export_batch_size=1, schedule_delay_millis=1))
    app.middleware(Tracing(tracer_provider=provider))
    async with app:
        for _ in range(10):
            job = await app.find_task("leaf").enqueue()
            await drain(app)
            assert (await job.ended(0)).state == "succeeded"
        assert exporter.asked.wait(10), "it hangs already"
        exporter.release.set()
        provider.shutdown()
    assert len(exporter.exported) == 20


class Failing(SpanExporter):
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        raise ConnectionError("no collector")


async def test_an_exporter_that_raises(caplog: pytest.LogCaptureFixture) -> None:
    app, provider = an_app(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(Failing()))
    app.middleware(Tracing(tracer_provider=provider))
    async with app:
        job = await app.find_task("leaf").enqueue()
        await drain(app)
        assert (await job.ended(0)).state == "succeeded"
    provider.shutdown()
    assert "tracing failed" not in caplog.text, "the SDK has caught it"


@shows("OpenTelemetry: a trace that is sampled out is sampled out in the run, and exports nothing")
async def test_a_run_of_a_trace_that_is_sampled_out_exports_nothing() -> None:
    recorded, app = Recorded(sampler=ALWAYS_OFF), an_app(retry=Retry(attempts=2, base=0, jitter=0))
    recorded.on(app)

    @app.task(name="fails")
    async def fails() -> None:
        raise ValueError("x")

    async with app:
        job, failed = await app.find_task("leaf").enqueue(), await fails.enqueue()
        await drain(app)
        flags = int((await job.result())["traceparent"][-2:], 16)
        assert not flags & 1, "not sampled"
        row = await failed.ended()
    recorded.check("")
    assert not [name for name, _ in row.checkpoints if name.startswith("treadle:memo:")], "a link would lead nowhere"


# --- headers


@shows("OpenTelemetry: the headers of a trace are added to those of the caller, and its baggage reaches the function")
async def test_headers_are_merged() -> None:
    recorded, app = Recorded(), App("memory://")
    recorded.on(app)

    @app.task(name="leaf")
    async def leaf() -> tuple[dict[str, str], object]:
        return dict(current().headers), baggage.get_baggage("tenant")

    token = context.attach(baggage.set_baggage("tenant", "42"))
    async with app:
        job = await leaf.options(
            headers={"mine": "1", "traceparent": "of another time", "baggage": "tenant=1, sentry-release=7"}
        ).enqueue()
        context.detach(token)
        await drain(app)
        headers, tenant = await job.result()
    sent = recorded.named("enqueue default").context
    assert sent is not None
    assert headers == {
        "mine": "1",
        "traceparent": f"00-{sent.trace_id:032x}-{sent.span_id:016x}-{sent.trace_flags:02x}",
        "baggage": "tenant=42,sentry-release=7",
    }
    assert tenant == "42"


@pytest.mark.parametrize(
    ("room", "kept"), [(500, {"traceparent", "baggage"}), (200, {"traceparent"}), (20, set[str]())]
)
async def test_headers_that_would_be_too_large(room: int, kept: set[str]) -> None:
    """First the baggage is left out, then the trace. The job is stored."""
    recorded, app = Recorded(), an_app(sizes=Sizes(headers=1_000))
    recorded.on(app)
    mine = {"mine": "x" * (1_000 - len("mine") - room)}
    token = context.attach(baggage.set_baggage("tenant", "4" * 200))
    try:
        async with app:
            job = await app.find_task("leaf").options(headers=mine).enqueue()
            await drain(app)
            assert (await job.result()).keys() == {"mine"} | kept
    finally:
        context.detach(token)


async def test_a_trace_in_the_headers_of_the_caller_is_continued() -> None:
    """A bridge without OpenTelemetry passes headers on. With an active span, that span is the parent."""
    recorded, app = Recorded(), an_app()
    recorded.on(app)
    given = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    async with app:
        await app.find_task("leaf").options(headers=given).enqueue()
        with recorded.tracer.start_as_current_span("view"):
            await app.find_task("leaf").options(headers=given).enqueue()
        await drain(app)
    first = recorded.spans[0]
    assert first.context is not None
    assert f"{first.context.trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"
    recorded.check("""
        enqueue default
          run leaf
        view
          enqueue default
            run leaf
    """)


@pytest.mark.parametrize("text", ["", "00-zz", "x" * 400, "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "\ud800"])
async def test_a_run_with_invalid_trace_headers_starts_its_own_trace(text: str) -> None:
    """Any client may send them. The run begins a trace of its own."""
    recorded, app = Recorded(), an_app()
    if text == "\ud800":
        text = "00-é"
    async with app:
        job = await app.find_task("leaf").options(headers={"traceparent": text, "baggage": ";;=,"}).enqueue()
        recorded.on(app)
        await drain(app)
        assert (await job.ended(0)).state == "succeeded"
    recorded.check("run leaf")


# --- logs


@shows("OpenTelemetry: log lines of a job can carry the ids of its trace, with one function")
async def test_the_ids_of_the_active_span() -> None:
    recorded, app = Recorded(), App("memory://")
    recorded.on(app)
    assert trace_ids() is None

    @app.task(name="leaf")
    async def leaf() -> list[str] | None:
        found = trace_ids()
        return None if found is None else list(found)

    async with app:
        job = await leaf.enqueue()
        await drain(app)
        ran = recorded.named("run leaf").context
        assert ran is not None
        assert await job.result() == [f"{ran.trace_id:032x}", f"{ran.span_id:016x}"]
    assert not trace.get_current_span().get_span_context().is_valid, "the span is not active after its job"


class Ids(logging.Filter):
    """Keeps the ids of the active trace with each line of a logger."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[str, str | None]] = []

    def filter(self, record: logging.LogRecord) -> bool:
        found = trace_ids()
        self.lines.append((record.getMessage(), None if found is None else found.span_id))
        return True


@shows("OpenTelemetry: the worker's own log line of a job that failed carries the trace of its run")
@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_the_log_line_of_the_worker(kind: str) -> None:
    recorded, app, ids = Recorded(), App("memory://", retry=Retry(attempts=1)), Ids()
    recorded.on(app)

    async def fails() -> None:
        raise ValueError("no")

    def fails_in_thread() -> None:
        raise ValueError("no")

    task = app.task(name="fails")(fails if kind == "async" else fails_in_thread)
    logging.getLogger("treadle.jobs").addFilter(ids)
    try:
        async with app:
            await task.enqueue()
            await drain(app)
    finally:
        logging.getLogger("treadle.jobs").removeFilter(ids)
    ran = recorded.named("run fails").context
    assert ran is not None
    assert ids.lines == [("fails failed: ValueError: no", f"{ran.span_id:016x}")]


@pytest.mark.parametrize("wrong", [{"traces": "both"}, {"continue_within": -1}, {"continue_within": "soon"}])
def test_an_invalid_option_of_tracing_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadOption, match="expected"):
        Tracing(**wrong)
