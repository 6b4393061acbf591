"""What the texts of a stored row say, for every look at it: from Python, from the command line and over HTTP.

A row may come from another program or from before a check was written. Nothing here raises: a text that cannot be read
stands for itself, and one look at a page of jobs shows all of them. So every `except` here takes any exception; those
of user code (codecs, constructors, `__repr__`) are among them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from treadle.serialization import call_codec


def arguments(payload: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments by place and by name as plain values, or else the payload as the only argument."""
    try:
        return call_codec.decode_foreign_call(payload)
    except Exception:
        return (payload,), {}


def value(text: str | None) -> Any:
    """A result, or the text of one that cannot be read."""
    if text is None:
        return None
    try:
        return call_codec.decode_any(text)
    except Exception:
        return text


def carried(value: object, text: str, encode: Callable[[object], bytes]) -> Any:
    """A value as the JSON that `encode` makes of it, or else its stored text. The value is encoded here and not with
    the whole answer: what JSON cannot carry must not hide the other rows of a page."""
    try:
        return msgspec.Raw(encode(value))
    except Exception:
        return utf8(text)


def carried_call(
    args: Sequence[Any], kwargs: Mapping[str, Any], payload: str, encode: Callable[[object], bytes]
) -> tuple[list[Any], dict[str, Any]]:
    """The same for the arguments of a call."""
    try:
        return [msgspec.Raw(encode(each)) for each in args], {
            utf8(name): msgspec.Raw(encode(each)) for name, each in kwargs.items()
        }
    except Exception:
        return [utf8(payload)], {}


def progress(note: str | None) -> tuple[float | None, str | None]:
    """The share that is done, and the words to it. A note of another form is words alone."""
    if note is None:
        return None, None
    try:
        found = msgspec.json.decode(note)
        return float(found["progress"]) if "progress" in found else None, str(found["text"])
    except Exception:
        return None, note


def shown(value: object, text: str) -> str:
    """The repr of a value, or else that of its stored text."""
    try:
        return repr(value)
    except Exception:
        return repr(text)


def utf8(text: str) -> str:
    """The text with each half of a character as its escape, so that UTF-8 can hold it."""
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()
