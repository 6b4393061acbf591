"""Parameters whose values the worker provides: they are no part of a call."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any


class Injected:
    """The base of a parameter's default that stands for a value of the worker."""

    __slots__ = ()


def call_signature(function: Callable[..., Any]) -> inspect.Signature:
    """The signature of a call, without the parameters that the worker fills. Raises TypeError and ValueError."""
    whole = inspect.signature(function)
    kept = [each for each in whole.parameters.values() if not isinstance(each.default, Injected)]
    return whole if len(kept) == len(whole.parameters) else whole.replace(parameters=kept)


def injected_names(function: Callable[..., Any]) -> tuple[str, ...]:
    """The names of the parameters that the worker fills; none if the signature cannot be read."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return ()
    return tuple(each.name for each in parameters if isinstance(each.default, Injected))


def evaluated(function: Any, without: Sequence[str] = ()) -> dict[str, Any]:
    """The evaluated annotations of a function, without those of these names: the parameters that the worker fills may
    have types that are imported for type checkers only. Raises NameError and AttributeError."""
    if not without:
        return typing.get_type_hints(function, include_extras=True)
    kept = {name: hint for name, hint in function.__annotations__.items() if name not in without}
    where = getattr(function, "__globals__", {})
    return typing.get_type_hints(SimpleNamespace(__annotations__=kept), where, include_extras=True)
