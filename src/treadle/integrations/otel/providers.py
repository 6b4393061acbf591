"""The providers that a program has set for all libraries; None while there is only the API, which records nothing."""

from __future__ import annotations

import os
from typing import Any, Final

from opentelemetry import metrics, trace

OF_API: Final = ("opentelemetry.trace", "opentelemetry.metrics", "opentelemetry.metrics._internal")  # modules

TRACE: Final[Any] = trace
METRICS: Final[Any] = metrics._internal

# Without a provider, the API looks into the environment at each call, which takes 1.3 us. So its variables are read,
# which exist from version 1.0 to 1.45 at least. Not with these settings, by which it loads a provider when it is used.
READABLE: Final = (
    hasattr(TRACE, "_TRACER_PROVIDER")
    and hasattr(METRICS, "_METER_PROVIDER")
    and not os.environ.get("OTEL_PYTHON_TRACER_PROVIDER")
    and not os.environ.get("OTEL_PYTHON_METER_PROVIDER")
)


def of_traces() -> trace.TracerProvider | None:
    if READABLE and TRACE._TRACER_PROVIDER is None:
        return None
    provider = trace.get_tracer_provider()
    return None if records_nothing(provider) else provider


def of_metrics() -> metrics.MeterProvider | None:
    if READABLE and METRICS._METER_PROVIDER is None:
        return None
    provider = metrics.get_meter_provider()
    return None if records_nothing(provider) else provider


def records_nothing(provider: object) -> bool:
    """Whether this is a proxy or an empty provider of the API."""
    return type(provider).__module__ in OF_API
