"""Calls the ports that users write. Plain functions run in a thread, and every call has a time limit.

Every error of a port becomes StorageUnavailable, because the worker repeats a call only after that error.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from treadle.core.errors import StorageError, StorageUnavailable

log = logging.getLogger("treadle")

PATIENCE = 15.0  # seconds to wait for the answer of a port


class Port:
    """One of the three ports. Call it with one of the port's methods and the arguments."""

    def __init__(self, port: Any, kind: str, patience: float = PATIENCE) -> None:
        self.port, self._kind, self._patience = port, kind, patience

    def has(self, method: str) -> bool:
        return callable(getattr(self.port, method, None))

    def bound(self, name: str) -> float | None:
        """The value of a bound that the port may declare; None: it declares none."""
        value = getattr(self.port, name, None)
        return float(value) if isinstance(value, int | float) else None

    async def __call__(
        self, method: Callable[..., Any], *args: Any, patience: float | None = None, **named: Any
    ) -> Any:
        """Return the answer. Raises StorageUnavailable for every error: it is unknown whether the call took effect."""
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
            raise StorageUnavailable(f"{name} of the {self._kind} failed: {what}") from error


def here(tasks: set[asyncio.Task[Any]]) -> set[asyncio.Task[Any]]:
    """The tasks of the running event loop. Tasks of a closed loop never end and cannot be cancelled."""
    return {task for task in tasks if task.get_loop() is asyncio.get_running_loop()}


async def soon(call: Awaitable[Any]) -> Any:
    """Await a call that may fail without harm; return None if it does."""
    try:
        return await call
    except StorageError:
        return None


async def quietly(work: Callable[[], Awaitable[None]]) -> None:
    """Do background work, which may fail without harm."""
    try:
        await work()
    except StorageError as error:
        log.debug("background work of the storage failed: %s", error)
