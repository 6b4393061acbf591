"""From many results to one value: the reducers everybody has, and the names under which an app registers its own.

Without it a parent of ten children would have ten results and no answer. A reducer is a plain function of a list;
it runs once, when the parent ends, so nothing is added up twice and no update is lost.
"""

from __future__ import annotations

import functools
import operator
import typing
from collections.abc import Callable, Mapping
from typing import Any, Final

from treadle.errors import BadOption

Reducer = Callable[[list[Any]], Any]


def last(values: list[Any]) -> Any:
    """What came last; None if nothing came."""
    return values[-1] if values else None


def first(values: list[Any]) -> Any:
    """What came first; None if nothing came."""
    return values[0] if values else None


def total(values: list[Any]) -> Any:
    """All of them added; 0 if nothing came. Texts and lists are joined."""
    return functools.reduce(operator.add, values) if values else 0


BUILT_IN: Final[Mapping[str, Reducer]] = {"last": last, "first": first, "list": list, "sum": total}
DEFAULT: Final = "last"


def reducer_of(known: Mapping[str, Reducer], name: object) -> str:
    """The name, if there is such a reducer. Raises BadOption."""
    if not isinstance(name, str) or name not in known:
        raise BadOption("reduce", f"there is no reducer {name!r}; there are {', '.join(known)} (see app.reducer)")
    return name


def folded_type(known: Mapping[str, Reducer], name: str | None) -> Callable[[Any], Any] | None:
    """How a reducer changes the type of what it is given; None: not at all. One of your own says it by its return
    annotation."""
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
