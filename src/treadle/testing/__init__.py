"""Tools for testing jobs: a clock that the test advances, `drain`, a history checker, and simulations of whole fleets.

The tests for storages and ports of your own are in a separate distribution, `treadle-testkit`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from treadle.storage import StorageProxy
from treadle.testing.app import Testing
from treadle.testing.assertions import Call
from treadle.testing.clock import HandClock
from treadle.testing.drain import Endless, drain  # eager: otherwise `drain` would name the submodule
from treadle.testing.given_storage import NotEmpty
from treadle.testing.replay import Replayed, replay  # eager, as `drain`

if TYPE_CHECKING:
    from treadle.testing import history
    from treadle.testing.simulation import Simulation, SimulationFailed, simulate
    from treadle.testing.sync_app import SyncTesting

__all__ = [
    "Call",
    "Endless",
    "HandClock",
    "NotEmpty",
    "Replayed",
    "Simulation",
    "SimulationFailed",
    "StorageProxy",
    "SyncTesting",
    "Testing",
    "drain",
    "history",
    "replay",
    "simulate",
]


def __getattr__(name: str) -> Any:
    # lazy: a test that only moves a clock does not pay for them
    if name == "history":
        return import_module("treadle.testing.history")
    if name in ("Simulation", "SimulationFailed", "simulate"):
        return getattr(import_module("treadle.testing.simulation"), name)
    if name == "SyncTesting":
        return getattr(import_module("treadle.testing.sync_app"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
