"""Span trees as text, for tests: one line a span, its children below it, links and statuses behind it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import dedent
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode, Tracer

from treadle import App
from treadle.integrations.otel import Tracing


class Recorded:
    """A provider whose ended spans can be compared with a text.

        view
          enqueue mail
            run send > ValueError
        run send <- enqueue mail, previous run send

    A root begins at the margin, and roots are in the order in which they began. `> ERROR` follows a failed
    span, `<- NAME` names the spans that it links to.
    """

    def __init__(self, **options: Any) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(**options)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer: Tracer = self.provider.get_tracer("test")

    def on(self, app: App, **options: Any) -> App:
        """Trace this app."""
        app.middleware(Tracing(tracer_provider=self.provider, **options))
        return app

    @property
    def spans(self) -> Sequence[ReadableSpan]:
        return sorted(self.exporter.get_finished_spans(), key=lambda span: span.start_time or 0)

    def named(self, name: str) -> ReadableSpan:
        """The only span of that name."""
        [found] = [span for span in self.spans if span.name == name]
        return found

    def tree(self, *attributes: str) -> str:
        """All spans as text; these attributes in brackets behind the name of each span that has them."""
        spans = self.spans
        names = {_id(span): span.name for span in spans}
        lines = list[str]()

        def write(span: ReadableSpan, depth: int) -> None:
            lines.append("  " * depth + _line(span, names, attributes))
            for child in spans:
                if (
                    child.parent is not None
                    and span.context is not None
                    and child.parent.span_id == span.context.span_id
                ):
                    write(child, depth + 1)

        for span in spans:
            if span.parent is None or span.parent.span_id not in names:
                write(span, 0)
        return "\n".join(lines)

    def check(self, expected: str, *attributes: str) -> None:
        """Compare the tree with a text, and forget these spans."""
        found = self.tree(*attributes)
        assert found == dedent(expected).strip(), f"found:\n{found}"
        self.exporter.clear()


def _id(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.span_id


def _line(span: ReadableSpan, names: dict[int, str], attributes: Sequence[str]) -> str:
    found = span.name
    given = span.attributes or {}
    shown = [f"{given[name]}" for name in attributes if name in given]
    if shown:
        found += f" [{', '.join(shown)}]"
    if span.links:
        found += " <- " + ", ".join(_linked(span, names))
    if span.status.status_code is StatusCode.ERROR:
        found += f" > {given.get('error.type')}"
    return found


def _linked(span: ReadableSpan, names: dict[int, str]) -> Iterator[str]:
    for link in span.links:
        name = names.get(link.context.span_id, "a span that was not recorded")
        yield f"previous {name}" if (link.attributes or {}).get("treadle.link") == "previous run" else name
