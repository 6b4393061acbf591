"""The tag, the bounds and the errors of tagged JSON, shared by its writer and its reader."""

from __future__ import annotations

import dataclasses
import sys
import traceback
from typing import Any, Final

from msgspec import MsgspecError, Struct

from treadle.core.errors import TreadleError
from treadle.core.job import Continuation

TAG: Final = "$t"
MARK: Final = '"$t"'  # a text with these characters is tagged. In JSON, a string value with them has its quotes escaped
STACK: Final = 4_000  # characters of a traceback; the last ones are kept
MAX_DEPTH: Final = 100  # nested containers; deeper is a cycle or a mistake


class Unstorable(TreadleError, ValueError):
    """A value that the format cannot represent, or a text that cannot be decoded. `path` leads from the outermost value
    to the wrong one."""

    def __init__(self, problem: str, path: str = "") -> None:
        self.problem, self.path = problem, path
        super().__init__(problem, path)

    def under(self, step: str) -> None:
        """Prefix the path with a container. The path of a cycle is cut off at 200 characters."""
        if len(self.path) < 200:
            self.path = step + self.path

    def __str__(self) -> str:
        return f"at {self.path} {self.problem}" if self.path else self.problem


class RemoteError(Exception):
    """An exception of another process, as data: the name of its class and its message.

    stack  its traceback as text; "" if it was never raised. It does not count in comparisons
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
    """The message of any exception."""
    try:
        return str(error)
    except Exception:  # a broken __str__ must not hide the failure itself
        return "(its message cannot be read)"


def _stack_of(error: Exception) -> str:
    """Its traceback, at most STACK characters; "" if it was never raised."""
    if error.__traceback__ is None:
        return ""
    try:
        text = "".join(traceback.format_exception(error)).rstrip()
    except Exception:  # the exception or its cause may raise when it is formatted
        text = "".join(traceback.format_tb(error.__traceback__)).rstrip()
    return text if len(text) <= STACK else f"... (shortened) ...\n{text[-STACK:]}"


def short(value: object, most: int = 60) -> str:
    """A repr of at most `most` characters, which never raises."""
    try:
        text = repr(value)
    except Exception:  # a broken __repr__, or a tree nested too deeply
        return "..."
    return text if len(text) <= most else text[: most - 3] + "..."


def found(value: object) -> str:
    """A value as messages show it: ``int (42)``."""
    return "None" if value is None else f"{type(value).__name__} ({short(value)})"


def is_model(kind: object) -> bool:
    """Whether a class is a pydantic model. Does not import pydantic."""
    pydantic = sys.modules.get("pydantic")
    return (
        pydantic is not None
        and isinstance(kind, type)
        and issubclass(kind, pydantic.BaseModel)
        and kind is not pydantic.BaseModel  # no value is an instance of it
    )


def is_record(kind: type) -> bool:
    """Whether a class is a Struct, dataclass or NamedTuple class."""
    if issubclass(kind, Struct):
        return not issubclass(kind, Continuation)  # a spec is not data
    return dataclasses.is_dataclass(kind) or (issubclass(kind, tuple) and hasattr(kind, "_fields"))


def field_names(kind: Any) -> tuple[str, ...]:
    """The field names of such a class."""
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    names: tuple[str, ...] = kind.__struct_fields__ if issubclass(kind, Struct) else kind._fields
    return names


def flat(value: str | int | float) -> str | int | float:
    """An instance of a subclass of str, int or float as an instance of that base."""
    if isinstance(value, str):
        return str.__str__(value)
    return int.__index__(value) if isinstance(value, int) else float.__float__(value)


def reason(error: BaseException) -> tuple[str, str]:
    """The message of an error of msgspec, pydantic or a user's class in our style, and the path to the value."""
    if isinstance(error, Unstorable):
        return error.problem, error.path
    text, path = str(error), ""
    if isinstance(error, MsgspecError):
        text, _, path = text.partition(" - at `$")
        error, path = error.__cause__ or error, path.rstrip("`")
    pydantic = sys.modules.get("pydantic")
    if pydantic is not None and isinstance(error, pydantic.ValidationError):
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        path += "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in first["loc"])
        text = first["msg"]
    elif not isinstance(error, MsgspecError):
        return f"{type(error).__name__}: {short(str(error), 200)}", path
    return (text[:1].lower() + text[1:]).replace("`", ""), path
