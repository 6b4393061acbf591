"""The function of a batch task: the types of one item and of its result, and the check of what a call returns."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from treadle.core.errors import BadResult, BadTask
from treadle.core.injected import evaluated, injected_names, refuse_misplaced, signature_of


def item_function(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of one item with the annotations of a single job. Raises BadTask if `function` cannot be a batch."""
    try:
        parameters = list(signature_of(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise BadTask(f"{name}: the signature of {function!r} cannot be read: {error}") from error
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [parameter for parameter in parameters if parameter.default is parameter.empty]
    if not parameters or parameters[0].kind not in by_place or len(needed) > 1:
        raise BadTask(f"{name}: expected one parameter, the list of items, found {signature_of(function)}")
    try:
        hints = evaluated(function, injected_names(function))
    except (NameError, AttributeError) as error:
        raise BadTask(
            f"{name}: an annotation uses a name that is unknown where the batch is defined: {error}; define or import "
            "it above, outside TYPE_CHECKING"
        ) from error
    refuse_misplaced(name, parameters, hints)
    taken = _element(name, hints.get(parameters[0].name, Any), "takes")
    result = _without_errors(_element(name, hints.get("return", Any), "returns"))

    def one(item: Any) -> Any: ...

    one.__annotations__.update({"item": taken, "return": result})
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
    kept = [
        member for member in typing.get_args(hint) if not (isinstance(member, type) and issubclass(member, Exception))
    ]
    union: Any = typing.Union[tuple(kept)] if kept else Any  # noqa: UP007  # built from a list
    return union


def answers(task: str, found: Any, count: int) -> list[Any]:
    """The results of one call as a list. Raises BadResult, which fails all items, if there is not one result per
    item."""
    if isinstance(found, str | bytes | Mapping) or not (hasattr(found, "__len__") and hasattr(found, "__iter__")):
        raise BadResult(task, f"of a batch must be a list with one result per item, found {type(found).__name__}")
    if len(found) != count:
        raise BadResult(task, f"of a batch must have one element per item: expected {count}, found {len(found)}")
    return list(found)
