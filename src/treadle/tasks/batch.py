"""Batch tasks: functions that take a list of items, each of which is a separate job.

Each item keeps its own retries, timeout, limits and result; only the call is shared.
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
    """A batch task: `embed.enqueue("hi")` is a job for one item. Calling the task calls the function with a list.

    size      items per call at most
    max_wait  s for which the first item of a call waits for others
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
                f'{name}: a batch cannot have kind="process", because its items are jobs with their own timeouts, and '
                "a process could only be killed for all of them; call a process pool from the function"
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

    def __call__(self, items: Sequence[X], /) -> Any:  # type: ignore[override]  # a call takes a list, a job one item
        """Call the function with a list of items."""
        return self.function(items)  # type: ignore[arg-type]


def item_function(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of one item with the annotations of a single job. Raises BadTask if `function` cannot be a batch."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise BadTask(f"{name}: the signature of {function!r} cannot be read: {error}") from error
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [each for each in parameters if each.default is each.empty]
    if not parameters or parameters[0].kind not in by_place or len(needed) > 1:
        raise BadTask(f"{name}: expected one parameter, the list of items, found {inspect.signature(function)}")
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except (NameError, AttributeError) as error:
        raise BadTask(
            f"{name}: an annotation uses a name that is unknown where the batch is defined: {error}; define or import "
            "it above, outside TYPE_CHECKING"
        ) from error
    taken = _element(name, hints.get(parameters[0].name, Any), "takes")
    given = _without_errors(_element(name, hints.get("return", Any), "returns"))

    def one(item: Any) -> Any: ...

    one.__annotations__.update({"item": taken, "return": given})
    return one


def _element(name: str, hint: Any, what: str) -> Any:
    """X of Sequence[X] and its subclasses. Raises BadTask."""
    if hint is Any:
        return Any
    origin = typing.get_origin(hint) or hint
    if not isinstance(origin, type) or not issubclass(origin, Sequence) or issubclass(origin, str | bytes | tuple):
        raise BadTask(f"{name}: a batch {what} a sequence such as list[int], found the annotation {hint!r}")
    return (typing.get_args(hint) or (Any,))[0]


def _without_errors(hint: Any) -> Any:
    """The result type of one item: without the exception types of a union, which mark failed items."""
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return hint
    kept = [each for each in typing.get_args(hint) if not (isinstance(each, type) and issubclass(each, Exception))]
    found: Any = typing.Union[tuple(kept)] if kept else Any  # noqa: UP007  # built from a list
    return found


def answers(task: str, found: Any, count: int) -> list[Any]:
    """The results of one call as a list. Raises BadResult, which fails all items, if there is not one result per
    item."""
    if isinstance(found, str | bytes | Mapping) or not (hasattr(found, "__len__") and hasattr(found, "__iter__")):
        raise BadResult(task, f"of a batch must be a list with one result per item, found {type(found).__name__}")
    if len(found) != count:
        raise BadResult(task, f"of a batch must have one element per item: expected {count}, found {len(found)}")
    return list(found)


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
