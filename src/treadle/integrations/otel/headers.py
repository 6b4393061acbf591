"""The trace of a job in its headers: `traceparent`, `tracestate` and `baggage`, or those of the program's propagators.

Headers that the caller gave stay, and so do the members of its `baggage` that the trace does not have. If the headers
would exceed the size that the app allows, the trace's baggage is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, SpanContext
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from treadle.core.job import JobSpec
from treadle.core.model import NewJob, Pairs
from treadle.integrations.header_room import HeaderRoom, kept_size, size_of

W3C: Final = TraceContextTextMapPropagator()
BAGGAGE: Final = "baggage"
MEMO: Final = "trace"  # the name of the text that a run stores for the next run of its job


def injected(context: Context) -> dict[str, str]:
    """The headers for the span of this context, with its baggage."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier, context)
    return carrier


def sent_with(specs: Sequence[JobSpec[Any, Any]], context: Context, room: HeaderRoom) -> list[JobSpec[Any, Any]]:
    """The specs with the trace of this context. If its headers have no room, first the baggage is left out, then the
    trace."""
    common = injected(context)
    limit = room.here(common)
    slim: dict[str, str] | None = None
    traced = []
    for spec in specs:
        whole = _with_members_of(spec.new, common)
        size = size_of(whole.items())
        own = max(kept_size(spec.new, whole), *(kept_size(new, whole) for new in spec.others), 0)
        if own + size <= limit:
            traced.append(spec.with_headers(whole))
            continue
        if slim is None:
            slim = {}
            W3C.inject(slim, context)
        fits = own + size_of(slim.items()) <= limit
        traced.append(spec.with_headers(slim) if fits else spec)
        room.left_out(spec.new.task, [name for name in whole if not fits or name not in slim])
    return traced


def _with_members_of(new: NewJob, carrier: dict[str, str]) -> dict[str, str]:
    """The carrier, whose baggage also has the members that only the headers of the job have, such as Sentry's."""
    if BAGGAGE not in carrier or not new.headers or (own := dict(new.headers).get(BAGGAGE)) is None:
        return carrier
    names = {_name(member) for member in carrier[BAGGAGE].split(",")}
    kept = [member.strip() for member in own.split(",") if _name(member) not in names and member.strip()]
    return {**carrier, BAGGAGE: ",".join([carrier[BAGGAGE], *kept])}


def _name(member: str) -> str:
    return member.partition("=")[0].strip()


def extracted(headers: Pairs | Mapping[str, str]) -> Context:
    """The context of these headers: without a span if they have none that can be read."""
    return propagate.extract(dict(headers), Context())


def span_of(context: Context) -> SpanContext | None:
    """The span of a context; None: it has none."""
    span = trace.get_current_span(context).get_span_context()
    return span if span.is_valid else None


def memo_of(span: SpanContext) -> str | None:
    """The text for the next run of the job; None if the span is not exported, so that a link would lead nowhere."""
    if not span.trace_flags.sampled:
        return None
    return f"00-{span.trace_id:032x}-{span.span_id:016x}-01"


def link_of(memo: str | None) -> Link | None:
    """A link to the run that stored this text."""
    if memo is None:
        return None
    span = span_of(W3C.extract({"traceparent": memo}, Context()))
    return None if span is None else Link(span, {"treadle.link": "previous run"})


def sender_link(sender: SpanContext) -> Link:
    """A link to the span that sent a job."""
    return Link(sender, {"treadle.link": "sender"})
