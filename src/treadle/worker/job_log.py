"""Logs the outcomes of a worker's jobs to the logger `treadle.jobs`, once the storage has confirmed them.

A job that succeeds costs nothing unless the level is DEBUG: only other outcomes are noted in `WorkerState.troubles`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from treadle.core import trace_ids
from treadle.core.errors import RemoteFailure, error_line, traceback_of, users_part
from treadle.core.events import Emitter, Event
from treadle.core.redaction import visible
from treadle.policy.error_text import is_deliberate

log = logging.getLogger("treadle.jobs")

OWN: Final = "treadle."  # prefix of the names of Treadle's own tasks: schedules, limits, leaders
LEVELS: Final = {
    "started": logging.DEBUG,
    "succeeded": logging.DEBUG,
    "deferred": logging.INFO,
    "cancelled": logging.INFO,
    "retrying": logging.WARNING,
    "lost": logging.WARNING,
    "reaped": logging.WARNING,
    "failed": logging.ERROR,
    "paused": logging.ERROR,
    "expired": logging.ERROR,
}
TEMPLATES: Final = {name: f"%s {name}" for name in LEVELS}
RAISED: Final = frozenset({"retrying", "failed", "expired", "paused"})  # an exception of the function can cause these


def wanted(name: str, task: str) -> bool:
    """Whether this event of a job of this task is logged. Treadle's own tasks are logged only if they fail."""
    level = LEVELS.get(name)
    return level is not None and (level >= logging.ERROR or not task.startswith(OWN)) and log.isEnabledFor(level)


Hide = Callable[[str], str]


def write(event: Event, error: BaseException | None = None, hide: Hide | None = None) -> None:
    """Log one record with the attributes that `JobFilter` adds.

    `exc_info` is the exception that the function raised, if it is known. `exc_text`, which standard formatters print
    instead, is the stored traceback: it has no lines of Treadle, and for a process task it is that of the child
    process. `hide` removes the secrets of the job. If the error has one, there is no `exc_info`, which would show it.
    """
    level, text = LEVELS[event.name], TEMPLATES[event.name]
    arguments, error_text = [event.task], str(event.error or "")
    if hide is not None and error_text:
        raw_text, error_text = error_text, hide(error_text)
        error = error if raw_text == error_text else None
    if summary := error_line(error_text):
        text, arguments = f"{text}: %s", [*arguments, visible(summary)]
    if event.delay is not None:
        pause = f"{event.delay:.1f}"
        text, arguments = f"{text}; again %s", [*arguments, "at once" if pause == "0.0" else f"in {pause} s"]
    record = log.makeRecord(
        log.name,
        level,
        __file__,
        0,
        text,
        tuple(arguments),
        _exc_info(error) if event.name in RAISED else None,
        extra=_fields(event),
    )
    if event.name in RAISED and (trace := traceback_of(error_text)) is not None:
        record.exc_text = visible(trace)
    log.handle(record)


def _fields(event: Event) -> dict[str, Any]:
    """The attributes of the record: those of `JobFilter`. Outside a span, the headers give the trace."""
    job = None if event.record is None else event.record.job
    trace = trace_ids.active()
    if trace is None and job is not None and (sent := trace_ids.of_traceparent(dict(job.headers).get("traceparent"))):
        trace = sent._replace(span_id="-")  # the trace of the call that sent the job
    return {
        "job": event.id,
        "task": event.task,
        "attempt": event.attempt,
        "worker": event.worker,
        "queue": event.queue,
        "workflow": event.id if job is None else job.root or job.id,
        "trace_id": "-" if trace is None else trace.trace_id,
        "span_id": "-" if trace is None else trace.span_id,
    }


def _exc_info(error: BaseException | None) -> Any:
    if error is None or is_deliberate(error):
        return None
    return type(error), error, None if isinstance(error, RemoteFailure) else users_part(error.__traceback__)


def follow(emitter: Emitter, worker: str) -> Callable[[], None]:
    """Log starts and successes of this worker if the level is DEBUG now. Returns a function that ends this."""

    def log_event(event: Event) -> None:
        if event.worker == worker and wanted(event.name, event.task):
            write(event)

    if not log.isEnabledFor(logging.DEBUG):
        return lambda: None
    for name in ("started", "succeeded"):
        emitter.on(name, log_event)

    def stop() -> None:
        for name in ("started", "succeeded"):
            emitter.off(name, log_event)

    return stop
