"""Sentry's traces: headers from the sender to the run, a span for each call that sends, a transaction for each run.

They are sent only if tracing is on (`traces_sample_rate`). The headers are always added: Sentry
then shows an error of a job together with those of the request that sent it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import sentry_sdk

from treadle.core.job import JobSpec
from treadle.durable import Suspend
from treadle.execution.context import Context
from treadle.execution.middleware import Specs
from treadle.integrations.header_room import HeaderRoom, kept_size, size_of
from treadle.policy.retry import Defer

TRACE: Final = "sentry-trace"
BAGGAGE: Final = "baggage"
ORIGIN: Final = "auto.queue.treadle"
MOST: Final = 1_000  # characters of the baggage header of a job
SAME_TRACE: Final = 60.0  # s after it was due within which the first attempt continues the trace of the sender


def outgoing() -> dict[str, str]:
    """The headers of the current trace; none without a client."""
    if not sentry_sdk.get_client().is_active():
        return {}
    headers = {TRACE: sentry_sdk.get_traceparent(), BAGGAGE: sentry_sdk.get_baggage()}
    return {name: text for name, text in headers.items() if text}


def with_traces(specs: Specs, room: HeaderRoom) -> Specs:
    """The specs with the headers of the current trace. If its headers have no room, first the baggage is left out,
    then the trace."""
    headers = outgoing()
    return [with_trace(spec, headers, room) for spec in specs] if headers else specs


def with_trace(spec: JobSpec[Any], headers: Mapping[str, str], room: HeaderRoom) -> JobSpec[Any]:
    """The spec with these headers. A `baggage` that it has already, of another tracer, keeps its other members."""
    own = dict(spec.new.headers)
    if TRACE in own:  # a schedule, or the caller, has set a trace
        return spec
    members = [member.strip() for member in own.get(BAGGAGE, "").split(",")]
    kept = [member for member in members if member and not member.startswith("sentry-")]
    merged = ",".join([*kept, headers.get(BAGGAGE, "")]).strip(",")
    if len(merged) > MOST:
        merged = ",".join(kept)
    slim = {TRACE: headers[TRACE]}
    whole = {**headers, BAGGAGE: merged} if merged else slim
    for added in (whole, slim, {}):
        limit = room.here(added) - size_of(added.items())
        if not added or all(kept_size(new, added) <= limit for new in (spec.new, *spec.others)):
            break
    if len(added) < len(whole):
        room.left_out(spec.new.task, [name for name in whole if name not in added])
    return spec.with_headers(added) if added else spec


@contextmanager
def publishing(specs: Specs) -> Iterator[None]:
    """A span around a call that sends jobs, if a transaction is open."""
    if not specs or sentry_sdk.get_current_span() is None:
        yield
        return
    job = specs[0].new
    with sentry_sdk.start_span(op="queue.publish", name=job.queue, origin=ORIGIN) as span:
        span.set_data("messaging.system", "treadle")
        span.set_data("messaging.destination.name", job.queue)
        if len(specs) == 1:
            span.set_data("messaging.message.id", job.id)
            span.set_data("messaging.message.body.size", len(job.payload or ""))
        else:
            span.set_data("messaging.batch.message_count", len(specs))
        yield


@contextmanager
def running(*contexts: Context) -> Iterator[None]:
    """A transaction around a run, or around the call of a batch."""
    record, attempt = contexts[0].record, contexts[0].attempt
    transaction = sentry_sdk.continue_trace(
        _trace_of(contexts), op="queue.process", name=record.job.task, source="task", origin=ORIGIN
    )
    raised: BaseException | None = None
    with sentry_sdk.start_transaction(transaction) as span:
        span.set_data("messaging.system", "treadle")
        span.set_data("messaging.destination.name", record.job.queue)
        if len(contexts) == 1:
            span.set_data("messaging.message.id", record.job.id)
            span.set_data("messaging.message.retry.count", attempt - 1)
            span.set_data("messaging.message.receive.latency", _waited(contexts[0]) * 1_000)
        else:
            span.set_data("messaging.batch.message_count", len(contexts))
        try:
            yield
        except BaseException as error:
            raised = error
        # The SDK marks each transaction that an exception leaves as an "internal_error", so it is raised outside.
        span.set_status("ok" if raised is None else _status(raised))
    if raised is not None:
        raise raised


def _trace_of(contexts: tuple[Context, ...]) -> dict[str, str]:
    """The headers of the trace to continue. The first attempt of a job that did not wait long belongs to the trace of
    its sender; later runs begin a trace of their own."""
    if len(contexts) > 1 or contexts[0].attempt > 1 or contexts[0].lost or _waited(contexts[0]) > SAME_TRACE:
        return {}
    headers = contexts[0].headers
    return {name: headers[name] for name in (TRACE, BAGGAGE) if name in headers}


def _waited(context: Context) -> float:
    """Seconds between the moment at which the job was due and its start."""
    record = context.record
    started, due = record.started_at or record.created_at, record.return_position
    return max(0.0, started - (record.created_at if due is None else due))


def _status(error: BaseException) -> str:
    if isinstance(error, Defer | Suspend):  # it runs again later, as it should
        return "ok"
    return "internal_error" if isinstance(error, Exception) else "cancelled"
