"""The providers that a program has set for all libraries, and whether they are only those of the API."""

from __future__ import annotations

import os
from typing import Any, Final

from opentelemetry import metrics, trace

OF_API: Final = ("opentelemetry.trace", "opentelemetry.metrics", "opentelemetry.metrics._internal")  # modules

TRACE: Final[Any] = trace
METRICS: Final[Any] = metrics._internal

# Without a provider, the API looks into the environment at each call, which takes 1.3 us. So we read its variables,
# which exist from version 1.0 to 1.45 at least; but not with these settings, with which the API loads a provider at its
# first use.
READABLE: Final = (
    hasattr(TRACE, "_TRACER_PROVIDER")
    and hasattr(METRICS, "_METER_PROVIDER")
    and not os.environ.get("OTEL_PYTHON_TRACER_PROVIDER")
    and not os.environ.get("OTEL_PYTHON_METER_PROVIDER")
)


def of_traces() -> trace.TracerProvider | None:
    return None if READABLE and TRACE._TRACER_PROVIDER is None else trace.get_tracer_provider()


def of_metrics() -> metrics.MeterProvider | None:
    return None if READABLE and METRICS._METER_PROVIDER is None else metrics.get_meter_provider()


def records_nothing(provider: object) -> bool:
    """Whether this is a proxy or an empty provider of the API."""
    return type(provider).__module__ in OF_API
