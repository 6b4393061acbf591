"""The default codec as an object, which a codec of the user's can wrap."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from treadle.serialization.tagged_json import decode_any, encode_any

_Names = Mapping[type, str]
_Classes = Mapping[str, type]
_Task = tuple[_Names, _Classes, bool]
_annotated: Final[ContextVar[_Task]] = ContextVar("treadle_annotated", default=({}, {}, False))


@contextmanager
def annotated_with(names: _Names, classes: _Classes) -> Iterator[None]:
    """Within this block DefaultCodec may write and make instances of these classes, which the task's annotations
    name. It writes instances of subclasses of str, int and float as that base: the caller compares what is read."""
    token = _annotated.set((names, classes, True))
    try:
        yield
    finally:
        _annotated.reset(token)


class DefaultCodec:
    """The codec of an app that has none of its own: plain JSON where that is enough, otherwise tagged JSON. A codec of
    yours may hand it what it does not handle itself. While a task's values are written or read, it handles instances of
    the classes that the task's annotations name."""

    def encode(self, value: object, /) -> str:
        """The text of a value. Raises ValueError, with the reason, for a value that cannot be stored."""
        names, _, flatten = _annotated.get()
        return encode_any(value, names, flatten=flatten)

    def decode(self, text: str, /) -> object:
        """The value of a text. Raises ValueError for a text that `encode` did not write."""
        return decode_any(text, _annotated.get()[1])
