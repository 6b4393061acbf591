"""Which event loop our own processes run on: uvloop where it is installed, else asyncio's.

Without it everybody would have to install uvloop, or `treadle worker` would take a tenth more CPU (12 or 13.5 us
a job from Redis, 49 or 54 from PostgreSQL at a concurrency of 16).
"""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from treadle.cli.output import USAGE, Stop

T = TypeVar("T")

LOOPS: Final = ("auto", "uvloop", "asyncio")


def check(name: str) -> None:
    """Raises Stop where this loop cannot be had."""
    if name == "uvloop" and not _is_there():
        raise Stop(USAGE, "--loop uvloop: it is not installed here: pip install 'uvloop>=0.21' (not for Windows)")


def run(work: Coroutine[Any, Any, T], name: str = "auto") -> T:
    """As `asyncio.run`, on this loop: one of LOOPS."""
    if name == "asyncio" or not _is_there():
        return asyncio.run(work)
    import uvloop

    return uvloop.run(work)


def _is_there() -> bool:
    return sys.platform != "win32" and importlib.util.find_spec("uvloop") is not None
