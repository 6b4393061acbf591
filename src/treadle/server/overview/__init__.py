"""The present state of a storage for people: one look at a time for all readers of a server process."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from treadle.server.overview.activity import Recent
from treadle.server.overview.compose import compose
from treadle.server.overview.filling import counted
from treadle.server.overview.look import Look
from treadle.server.overview.views import Notice, Overview, QueueOverview, WorkerView

if TYPE_CHECKING:
    from treadle.server.overview.looks import Looks

__all__ = ["Look", "Looks", "Notice", "Overview", "QueueOverview", "Recent", "WorkerView", "compose", "counted"]


def __getattr__(name: str) -> Any:
    # lazy: `treadle top` composes overviews without the web framework
    if name == "Looks":
        return import_module("treadle.server.overview.looks").Looks
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
