"""A program with a traced app and tasks of kind "process": test_ways_in.py runs them in a process of their own.

Its spans go to the file SPANS, one line each, in batches: the process must flush them before it ends.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from treadle import App
from treadle.integrations.otel import Tracing, trace_ids


class Lines(SpanExporter):
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        with Path(os.environ["SPANS"]).open("a") as file:
            for span in spans:
                assert span.context is not None
                parent = 0 if span.parent is None else span.parent.span_id
                file.write(f"{span.name} {span.context.trace_id:032x} {parent:016x} {os.getpid()}\n")
        return SpanExportResult.SUCCESS


provider = TracerProvider(shutdown_on_exit=False)
provider.add_span_processor(BatchSpanProcessor(Lines()))
tracer = provider.get_tracer("test")

app = App("memory://")
app.middleware(Tracing(tracer_provider=provider))


@app.task(kind="process")
def resize() -> tuple[str, str, int]:
    with tracer.start_as_current_span("in the child"):
        pass
    found = trace_ids()
    assert found is not None
    return found.trace_id, found.span_id, os.getpid()
