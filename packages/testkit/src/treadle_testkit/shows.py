"""Marks a test with the behaviour that it shows, for the coverage page. Imports no pytest, so any law can use it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Test = TypeVar("Test", bound=Callable[..., Any])


def shows(*sentences: str, area: str | None = None) -> Callable[[Test], Test]:
    """Marks a test as the proof of these sentences: `@shows("a delayed job joins the queue when it is due")`.

    The marker does nothing at run time. `tools/coverage_page.py` reads it from the source, so each argument is a plain
    string. The page lists a sentence under the area of its file, unless `area` names another one.
    """

    def unchanged(test: Test) -> Test:
        return test

    return unchanged
