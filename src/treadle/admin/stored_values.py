"""Decodes the texts of stored rows for display in Python, on the command line and over HTTP.

No function raises, because one bad row must not hide the others of a page. A row may come from another program or an
older version, and user code (codecs, constructors, `__repr__`) may raise anything, so every `except` is broad and falls
back to the stored text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from treadle.core.long_numbers import has_long_number
from treadle.core.plain_json import refuse_unbounded
from treadle.core.stored_text import placeholder
from treadle.serialization import MARK, call_codec, has_mark

SMALL: Final = 64 * 2**10  # bytes of a text whose tagged values are decoded
TAGS: Final = 64  # tagged values that are decoded in any such text, and one more for each EACH bytes
EACH: Final = 64

_raw = msgspec.json.Decoder(msgspec.Raw).decode


def raw(text: str) -> msgspec.Raw:
    """A JSON text as it is. Raises one of UNREADABLE."""
    refuse_unbounded(text)
    return _raw(text)


def arguments(payload: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments as plain values, or the payload as the only argument. Of arguments that cannot
    be read here, the words say where they are."""
    if (where := placeholder(payload)) is not None:
        return (where,), {}
    try:
        return call_codec.decode_foreign_call(payload)
    except Exception:
        return (payload,), {}


def value(text: str | None) -> Any:
    """The decoded result, or its text if it cannot be decoded."""
    if text is None or (where := placeholder(text)) is not None:
        return None if text is None else where
    try:
        return call_codec.decode_any(text)
    except Exception:
        return text


def is_shown_as_stored(text: str) -> bool:
    """Whether the text is JSON as it is shown, or has too many tagged values to be decoded: one takes up to 4 us.
    Raises ValueError for JSON that its readers would refuse."""
    if has_long_number(text):
        raise ValueError("expected shorter numbers")
    if not has_mark(text) or len(text) > SMALL:
        return True
    return text.count(MARK) + text.count(",") // 4 > TAGS + len(text) // EACH


def as_json(text: str) -> Any:
    """As `value`, but what JSON has stays JSON: to decode 8 MB of small values takes half a second."""
    try:
        return raw(text) if placeholder(text) is None and is_shown_as_stored(text) else value(text)
    except (ValueError, RecursionError):
        return text


def carried(value: object, text: str, encode: Callable[[object], bytes]) -> Any:
    """The value as encoded JSON, or its stored text if JSON cannot represent it.

    Each value is encoded on its own, so that one failure does not hide the other rows of a page.
    """
    try:
        return msgspec.Raw(encode(value))
    except Exception:
        return utf8(text)


def carried_call(
    args: Sequence[Any], kwargs: Mapping[str, Any], payload: str, encode: Callable[[object], bytes]
) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a call as encoded JSON, or the payload as the only argument."""
    try:
        return [msgspec.Raw(encode(arg)) for arg in args], {
            utf8(name): msgspec.Raw(encode(arg)) for name, arg in kwargs.items()
        }
    except Exception:
        return [utf8(payload)], {}


def shown(value: object, text: str) -> str:
    """The repr of a value; if that raises, the repr of its stored text."""
    try:
        return repr(value)
    except Exception:
        return repr(text)


def utf8(text: str) -> str:
    """The text with lone surrogates escaped, so that it can be encoded as UTF-8."""
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()
