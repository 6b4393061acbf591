"""What tests of jobs need: a clock moved by hand, `drain`, storages and networks that fail on purpose, a
checker of what a fleet did, simulations of whole fleets, and the contract of storages.

Without it each project that uses Treadle would write these again, and each storage its own idea of the contract.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from treadle.testing.app import Call, Testing
from treadle.testing.clock import HandClock
from treadle.testing.drain import Endless, drain  # at once: else the name would be that of the module
from treadle.testing.given_storage import NotEmpty

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
    "Simulation",
    "SimulationFailed",
    "Testing",
    "conformance",
    "drain",
    "faults",
    "history",
    "simulate",
]


def __getattr__(name: str) -> Any:
    # the conformance tests need pytest; a clock does not
    if name in ("conformance", "faults", "history"):
        return import_module(f"treadle.testing.{name}")
    if name == "Proxy":
        return import_module("treadle.testing.proxy").Proxy
    if name in ("Simulation", "SimulationFailed", "simulate"):
        return getattr(import_module("treadle.testing.simulation"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
