"""The span of a run: which trace it belongs to, and how it ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context as TraceContext
from opentelemetry.trace import INVALID_SPAN, Link, Span, SpanKind, Tracer

from treadle.core import clock
from treadle.core.model import Record
from treadle.execution import RunOutcome
from treadle.execution.context import Context
from treadle.integrations.otel import attributes as names
from treadle.integrations.otel import headers
from treadle.metrics import waited

Traces = Literal["continued", "linked"]
FAILURES: Final = ("retrying", "paused", "failed", "expired")
LEASE_LOST: Final = "LeaseLost: the job belongs to another worker now"


class RunSpan:
    """The span of a run, or of one call of a batch function, while it runs.

    runs  the runs whose outcome is not known yet
    """

    __slots__ = ("before", "ended_at", "key", "runs", "span", "within")

    def __init__(self, span: Span, within: TraceContext, key: tuple[str, int], runs: int = 1) -> None:
        self.span, self.within, self.key, self.runs = span, within, key, runs
        self.before = otel_context.get_current()
        self.ended_at: int | None = None  # ns since 1970, when its function has ended

    def function_ended(self) -> None:
        """Keep the time: the outcome of a run that was lost becomes known later."""
        self.ended_at = nanoseconds(clock.wall())

    def outcome_known(self) -> None:
        """Note that the outcome of one of its runs is known."""
        self.runs -= 1
        if self.runs <= 0:
            self.span.end(self.ended_at)


class Places:
    """Decides the trace of each run.

    traces  "linked": each run begins a trace of its own, with a link to the sender
    within  s after the enqueue in which a run must be due to belong to the trace of the sender
    """

    def __init__(self, traces: Traces, within: float) -> None:
        self._traces, self._within = traces, within

    def of(self, record: Record, memo: str | None) -> tuple[TraceContext, list[Link]]:
        """The parent context of a run, and the links of its span."""
        links = [] if (previous := headers.link_of(memo)) is None else [previous]
        if not record.job.headers:
            return TraceContext(), links
        parent = headers.extracted(record.job.headers)
        sender = headers.span_of(parent)
        if sender is None or self._continues(record):
            return parent, links
        return trace.set_span_in_context(INVALID_SPAN, parent), [headers.sender_link(sender), *links]

    def _continues(self, record: Record) -> bool:
        return self._traces == "continued" and due_after(record) <= self._within


def due_after(record: Record) -> float:
    """How many seconds after its enqueue a run was due. The row does not record this for later runs of a job, so for
    them the time of the claim is used."""
    if record.started_at is None:
        return 0.0
    return record.started_at - record.created_at - (waited(record) or 0.0)


def start_run(tracer: Tracer, context: Context, places: Places, server: str | None) -> RunSpan:
    """Start the span of a run of one job."""
    record = context.record
    parent, links = places.of(record, context.memo(headers.MEMO))
    about = names.of_run(record, context.worker, server)
    if (wait := waited(record)) is not None:
        about[names.WAITED] = round(max(0.0, wait), 6)
    span = tracer.start_span(f"run {record.job.task}", parent, SpanKind.CONSUMER, about, links)
    if (memo := headers.memo_of(span.get_span_context())) is not None:
        context.set_memo(headers.MEMO, memo)
    within = trace.set_span_in_context(span, parent)
    return RunSpan(span, within, (record.job.id, record.version))


def start_batch(tracer: Tracer, contexts: tuple[Context, ...], server: str | None) -> RunSpan:
    """Start the span of one call of a batch function: it has a link to the sender of each of its jobs."""
    links = []
    for context in contexts:
        sender = headers.span_of(headers.extracted(context.record.job.headers))
        if sender is not None:
            links.append(Link(sender, {names.MESSAGE: context.id}))
    first = contexts[0]
    about = names.of_run(first.record, first.worker, server)
    for name in (names.MESSAGE, names.CONVERSATION, names.ATTEMPT):
        about.pop(name, None)
    about[names.COUNT] = len(contexts)
    span = tracer.start_span(f"run {first.task}", TraceContext(), SpanKind.CONSUMER, about, links)
    within = trace.set_span_in_context(span, TraceContext())
    return RunSpan(span, within, (first.id, first.version), len(contexts))


def end_run(run: RunSpan, outcome: RunOutcome, error: BaseException | None, hide: Callable[[str], str]) -> None:
    """End the span of a run whose outcome is known; `hide` replaces what people must not see."""
    span = run.span
    if span.is_recording():
        set_outcome(span, outcome)
        if error is not None and outcome.name in FAILURES:
            names.Failure(error, hide).mark(span)
        elif outcome.name == "lost":
            names.Failure(LEASE_LOST).mark(span)
    if outcome.name not in ("lost", "cancelled"):
        run.ended_at = None  # None means now: the result was encoded and judged since
    run.outcome_known()


def end_item(
    run: RunSpan, context: Context, outcome: RunOutcome, error: BaseException | None, hide: Callable[[str], str]
) -> None:
    """Note the outcome of one job of a batch; the last one ends the span of the call."""
    if run.span.is_recording() and error is not None and outcome.name in FAILURES:
        about = {names.MESSAGE: context.id, names.OUTCOME: outcome.name}
        names.Failure(error, hide).add_to(run.span, about)
    run.outcome_known()


def set_outcome(span: Span, outcome: RunOutcome) -> None:
    """Add the outcome of a run to its span."""
    span.set_attribute(names.OUTCOME, outcome.name)
    if outcome.reason is not None and outcome.name != "succeeded":
        span.set_attribute(names.REASON, outcome.reason)
    if outcome.delay is not None:
        span.set_attribute(names.DELAY, round(outcome.delay, 3))


def nanoseconds(seconds: float) -> int:
    """A time in seconds since 1970, as OpenTelemetry counts it."""
    return int(seconds * 1e9)
