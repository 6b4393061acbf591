"""The providers that a program has set for all libraries; None while there is only the API, which records nothing."""

from __future__ import annotations

import os
from typing import Final

from opentelemetry import metrics, trace
from opentelemetry.metrics import _internal

OF_API: Final = ("opentelemetry.trace", "opentelemetry.metrics", "opentelemetry.metrics._internal")  # modules

# The API looks into the environment at each call while no provider is set, which takes 1.3 us. With these variables
# it loads a provider by their value; the names with an underscore are those of versions 1.0 to 1.45.
_BY_NAME: Final = any(os.environ.get(f"OTEL_PYTHON_{kind}_PROVIDER") for kind in ("TRACER", "METER"))
_UNKNOWN: Final = object()


def of_traces() -> trace.TracerProvider | None:
    if not _BY_NAME and getattr(trace, "_TRACER_PROVIDER", _UNKNOWN) is None:
        return None
    found = trace.get_tracer_provider()
    return None if records_nothing(found) else found


def of_metrics() -> metrics.MeterProvider | None:
    if not _BY_NAME and getattr(_internal, "_METER_PROVIDER", _UNKNOWN) is None:
        return None
    found = metrics.get_meter_provider()
    return None if records_nothing(found) else found


def records_nothing(provider: object) -> bool:
    """Whether this is a proxy or an empty provider of the API."""
    return type(provider).__module__ in OF_API
