"""Tools for testing jobs: a clock that the test advances, `drain`, storages and networks that fail on demand, a history
checker, simulations of whole fleets, and the conformance tests for storages."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from treadle.storage.proxy import StorageProxy
from treadle.testing.app import Testing
from treadle.testing.assertions import Call
from treadle.testing.clock import HandClock
from treadle.testing.drain import Endless, drain  # eager: otherwise `drain` would name the submodule
from treadle.testing.given_storage import NotEmpty
from treadle.testing.replay import Replayed, replay  # eager, as `drain`

if TYPE_CHECKING:
    from treadle.testing import conformance, faults, history
    from treadle.testing.proxy import Proxy
    from treadle.testing.simulation import Simulation, SimulationFailed, simulate

__all__ = [
    "Call",
    "Endless",
    "HandClock",
    "NotEmpty",
    "Proxy",
    "Replayed",
    "Simulation",
    "SimulationFailed",
    "StorageProxy",
    "Testing",
    "conformance",
    "drain",
    "faults",
    "history",
    "replay",
    "simulate",
]


def __getattr__(name: str) -> Any:
    # lazy: the conformance tests need pytest, a clock does not
    if name in ("conformance", "faults", "history"):
        return import_module(f"treadle.testing.{name}")
    if name == "Proxy":
        return import_module("treadle.testing.proxy").Proxy
    if name in ("Simulation", "SimulationFailed", "simulate"):
        return getattr(import_module("treadle.testing.simulation"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
