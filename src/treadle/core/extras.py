"""The error for a package that is missing because the extra of Treadle that brings it is not installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needing(user: str, package: str, requirement: str, extra: str = "") -> Iterator[None]:
    """Around the imports of `user`. Raises ModuleNotFoundError with the command that installs the package."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != package:
            raise
        brought = f", or the extra treadle[{extra}]" if extra else ""
        text = f"{user} needs the package {package}: pip install '{requirement}'{brought}"
        raise ModuleNotFoundError(text, name=error.name) from None
