"""The types of the decorators `@app.task(...)`, `@app.cron(...)` and the like, and of options, for type checkers.

With them, a checker knows the parameters and the result of a task that is declared with options.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import Any, ParamSpec, TypedDict, TypeVar, overload

from treadle.core.errors import BadTask
from treadle.core.job import Continuation, JobSpec, Value
from treadle.tasks.options import Seconds
from treadle.tasks.task import Task
from treadle.tasks.when import HasId, When
from treadle.workflow import Flow

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C")
W = TypeVar("W")
V = TypeVar("V", bound=Value)


class WaitOptions(TypedDict, total=False):
    """Options that make all jobs of a call wait."""

    after: HasId | str | Iterable[HasId | str] | None
    when: When | None
    wait_timeout: Seconds | None


class EnqueueOptions(WaitOptions, total=False):
    """The options of `app.enqueue`."""

    within: Any


class Decorator:
    """The type of `@app.task(...)`: keeps the parameters and the result of the function."""

    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, Continuation[R, W]]], /
    ) -> Task[P, R, Coroutine[Any, Any, Continuation[R, W]], W]: ...
    @overload
    def __call__(self, function: Callable[P, Continuation[R, W]], /) -> Task[P, R, Continuation[R, W], W]: ...
    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, V]], /) -> Task[P, V, Coroutine[Any, Any, V]]: ...
    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R | JobSpec[R, R]]], /
    ) -> Task[P, R, Coroutine[Any, Any, R | JobSpec[R, R]]]: ...
    @overload
    def __call__(self, function: Callable[P, V], /) -> Task[P, V, V]: ...
    @overload
    def __call__(self, function: Callable[P, R | JobSpec[R, R]], /) -> Task[P, R, R | JobSpec[R, R]]: ...
    def __call__(self, function: Callable[..., Any], /) -> Any:
        return function


class ListDecorator:
    """The type of `@app.task(reduce="list")`: the workflow's value is a list of the children's results."""

    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, Flow[W, W]]], /
    ) -> Task[P, list[W], Coroutine[Any, Any, Flow[W, W]], list[W]]: ...
    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, Flow[R, W]]], /
    ) -> Task[P, R, Coroutine[Any, Any, Flow[R, W]], list[W]]: ...
    @overload
    def __call__(self, function: Callable[P, Flow[W, W]], /) -> Task[P, list[W], Flow[W, W], list[W]]: ...
    def __call__(self, function: Callable[..., Any], /) -> Any:
        return function


class AnyDecorator:
    """The type of `@app.task(reduce=<a reducer's name>)`: the type of the workflow's value is unknown."""

    def __call__(self, function: Callable[P, C], /) -> Task[P, Any, C, Any]:
        raise NotImplementedError


class Scheduled:
    """The type of `@app.cron(...)` and the like: returns a task as it is, and makes a function a task."""

    @overload
    def __call__(  # type: ignore[overload-overlap]  # a task is a function too
        self, task: Task[P, R, C], /
    ) -> Task[P, R, C]: ...
    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, R, Coroutine[Any, Any, R]]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R, R]: ...
    def __call__(self, function: Callable[..., Any], /) -> Any:
        return function


def name_of_function(function: Callable[..., Any]) -> str:
    """The default name of a task: `module.function`. Raises BadTask for a callable without a name."""
    qualified = getattr(function, "__qualname__", "<lambda>")
    if qualified.endswith("<lambda>"):
        raise BadTask(f"{function!r} has no name of its own: give name=, or write a def")
    qualified = qualified.replace("<locals>.", "").replace("<lambda>", "lambda")
    module = getattr(function, "__module__", "__main__")
    return qualified if module in ("__main__", "__mp_main__") else f"{module}.{qualified}"
