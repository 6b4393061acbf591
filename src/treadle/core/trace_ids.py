"""The ids of the OpenTelemetry trace to which a log record belongs. This module does not import OpenTelemetry."""

from __future__ import annotations

import re
import sys
from typing import Any, Final, NamedTuple

_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?")


class TraceIds(NamedTuple):
    """A trace and a span of it, each in hexadecimal digits: 32 and 16 of them."""

    trace_id: str
    span_id: str


def active() -> TraceIds | None:
    """The span in which this code runs, such as the run of a job. None: there is none, or the program has not imported
    OpenTelemetry. It raises nothing: a logging filter may call it."""
    trace: Any = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    try:
        span = trace.get_current_span().get_span_context()
        return TraceIds(f"{span.trace_id:032x}", f"{span.span_id:016x}") if span.is_valid else None
    except Exception:  # it is being imported, or another package has this name
        return None


def of_traceparent(text: str | None) -> TraceIds | None:
    """The ids in a header `traceparent` of the W3C. None if it has another form."""
    match = _TRACEPARENT.fullmatch(text or "")
    return None if match is None else TraceIds(match[1], match[2])
