"""The undos that a run has registered: functions that run, last one first, if the job does not succeed."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from treadle.core.model import Record
from treadle.durable.backend import DurableBackend
from treadle.durable.checkpoints import Checkpoints
from treadle.durable.step_codec import is_async
from treadle.policy import cleanups


class Undo(Struct, frozen=True):
    """A function with its arguments; `name`: that of its step."""

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Undos:
    """Those of one run."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self.registered: list[Undo] = []
        self.is_stored = cleanups.is_cleanup(record.job) or cleanups.is_stored(record)

    def add(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        shown = getattr(function, "__name__", type(function).__name__).strip("<>")
        name = f"undo:{len(self.registered) + 1}:{shown}"
        self.registered.append(Undo(name, _without_result(function), args, kwargs))

    @property
    def to_store(self) -> bool:
        """Whether the cleanup job must be stored before the next effect."""
        return bool(self.registered) and not self.is_stored

    async def store(self, backend: DurableBackend, checkpoints: Checkpoints) -> None:
        """Store the cleanup job, and note that with the next step."""
        await backend.store(cleanups.cleanup_of(self._record))
        self.is_stored = True
        checkpoints.note((cleanups.STORED, str(self._record.reopenings)))


def _without_result(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function without its result, which nothing reads: it may be one that cannot be stored."""

    async def awaited(*args: Any, **kwargs: Any) -> None:
        await function(*args, **kwargs)

    def called(*args: Any, **kwargs: Any) -> Any:
        value = function(*args, **kwargs)
        return value if inspect.isawaitable(value) else None

    return awaited if is_async(function) else called
