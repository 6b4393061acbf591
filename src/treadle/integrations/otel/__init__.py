"""OpenTelemetry: spans of enqueues, runs and durable steps, and metrics, by the conventions for messaging.

    app.middleware(Tracing())

or, without a change of the program, `opentelemetry-instrument treadle worker MODULE:APP`. It needs the extra:
`pip install 'treadle[otel]'`. Without an SDK that the program has set up, it records nothing and costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from treadle.core.extras import needing
from treadle.core.lazy_names import lazy_names
from treadle.core.trace_ids import TraceIds
from treadle.core.trace_ids import active as trace_ids

with needing(__name__, "opentelemetry", "opentelemetry-api>=1.30", "otel"):
    from treadle.integrations.otel.tracing import Tracing

if TYPE_CHECKING:
    from treadle.integrations.otel.instrumentor import TreadleInstrumentor

__all__ = ["TraceIds", "Tracing", "TreadleInstrumentor", "trace_ids"]

# It needs opentelemetry-instrumentation, which programs with `app.middleware(Tracing())` may not have.
__getattr__, __dir__ = lazy_names(
    __name__, globals(), {"treadle.integrations.otel.instrumentor": ("TreadleInstrumentor",)}
)
