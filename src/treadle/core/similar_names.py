"""Finds the known name that a mistyped name is most similar to."""

from __future__ import annotations

import difflib
import heapq
from collections.abc import Iterable
from typing import Final

SHORT, LONG = 3, 80  # characters of a name that is compared; short names are similar without being mistyped
COMPARED: Final = 200  # known names that one name is compared with


def near(name: str, known: Iterable[str]) -> str:
    """The text "; did you mean 'x'?", or "" if no known name is similar."""
    close = closest(name, known)
    return "" if close is None else f"; did you mean {close!r}?"


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most similar; None if none is. A name without a dot is also compared with the last parts
    of the known ones, because most tasks are named MODULE.FUNCTION.

    Comparing two names of 200 characters takes 40 us. Therefore long names are skipped. If there are more than COMPARED
    names, so are those with another first character.
    """
    known = list(known)
    if (near := _closest(name, known)) is not None or "." in name:
        return near
    parts = {dotted.rpartition(".")[2]: dotted for dotted in sorted(known, reverse=True) if "." in dotted}
    if name in parts:
        return parts[name]
    return None if (part := _closest(name, parts)) is None else parts[part]


def _closest(name: str, known: Iterable[str]) -> str | None:
    if not SHORT <= len(name) <= LONG:
        return None
    alike = {
        other
        for other in known
        if SHORT <= len(other) <= LONG and 2 * min(len(other), len(name)) >= 0.6 * len(other + name)
    }
    if len(alike) > COMPARED:
        alike = {other for other in alike if other[:1] == name[:1]}
    matches = difflib.get_close_matches(name, heapq.nsmallest(COMPARED, alike - {name}), 1)
    return matches[0] if matches else None
