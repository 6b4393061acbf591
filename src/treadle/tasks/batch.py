"""Batch tasks: functions that take many items at a time, of which each is a job of its own.

Without it an embedding model, a bulk insert or a paid API with a price per call would be called once for every job. An
item keeps its own retries, timeout, limits and result; only the call is shared.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Coroutine, Hashable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Generic, TypeVar, overload

from treadle.core import defaults
from treadle.errors import BadOption, BadResult, BadTask
from treadle.policy.judge import OnError
from treadle.policy.retry import seconds
from treadle.serialization import call_codec
from treadle.tasks.job_factory import JobFactory
from treadle.tasks.options import Options
from treadle.tasks.task import Computed, Kind, Task

X = TypeVar("X")
R = TypeVar("R")


class BatchTask(Task[[X], R, Any], Generic[X, R]):
    """A batch task: `embed.enqueue("hi")` is a job for one item; calling it calls the function with a list.

    size      most items of one call
    max_wait  s the first item of a call waits for others
    """

    _words = ("size", "max_wait", "by", "name", "kind", "on_error", "options", "codec")

    def __init__(
        self,
        maker: JobFactory,
        name: str,
        function: Callable[..., Any],
        kind: Kind | None,
        constants: Options,
        computed: Computed | None,
        on_error: OnError | None,
        codec_: call_codec.Codec | None,
        *,
        size: int,
        max_wait: float | timedelta,
        by: Callable[[Any], Hashable] | None,
    ) -> None:
        if kind == "process":
            raise BadTask(
                f'{name}: a batch cannot have kind="process": its items are jobs with times and ends of their own, and '
                "a process could only be killed under all of them; call a process pool from the function"
            )
        most: object = size
        if isinstance(most, bool) or not isinstance(most, int) or not 1 <= size <= defaults.CLAIM_MOST:
            raise BadOption("size", f"expected 1 to {defaults.CLAIM_MOST} items, found {size!r}")
        if by is not None and not callable(by):
            raise BadOption("by", f"expected a function from an item to a key, found {by!r}")
        self.size, self.max_wait, self.by = size, seconds(max_wait, "max_wait"), by
        super().__init__(
            maker, name, function, kind, constants, computed, on_error, codec_, shown=item_function(name, function)
        )
        self.runs, self.kind = self.kind, "batch"

    def __call__(self, items: Sequence[X], /) -> Any:  # type: ignore[override]  # a call takes them all, a job one
        """The function itself, with a list of items."""
        return self.function(items)  # type: ignore[arg-type]


def item_function(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of one item, for its annotations: what a job of this task takes and gives. Raises BadTask."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise BadTask(f"{name}: the signature of {function!r} cannot be read: {error}") from error
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [each for each in parameters if each.default is each.empty]
    if not parameters or parameters[0].kind not in by_place or len(needed) > 1:
        raise BadTask(f"{name}: a batch takes one argument, the list of its items, found {inspect.signature(function)}")
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except (NameError, AttributeError) as error:
        raise BadTask(
            f"{name}: an annotation names what cannot be found where the batch is defined: {error}; define or import "
            "it above, outside TYPE_CHECKING"
        ) from error
    taken = _element(name, hints.get(parameters[0].name, Any), "takes")
    given = _without_errors(_element(name, hints.get("return", Any), "returns"))

    def one(item: Any) -> Any: ...

    one.__annotations__.update({"item": taken, "return": given})
    return one


def _element(name: str, hint: Any, what: str) -> Any:
    """X of Sequence[X] and the like."""
    if hint is Any:
        return Any
    origin = typing.get_origin(hint) or hint
    if not isinstance(origin, type) or not issubclass(origin, Sequence) or issubclass(origin, str | bytes | tuple):
        raise BadTask(f"{name}: a batch {what} a sequence such as list[int], found the annotation {hint!r}")
    return (typing.get_args(hint) or (Any,))[0]


def _without_errors(hint: Any) -> Any:
    """What an item's result may be: an exception in its place is no result."""
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return hint
    kept = [each for each in typing.get_args(hint) if not (isinstance(each, type) and issubclass(each, Exception))]
    found: Any = typing.Union[tuple(kept)] if kept else Any  # noqa: UP007  # built from a list
    return found


def answers(task: str, found: Any, count: int) -> list[Any]:
    """What the function returned, one for each item. Raises BadResult, which fails them all."""
    if isinstance(found, str | bytes | Mapping) or not (hasattr(found, "__len__") and hasattr(found, "__iter__")):
        raise BadResult(task, f"of a batch is a list with one result per item, found {type(found).__name__}")
    if len(found) != count:
        raise BadResult(task, f"of a batch has one place per item: expected {count}, found {len(found)}")
    return list(found)


class BatchDecorator:
    """The type of `@app.batch(...)`: what an item is, and what becomes of it."""

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
