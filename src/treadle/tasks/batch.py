"""Batch tasks: functions that take a list of items, each of which is a separate job.

Each item keeps its own retries, timeout, limits and result; only the call is shared.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Generic, TypeVar, overload

from treadle.tasks.core import BatchCore
from treadle.tasks.task import Task

X = TypeVar("X")
R = TypeVar("R")


class BatchTask(Task[[X], R, Any], Generic[X, R]):
    """A batch task: `embed.enqueue("hi")` is a job for one item. Calling the task calls the function with a list."""

    def __init__(self, core: BatchCore) -> None:
        super().__init__(core)
        self._core: BatchCore = core  # annotated here: a class annotation would apply to every task

    def __call__(self, items: Sequence[X], /, **dependencies: Any) -> Any:  # type: ignore[override]  # a call takes a list, a job one item
        """Call the function with a list of items; its dependencies, if it has any, by name."""
        if self._core.injector is not None:
            self._core.injector.check_direct_call((items,), dependencies)
        return self._core.function(items, **dependencies)

    @property
    def size(self) -> int:
        """Items per call at most."""
        return self._core.size

    @property
    def max_wait(self) -> float:
        """Seconds for which the first item of a call waits for others."""
        return self._core.max_wait


class BatchDecorator:
    """The type of `@app.batch(...)`, which infers the types of an item and of its result."""

    def __init__(self, decorate: Callable[[Callable[..., Any]], BatchTask[Any, Any]]) -> None:
        self._decorate = decorate

    @overload
    def __call__(
        self, function: Callable[[list[X]], Coroutine[Any, Any, Sequence[R | Exception]]], /
    ) -> BatchTask[X, R]: ...
    @overload
    def __call__(self, function: Callable[[list[X]], Sequence[R | Exception]], /) -> BatchTask[X, R]: ...
    def __call__(self, function: Callable[..., Any], /) -> Any:
        return self._decorate(function)
