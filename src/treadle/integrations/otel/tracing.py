"""`Tracing`, the middleware that records spans and metrics. A failure of OpenTelemetry never fails a job or a call."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, TypeVar

from opentelemetry import context as otel_context
from opentelemetry import metrics, trace
from opentelemetry.context import Context as TraceContext
from opentelemetry.trace import SpanKind, Tracer

from treadle.core import clock
from treadle.core.claim_ids import worker_name
from treadle.core.errors import BadOption
from treadle.core.model import Record
from treadle.execution import RunOutcome
from treadle.execution.context import Context
from treadle.execution.middleware import Middleware, Run, Send, Specs
from treadle.integrations.header_room import HeaderRoom
from treadle.integrations.otel import attributes as names
from treadle.integrations.otel import headers, providers, spans
from treadle.integrations.otel.instruments import Instruments, shared_instruments
from treadle.integrations.otel.queue_gauges import shared_gauges
from treadle.integrations.otel.sending import Sending

if TYPE_CHECKING:
    from treadle.app import App

log = logging.getLogger("treadle")

T = TypeVar("T")

FLUSH: Final = 5_000  # ms that the exporters of a process may take before it ends
SINCE: Final = 1.0  # s from the end of a run to its report; a longer time means that the app has a clock of its own

_run_here: ContextVar[spans.RunSpan | None] = ContextVar("treadle_otel_run", default=None)


class Tracing(Middleware):
    """Spans and metrics of one app: `app.middleware(Tracing())`, before its other middleware.

    traces           "continued": a run belongs to the trace of its sender; "linked": it begins a trace, with a link
    continue_within  "continued" only, in seconds: a run that is due later than this after its enqueue begins a trace of
                     its own, with links to the sender and to the previous run of the job
    create_spans     a span for each job or flow of a call, in addition to the one of the call
    runner_spans     in a server: a span for each run that a runner in another language reports
    queue_metrics    "treadle.queue.jobs" and "treadle.queue.oldest". In one process of the fleet only: each would
                     report the same jobs
    tracer_provider, meter_provider
                     None: those that the program has set for all libraries

    If both providers are those of the API, because the program has set up no SDK, it is absent: a worker reads that
    when it starts, each call that sends jobs reads it again. Raises BadOption.
    """

    def __init__(
        self,
        *,
        traces: spans.Traces = "continued",
        continue_within: float = 60.0,
        create_spans: bool = False,
        runner_spans: bool = True,
        queue_metrics: bool = False,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
    ) -> None:
        if traces not in ("continued", "linked"):
            raise BadOption("traces", f'expected "continued" or "linked", found {traces!r}')
        within: object = continue_within
        if isinstance(within, bool) or not isinstance(within, int | float) or not within >= 0:
            raise BadOption("continue_within", f"expected seconds, 0 or more, found {continue_within!r}")
        self._places = spans.Places(traces, float(continue_within))
        self._create_spans, self._runner_spans, self._queue_metrics = create_spans, runner_spans, queue_metrics
        self._providers = tracer_provider, meter_provider
        self._is_global = self._providers == (None, None) and providers.READABLE
        self._app: App | None = None
        self._tracers: tuple[object, Tracer | None] = (None, None)  # a provider and its tracer; None: it is the API's
        self._meters: tuple[object, Instruments | None] = (None, None)
        self._batches: dict[tuple[str, int], spans.RunSpan] = {}  # spans of runs whose outcome is not known yet
        self._url: tuple[str | None, str | None] = (None, None)  # the URL of the storage, and its host
        self._room = HeaderRoom("OpenTelemetry", 0)
        self._failed = False

    # --- its place in the app

    def added(self, app: App) -> None:
        """Take the place of a Tracing that instrumentation has added. Raises BadOption if it has an app already."""
        if self._app is not None:
            raise BadOption("middleware", "this Tracing belongs to an app already; make one for each app")
        self._app, self._room.most = app, app._core.sizes.headers
        layers = app._core.layers
        layers[:] = [layer for layer in layers if not isinstance(layer, AutomaticTracing)]
        if self._queue_metrics:
            self._instruments()  # a server may send and run nothing

    def _hiding(self, *rows: Record) -> Callable[[str], str]:
        """A function for the texts of errors: it replaces the secrets of these rows, as in logs and lists."""

        if self._app is None:
            return str
        redactor = self._app._core.redactor

        def hide(text: str) -> str:
            for row in rows:
                text = redactor.text(text, row)
            return text

        return hide

    @property
    def enabled(self) -> bool:
        """Whether the program has set up an SDK, for traces or for metrics."""
        if self._is_global and providers.TRACE._TRACER_PROVIDER is None and providers.METRICS._METER_PROVIDER is None:
            return False  # inline, because each call that sends a job reads this
        return self._tracer() is not None or self._instruments() is not None

    def _tracer(self) -> Tracer | None:
        provider = self._providers[0] or providers.of_traces()
        known, tracer = self._tracers
        if known is not provider:
            tracer = None
            if provider is not None and not providers.records_nothing(provider):
                tracer = provider.get_tracer(names.SCOPE, schema_url=names.SCHEMA)
            self._tracers = provider, tracer
        return tracer

    def _instruments(self) -> Instruments | None:
        provider = self._providers[1] or providers.of_metrics()
        known, instruments = self._meters
        if known is not provider:
            instruments = None
            if provider is not None and not providers.records_nothing(provider):
                meter = provider.get_meter(names.SCOPE, schema_url=names.SCHEMA)
                instruments = shared_instruments(provider, meter)
                if self._queue_metrics and self._app is not None:
                    shared_gauges(provider, meter).watch(self._app)
            self._meters = provider, instruments
        return instruments

    def _server(self) -> str | None:
        """The host of the storage."""
        url = None if self._app is None else self._app.url
        if url != self._url[0]:
            self._url = url, names.server_of(url)
        return self._url[1]

    def _guarded(self, what: str, call: Callable[[], T]) -> T | None:
        """The value of a call into OpenTelemetry; None if it raises, which is logged once."""
        try:
            return call()
        except Exception:
            if not self._failed:
                log.exception("tracing failed (%s); jobs are not affected, and further failures are not logged", what)
            self._failed = True
            return None

    # --- sending

    async def enqueue(self, specs: Specs, proceed: Send) -> Any:
        if not specs:
            return await proceed(specs)
        sending = self._guarded("enqueue", lambda: self._begin_sending(specs))
        if sending is None:
            return await proceed(specs)
        token = otel_context.attach(sending.within)
        try:
            sent = await proceed(sending.specs)
        except BaseException as error:
            failure = error  # a closure cannot keep the name of an `except`
            otel_context.detach(token)
            self._guarded("enqueue", lambda: sending.end(failure))
            raise
        otel_context.detach(token)
        self._guarded("enqueue", sending.end)
        return sent

    def _begin_sending(self, specs: Specs) -> Sending:
        sending = Sending(specs, self._instruments())
        if (tracer := self._tracer()) is not None:
            sending.trace(tracer, self._server(), self._room, self._create_spans)
        return sending

    # --- running

    async def run(self, context: Context, proceed: Run) -> Any:
        tracer = self._tracer()
        if tracer is None or context.kind == "batch":
            return await proceed()
        run = self._guarded("run", lambda: spans.start_run(tracer, context, self._places, self._server()))
        if run is None:
            return await proceed()
        # Neither is reset: the jobs that the run returns and the log line of its outcome belong to its span.
        _run_here.set(run)
        otel_context.attach(run.within)
        if context.kind == "process":
            self._guarded("run", lambda: self._pass_on(context, run))
        try:
            return await proceed()
        finally:
            run.function_ended()

    def _pass_on(self, context: Context, run: spans.RunSpan) -> None:
        """Give the trace to the process that runs the function."""
        carried = headers.injected(run.within)
        if self._room.passes_on(context.record, carried):
            context.child_headers.update(carried)

    def call(self, contexts: Sequence[Context]) -> AbstractContextManager[object] | None:
        """One span for the call of a batch. In a process, the span of the run, which the worker has started."""
        first = contexts[0]
        if first.kind == "batch":
            return self._batch(tuple(contexts))
        if first.kind == "process":
            within = self._guarded("process", lambda: headers.extracted(first.child_headers))
            return None if within is None else _attached(within)
        return None

    @contextmanager
    def _batch(self, contexts: tuple[Context, ...]) -> Iterator[None]:
        tracer, run = self._tracer(), None
        if tracer is not None:
            run = self._guarded("batch", lambda: spans.start_batch(tracer, contexts, self._server()))
        if run is None:
            yield
            return
        for context in contexts:
            self._batches[context.id, context.version] = run
        with _attached(run.within):
            try:
                yield
            except BaseException as error:
                failure = error  # a closure cannot keep the name of an `except`
                rows = [context.record for context in contexts]
                self._guarded("batch", lambda: names.Failure(failure, self._hiding(*rows)).mark(run.span))
                raise
            finally:
                run.function_ended()

    def step(self, context: Context, name: str) -> AbstractContextManager[object] | None:
        tracer = self._tracer()
        if tracer is None:
            return None
        return self._step(tracer, context, name)

    @contextmanager
    def _step(self, tracer: Tracer, context: Context, name: str) -> Iterator[None]:
        about: names.Attributes = {names.STEP: name, names.TASK: context.task, names.MESSAGE: context.id}
        span = self._guarded("step", lambda: tracer.start_span(f"step {name}", None, SpanKind.INTERNAL, about))
        if span is None:
            yield
            return
        with _attached(trace.set_span_in_context(span)):
            try:
                yield
            except Exception as error:
                failure = error
                self._guarded("step", lambda: names.Failure(failure, self._hiding(context.record)).mark(span))
                raise
            finally:
                self._guarded("step", span.end)

    def close_process(self) -> None:
        """Export the spans and metrics of a process of `kind="process"`, which ends without the handlers of atexit."""
        configured = self._providers
        for provider in (configured[0] or providers.of_traces(), configured[1] or providers.of_metrics()):
            flush: Callable[[int], object] | None = getattr(provider, "force_flush", None)
            if flush is not None:
                flush(FLUSH)

    # --- endings

    def judged(self, context: Context, outcome: RunOutcome, error: BaseException | None) -> None:
        if outcome.name == "reaped":
            return  # the span of the dead worker's run was lost with it; the run that follows has "treadle.lost"
        key = context.id, context.version
        run, batch = _run_here.get(), self._batches.pop(key, None)
        record = context.record
        if (instruments := self._instruments()) is not None and not record.function_done:
            kind = names.error_type(error) if error is not None and outcome.name in spans.FAILURES else None
            self._guarded("metrics", lambda: instruments.ran(record, outcome.name, outcome.seconds, kind))
        if batch is not None:
            self._guarded("batch", lambda: spans.end_item(batch, context, outcome, error, self._hiding(record)))
        elif run is not None and run.key == key:
            self._guarded("run", lambda: spans.end_run(run, outcome, error, self._hiding(record)))
            _run_here.set(None)
            if not _in_event_loop():  # in a test of a Django project the run has no context variables of its own
                otel_context.attach(run.before)
        elif error is not None and outcome.name in spans.FAILURES:
            self._guarded("run", lambda: self._never_ran(context, outcome, error))

    def _never_ran(self, context: Context, outcome: RunOutcome, error: BaseException) -> None:
        """A span for a failure without a run of the function: its arguments cannot be read, or its children failed."""
        tracer = self._tracer()
        if tracer is None:
            return
        record = context.record
        parent, links = self._places.of(record, context.memo(headers.MEMO))
        about = names.of_run(record, context.worker, self._server())
        name = "run"
        if record.function_done:
            about.update({names.OPERATION: "end", names.OPERATION_TYPE: "settle"})
            about.pop(names.ATTEMPT)
            name = "end"
        span = tracer.start_span(f"{name} {context.task}", parent, SpanKind.CONSUMER, about, links)
        spans.set_outcome(span, outcome)
        names.Failure(error, self._hiding(record)).mark(span)
        span.end()

    def reported(self, record: Record, outcome: RunOutcome, error: str | None) -> None:
        """Record a run that a runner in another language reported: its metrics, and a span from the claim until now."""
        failed = error is not None and outcome.name in spans.FAILURES
        if (instruments := self._instruments()) is not None:
            kind = names.Failure(error or "").kind if failed else None
            self._guarded("metrics", lambda: instruments.ran(record, outcome.name, outcome.seconds, kind))
        tracer = self._tracer()
        if tracer is not None and self._runner_spans:
            self._guarded("runner", lambda: self._of_runner(tracer, record, outcome, error if failed else None))

    def _of_runner(self, tracer: Tracer, record: Record, outcome: RunOutcome, error: str | None) -> None:
        parent, links = self._places.of(record, None)
        about = names.of_run(record, worker_name(record.worker or ""), self._server())
        start = clock.wall() - outcome.seconds
        if record.started_at is not None and 0 <= start - record.started_at < SINCE:
            start = record.started_at
        name = f"run {record.job.task}"
        span = tracer.start_span(name, parent, SpanKind.CONSUMER, about, links, start_time=spans.nanoseconds(start))
        spans.set_outcome(span, outcome)
        if error is not None:
            names.Failure(error, self._hiding(record)).mark(span)
        span.end(spans.nanoseconds(start + outcome.seconds))


class AutomaticTracing(Tracing):
    """The one that `TreadleInstrumentor` adds. A Tracing that the program adds replaces it."""


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


@contextmanager
def _attached(context: TraceContext) -> Iterator[None]:
    token = otel_context.attach(context)
    try:
        yield
    finally:
        otel_context.detach(token)
