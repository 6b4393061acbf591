"""The span of one call that sends jobs, and the specs with its trace in their headers."""

from __future__ import annotations

from typing import Final

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context as TraceContext
from opentelemetry.trace import Link, Span, SpanKind, Tracer

from treadle.core import clock
from treadle.execution.middleware import Specs
from treadle.integrations.header_room import HeaderRoom
from treadle.integrations.otel import attributes as names
from treadle.integrations.otel import headers
from treadle.integrations.otel.instruments import Instruments

TICK: Final = "treadle-moment"  # a header of the jobs that a schedule makes


class Sending:
    """One call that sends jobs.

    specs   the jobs, with the trace in their headers once `trace` was called
    within  the context in which the call is carried out
    """

    def __init__(self, specs: Specs, instruments: Instruments | None) -> None:
        self.specs: Specs = specs
        self._jobs, self._instruments = names.jobs_of(specs), instruments
        self.within: TraceContext = otel_context.get_current()
        self._span: Span | None = None
        self._began = clock.monotonic()

    def trace(self, tracer: Tracer, server: str | None, room: HeaderRoom, create_spans: bool) -> None:
        """Start the span, and add its trace to the jobs, or, with `create_spans`, start a span for each job and add its
        trace."""
        parent = self._parent()
        kind = SpanKind.CLIENT if create_spans else SpanKind.PRODUCER
        about = names.of_sending("enqueue", "send", self._jobs, server)
        name = names.span_name("enqueue", about, names.DESTINATION)
        links: list[Link] = []
        if create_spans:
            self.specs, links = self._created(tracer, parent, server, room)
        self._span = span = tracer.start_span(name, parent, kind, about, links)
        self.within = trace.set_span_in_context(span, parent)
        if not create_spans:
            self.specs = headers.sent_with(self.specs, self.within, room)

    def _parent(self) -> TraceContext:
        """The span that is active here. If no span is active, the parent is the one in the headers that the caller
        passed or inherited. A tick of a schedule gets no trace: the span in which a worker was started is not its
        cause."""
        if any(name == TICK for name, _ in self._jobs[0].headers):
            return TraceContext()
        here = otel_context.get_current()
        if headers.span_of(here) is not None:
            return here
        own_headers = next((job.headers for job in self._jobs if job.headers), ())
        context = headers.extracted(own_headers) if own_headers else here
        return context if headers.span_of(context) is not None else here

    def _created(
        self, tracer: Tracer, parent: TraceContext, server: str | None, room: HeaderRoom
    ) -> tuple[Specs, list[Link]]:
        """The specs, each with the trace of a span that is started for it, and links to these spans."""
        specs, links = [], []
        for spec in self.specs:
            about = names.of_sending("create", "create", [*spec.others, spec.new], server)
            name = names.span_name("create", about, names.TASK)
            span = tracer.start_span(name, parent, SpanKind.PRODUCER, about)
            specs += headers.sent_with([spec], trace.set_span_in_context(span, parent), room)
            links.append(Link(span.get_span_context()))
            span.end()
        return specs, links

    def end(self, error: BaseException | None = None) -> None:
        """The call has returned, or raised this."""
        kind = None if error is None else names.error_type(error)
        span = self._span
        if span is not None:
            if error is not None and span.is_recording():
                names.Failure(error).mark(span)
            span.end()
        if self._instruments is not None:
            # The exemplars of a histogram are the spans that are active when it records.
            token = otel_context.attach(self.within)
            self._instruments.sent(self._jobs, clock.monotonic() - self._began, kind)
            otel_context.detach(token)
