"""Reducers combine the results of a job's children into one value: the built-in ones, and those that an app registers.

A reducer is a plain function of a list. It runs once, when the parent ends.
"""

from __future__ import annotations

import functools
import operator
import typing
from collections.abc import Callable, Mapping
from typing import Any, Final

from treadle.core.errors import BadOption

Reducer = Callable[[list[Any]], Any]


def last(values: list[Any]) -> Any:
    """The last value; None if there is none."""
    return values[-1] if values else None


def first(values: list[Any]) -> Any:
    """The first value; None if there is none."""
    return values[0] if values else None


def total(values: list[Any]) -> Any:
    """The values combined with `+`: numbers are added, texts and lists joined. 0 if there is no value."""
    return functools.reduce(operator.add, values) if values else 0


BUILT_IN: Final[Mapping[str, Reducer]] = {"last": last, "first": first, "list": list, "sum": total}
DEFAULT: Final = "last"


def reducer_of(known: Mapping[str, Reducer], name: object) -> str:
    """The name, if there is such a reducer. Raises BadOption if not."""
    if not isinstance(name, str) or name not in known:
        raise BadOption("reduce", f"unknown reducer {name!r}; expected one of {', '.join(known)} (see app.reducer)")
    return name


def folded_type(known: Mapping[str, Reducer], name: str | None) -> Callable[[Any], Any] | None:
    """The function from the type of the children's value to the reducer's result type; None: the type stays. The type
    of an app's own reducer is its return annotation."""
    if name is None or name in ("last", "first", "sum"):
        return None
    if name == "list":
        return _listed
    try:
        own = typing.get_type_hints(known[name], include_extras=True).get("return", Any)
    except (NameError, TypeError):
        own = Any
    return lambda hint: own


def _listed(hint: Any) -> Any:
    return list[hint]
