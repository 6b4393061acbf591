"""Names and attributes of spans and metrics: OpenTelemetry's conventions for messaging, version 1.44, and "treadle.*".

No payload, result, lane, key or label of a job becomes an attribute. In metrics there is no id, worker or host either.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final
from urllib.parse import urlsplit

from opentelemetry.trace import Span, Status, StatusCode

from treadle.core.errors import RemoteFailure, error_line
from treadle.core.job import JobSpec
from treadle.core.model import NewJob, Record
from treadle.core.redaction import visible
from treadle.execution.job_run import running_here
from treadle.policy.error_text import text_of

SCHEMA: Final = "https://opentelemetry.io/schemas/1.44.0"
SCOPE: Final = "treadle"  # the name of the instrumentation

SYSTEM: Final = "messaging.system"
OPERATION: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
DESTINATION: Final = "messaging.destination.name"
MESSAGE: Final = "messaging.message.id"
CONVERSATION: Final = "messaging.message.conversation_id"
COUNT: Final = "messaging.batch.message_count"
CLIENT: Final = "messaging.client.id"
ERROR_TYPE: Final = "error.type"
SERVER: Final = "server.address"
OTHER_ERROR: Final = "_OTHER"  # the word of the conventions for a failure whose type has no name
EXCEPTION_TYPE, EXCEPTION_MESSAGE, EXCEPTION_STACK = "exception.type", "exception.message", "exception.stacktrace"

TASK: Final = "treadle.task"
ATTEMPT: Final = "treadle.attempt"
LOST: Final = "treadle.lost"
OUTCOME: Final = "treadle.outcome"
REASON: Final = "treadle.reason"
WAITED: Final = "treadle.waited"
DELAY: Final = "treadle.delay"
STEP: Final = "treadle.step"
STATE: Final = "treadle.state"

Attributes = dict[str, str | int | float]

_TYPE: Final = re.compile(r"[^\W\d][\w.:$]{0,99}")  # also Go's and Java's "main.Error", Rust's "mail::Error"


def of_sending(name: str, kind: str, jobs: Sequence[NewJob], server: str | None) -> Attributes:
    """The attributes of a call that sends these jobs; the queue and the task if all of them have the same."""
    about: Attributes = {SYSTEM: "treadle", OPERATION: name, OPERATION_TYPE: kind}
    first = jobs[0]
    if all(job.queue == first.queue for job in jobs):
        about[DESTINATION] = first.queue
    if all(job.task == first.task for job in jobs):
        about[TASK] = first.task
    if len(jobs) == 1:
        about[MESSAGE] = first.id
        workflow = first.root or (first.id if running_here() is None else None)
        if workflow is not None:  # a job that a run returns gets its workflow when it is stored
            about[CONVERSATION] = workflow
    else:
        about[COUNT] = len(jobs)
    if server is not None:
        about[SERVER] = server
    return about


def of_run(record: Record, worker: str | None, server: str | None) -> Attributes:
    """The attributes of a run of this job, as far as they are known when it begins."""
    job = record.job
    about: Attributes = {
        SYSTEM: "treadle",
        OPERATION: "run",
        OPERATION_TYPE: "process",
        DESTINATION: job.queue,
        MESSAGE: job.id,
        CONVERSATION: job.root or job.id,
        TASK: job.task,
        ATTEMPT: record.attempt + 1,
    }
    if worker:
        about[CLIENT] = worker
    if record.lost:
        about[LOST] = record.lost
    if server is not None:
        about[SERVER] = server
    return about


def jobs_of(specs: Sequence[JobSpec]) -> list[NewJob]:  # type: ignore[type-arg]
    """All jobs of these specs; a flow has several."""
    return [new for spec in specs for new in (*spec.others, spec.new)]


def span_name(operation: str, about: Mapping[str, object], key: str) -> str:
    """`enqueue mail`, or `enqueue` if the jobs differ."""
    name = about.get(key)
    return operation if name is None else f"{operation} {name}"


def error_type(error: BaseException) -> str:
    """The class of an exception. For an exception of another process, it is the class that it had there."""
    if isinstance(error, RemoteFailure):
        return error.type or type(error).__name__
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


class Failure:
    """The texts of an exception, or of the error that another program reported, for a span. They are the texts that
    Treadle stores: without its own frames. `hide` replaces what people must not see."""

    __slots__ = ("kind", "line", "message", "text")

    def __init__(self, error: BaseException | str, hide: Callable[[str], str] = str) -> None:
        self.text = hide(visible(error if isinstance(error, str) else text_of(error)))
        self.line = error_line(self.text)
        first, _, rest = self.line.partition(": ")
        self.kind = _type_in(first) if isinstance(error, str) else error_type(error)
        self.message = rest if first.rpartition(".")[2] == self.kind.rpartition(".")[2] else self.line

    def add_to(self, span: Span, more: Mapping[str, str] | None = None) -> None:
        """Add the event "exception"."""
        event = {EXCEPTION_TYPE: self.kind, EXCEPTION_MESSAGE: self.message, EXCEPTION_STACK: self.text}
        span.add_event("exception", {**event, **(more or {})})

    def mark(self, span: Span) -> None:
        """Add the event, and mark the span as failed."""
        self.add_to(span)
        span.set_attribute(ERROR_TYPE, self.kind)
        span.set_status(Status(StatusCode.ERROR, self.line))


def _type_in(text: str) -> str:
    """The type of a failure that another program reported: "ValueError" in "ValueError: no". A sentence is not taken
    for a type, because it may contain ids, and each of them would make a series of its own."""
    return text if _TYPE.fullmatch(text) else OTHER_ERROR


def server_of(url: str | None) -> str | None:
    """The host of a storage URL; None for files, memory, and storages without a URL."""
    try:
        return urlsplit(url or "").hostname or None
    except ValueError:  # several hosts of one URL
        return None
