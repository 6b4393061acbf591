"""`TreadleInstrumentor`: `opentelemetry-instrument treadle worker MODULE:APP` records every App of the program.

It needs the package opentelemetry-instrumentation, which that command comes with. An App that the program gives a
`Tracing` of its own keeps that one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from typing import Any, Final

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]  # untyped

from treadle.app import App
from treadle.execution import every_app
from treadle.integrations.otel.tracing import AutomaticTracing, Tracing

PREFIX: Final = "OTEL_PYTHON_TREADLE_"
TRUE: Final = ("true", "1", "yes")


class TreadleInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """Adds a `Tracing` to every App of the program, outside of its own middleware; `instrument_app` to only one.

    `instrument(...)` takes the arguments of `Tracing`. Without them it reads the environment:
    OTEL_PYTHON_TREADLE_TRACES ("continued" or "linked"), OTEL_PYTHON_TREADLE_CONTINUE_WITHIN (seconds), and the
    switches OTEL_PYTHON_TREADLE_CREATE_SPANS, OTEL_PYTHON_TREADLE_RUNNER_SPANS and OTEL_PYTHON_TREADLE_QUEUE_METRICS
    ("true" or "false").
    """

    _undo: Callable[[], None] | None = None

    def instrumentation_dependencies(self) -> Collection[str]:
        """The versions of Treadle that this works with: the one it is a part of."""
        return ("treadle >= 0.1.0",)

    def _instrument(self, **kwargs: Any) -> None:
        options = {**from_environment(os.environ), **kwargs}
        AutomaticTracing(**options)  # raises BadOption here, and not in each App

        self._undo = every_app.add(lambda app: None if _has_tracing(app) else AutomaticTracing(**options))

    def _uninstrument(self, **kwargs: Any) -> None:
        """A worker that runs keeps its own."""
        if self._undo is not None:
            self._undo()
        self._undo = None

    @staticmethod
    def instrument_app(app: App, **options: Any) -> None:
        """Add a Tracing to this app, as its outermost middleware, unless it has one. Options as for `Tracing`."""
        if not _has_tracing(app):
            every_app.put_outermost(app, AutomaticTracing(**options))


def _has_tracing(app: App) -> bool:
    return any(isinstance(layer, Tracing) for layer in app._core.layers)


def from_environment(environ: Any) -> dict[str, Any]:
    """The arguments of `Tracing` in these variables."""
    options: dict[str, Any] = {}
    if traces := environ.get(f"{PREFIX}TRACES"):
        options["traces"] = traces
    if within := environ.get(f"{PREFIX}CONTINUE_WITHIN"):
        try:
            options["continue_within"] = float(within)
        except ValueError:
            options["continue_within"] = within  # the message of `Tracing` names the expected values
    for name in ("create_spans", "runner_spans", "queue_metrics"):
        if text := environ.get(PREFIX + name.upper()):
            options[name] = text.lower() in TRUE
    return options
