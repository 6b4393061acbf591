"""Calling ports that somebody else wrote: coroutine or plain, an end to every wait, one error for all of theirs.

Without it a plain function would stop the event loop, a lost answer would stop the storage for ever, and whatever a
driver raises would reach the worker as something it does not know to be worth another try.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from treadle.errors import StorageError, StorageUnavailable

PATIENCE = 15.0  # s for the answer of a port


class Port:
    """One of the three, to be called by the name of its methods."""

    def __init__(self, port: Any, kind: str, patience: float = PATIENCE) -> None:
        self.port, self._kind, self._patience = port, kind, patience

    def has(self, method: str) -> bool:
        return callable(getattr(self.port, method, None))

    def bound(self, name: str) -> float | None:
        """One of the bounds a port may declare; None: there is none."""
        found = getattr(self.port, name, None)
        return float(found) if isinstance(found, int | float) else None

    async def __call__(
        self, method: Callable[..., Any], *args: Any, patience: float | None = None, **named: Any
    ) -> Any:
        """The answer. Raises StorageUnavailable whatever went wrong: it is not known whether it was done."""
        name = getattr(method, "__name__", "call")
        try:
            async with asyncio.timeout(patience or self._patience):
                if inspect.iscoroutinefunction(method):
                    return await method(*args, **named)
                answer: Any = await asyncio.to_thread(method, *args, **named)
                return await answer if inspect.isawaitable(answer) else answer
        except StorageError:
            raise
        except Exception as error:
            what = "no answer" if isinstance(error, TimeoutError) else repr(error)
            raise StorageUnavailable(f"the {self._kind}, asked to {name}: {what}") from error


def here(tasks: set[asyncio.Task[Any]]) -> set[asyncio.Task[Any]]:
    """Those of the event loop that runs. Tasks of a loop that was closed never end, and cannot be cancelled."""
    return {task for task in tasks if task.get_loop() is asyncio.get_running_loop()}


async def soon(call: Awaitable[Any]) -> Any:
    """For what may fail without harm: answers None then."""
    try:
        return await call
    except StorageError:
        return None
