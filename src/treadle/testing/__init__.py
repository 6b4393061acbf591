"""What tests of jobs need: a clock moved by hand, and the contract every storage is held to.

Without it each project that uses Treadle would write these again, and each storage its own idea of the contract.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from treadle.testing.clock import HandClock

if TYPE_CHECKING:
    from treadle.testing import contract

__all__ = ["HandClock", "contract"]


def __getattr__(name: str) -> Any:
    # the contract needs pytest; a clock does not
    if name == "contract":
        return import_module("treadle.testing.contract")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
