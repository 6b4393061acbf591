"""Estimates when a job starts and ends and when a queue is empty, by virtual runs of a copy of the queue.

`snapshot` reads a bounded copy, `fleet` runs it under the rules of the memory storage, `forecast` repeats that and
tries out changes. The estimates of one process are made one after the other, in a thread.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from treadle.admin.estimate.model import Change, Estimate, QueuePlan, Range
from treadle.admin.estimate.snapshot import Copying
from treadle.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from treadle.admin.estimate.forecast import estimate, plan
else:  # with the memory storage: a sixth of `from treadle import App`, for calls that few programs make
    __getattr__, __dir__ = lazy_names(__name__, globals(), {"treadle.admin.estimate.forecast": ("estimate", "plan")})

__all__ = ["Change", "Copying", "Estimate", "QueuePlan", "Range", "estimate", "in_turn", "plan"]

T = TypeVar("T")

_thread = ThreadPoolExecutor(1, "treadle-estimate")  # one at a time: each takes up to a second of CPU


def _forked() -> None:
    """Make an executor for this child: the copied one counts on a thread that exists in the parent only."""
    global _thread  # noqa: PLW0603 - a fork changes it
    _thread = ThreadPoolExecutor(1, "treadle-estimate")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


async def in_turn(call: Callable[[], T]) -> T:
    """Make an estimate in the thread for estimates, after all earlier ones."""
    return await asyncio.wrap_future(_thread.submit(call))
