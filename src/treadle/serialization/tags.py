"""What writing and reading tagged JSON have in common: the tag, the bounds, the errors."""

from __future__ import annotations

import sys
import traceback
from typing import Any, Final

from treadle.errors import TreadleError

TAG: Final = "$t"


MARK: Final = '"$t"'  # in a text: it is tagged. A text value holding these characters has its quotes escaped


STACK: Final = 4_000  # characters of a traceback, the last ones


MAX_DEPTH: Final = 100  # containers inside each other; deeper is a cycle or a mistake


class Unstorable(TreadleError, ValueError):
    """A value the form cannot carry, or a text it cannot read. `path` leads from the outermost value to it."""

    def __init__(self, problem: str, path: str = "") -> None:
        self.problem, self.path = problem, path
        super().__init__(problem, path)

    def under(self, step: str) -> None:
        """Says that the value stands one container further in. A cycle's path ends somewhere."""
        if len(self.path) < 200:
            self.path = step + self.path

    def __str__(self) -> str:
        return f"at {self.path} {self.problem}" if self.path else self.problem


class RemoteError(Exception):
    """An exception that crossed a process as data: the name of its class and its message, never the class.

    stack  its traceback as text; empty if it was never raised. Two that differ in it only are equal
    """

    def __init__(self, type: str, message: str, stack: str = "") -> None:
        self.type, self.message, self.stack = type, message, stack
        super().__init__(type, message)

    def __reduce__(self) -> tuple[Any, ...]:
        return RemoteError, (self.type, self.message, self.stack)

    def __str__(self) -> str:
        return self.message

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemoteError) and self.args == other.args

    def __hash__(self) -> int:
        return hash(self.args)


def message_of(error: Exception) -> str:
    """What the exception says, whatever it is."""
    try:
        return str(error)
    except Exception:  # a broken __str__ must not lose the failure itself
        return "(its message cannot be read)"


def _stack_of(error: Exception) -> str:
    """Its traceback, at most STACK characters; empty if it was never raised."""
    if error.__traceback__ is None:
        return ""
    try:
        text = "".join(traceback.format_exception(error)).rstrip()
    except Exception:  # a broken __str__ of it, or of what was behind it
        text = "".join(traceback.format_tb(error.__traceback__)).rstrip()
    return text if len(text) <= STACK else f"... (shortened) ...\n{text[-STACK:]}"


def short(value: object, most: int = 60) -> str:
    """A repr that cannot fail, of at most `most` characters."""
    try:
        text = repr(value)
    except Exception:  # somebody's broken __repr__, or a tree too deep to show
        return "..."
    return text if len(text) <= most else text[: most - 3] + "..."


def found(value: object) -> str:
    """What was found, for messages: ``int (42)``."""
    return "None" if value is None else f"{type(value).__name__} ({short(value)})"


def is_model(kind: object) -> bool:
    """Whether a class is a pydantic model; pydantic is never imported for it."""
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(kind, type) and issubclass(kind, pydantic.BaseModel)
