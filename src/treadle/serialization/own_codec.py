"""A user's codec, and the checks that it restores what a task can send: such a loss would only show when a job runs.

A declaration tries examples of what the annotations allow. Instances of classes are not among them: making one would
call the user's code. A call therefore compares every value that JSON cannot represent with what the codec reads back.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin
from uuid import UUID

from treadle.core.errors import BadArgument, BadCodec
from treadle.serialization.annotations import LISTS, MAPPINGS, SETS, unwrap
from treadle.serialization.call_text import encoded_by
from treadle.serialization.comparison import difference, same
from treadle.serialization.default_codec import annotated_with
from treadle.serialization.tagged_json import Codec, is_plain
from treadle.serialization.tags import Unstorable, found, short
from treadle.serialization.type_check import TypeCheck

_Examples = Mapping[Any, tuple[object, ...]]

TYPICAL: Final[_Examples] = {  # by type; Any: no annotation
    NoneType: (None,),
    bool: (True,),
    int: (1,),
    float: (-2.5,),
    str: ("", "a \u20ac \U0001f9f5 \x00"),
    bytes: (b"\x00\xff",),
    Decimal: (Decimal("1.10"),),
    UUID: (UUID(int=7),),
    datetime: (
        datetime.fromisoformat("2024-02-29T12:30:01.000005"),
        datetime(2024, 2, 29, 12, 30, tzinfo=UTC),
    ),
    date: (date(2024, 2, 29),),
    time: (time(1, 2, 3, 4),),
    timedelta: (timedelta(days=-1, microseconds=1),),
    Exception: (ValueError("no"),),
    Any: (
        *(None, True, 1, -2.5, "", "a \u20ac \U0001f9f5 \x00", [None, [None], {"a": None}], [1, 1.0, True]),
        *({"": 1, "b": {}}, {"a": {"$t": 1}}, {"args": [], "kwargs": {}}),
    ),
}
EXTREME: Final[_Examples] = {  # a codec may refuse to encode these, but must not change them
    int: (2**53 + 1, -(2**200) - 1),
    float: (math.inf, math.nan),
    str: ("\ud800",),
    Any: (2**53 + 1, -(2**200) - 1),
}
DEEPEST: Final = 5  # levels of an annotation: more, and recursive ones, are left to the calls


class OwnCodec:
    """A user's codec, with the classes that the annotations of one task name."""

    def __init__(self, codec: Codec, names: Mapping[type, str], classes: Mapping[str, type]) -> None:
        self._codec, self._names, self._classes = codec, names, classes

    def write(self, value: object) -> str:
        """Raises whatever the codec raises."""
        with annotated_with(self._names, self._classes):
            return encoded_by(self._codec, value)

    def read(self, text: str) -> object:
        """Raises whatever the codec raises."""
        with annotated_with(self._names, self._classes):
            return self._codec.decode(text)

    def write_call(self, task: str, call: object) -> str:
        """Raises BadArgument."""
        try:
            return self.write(call)
        except Exception as error:  # whatever a user's codec raises
            why = f"was refused by {self._codec!r}: {type(error).__name__}: {error}"
            raise BadArgument(task, None, why) from error

    def call(self, task: str, text: str) -> object:
        """Raises BadArgument."""
        try:
            return self.read(text)
        except Exception as error:  # whatever a user's codec raises
            why = f"cannot be read by {self._codec!r}: {type(error).__name__}: {error}"
            raise BadArgument(task, None, why) from error

    def result(self, shape: TypeCheck, value: object) -> str:
        """Raises Unstorable, and whatever the codec raises."""
        if not shape.untyped:
            shape.check(value, 0)
        text = self.write(value)
        if not is_plain(value):  # JSON values were tried at the declaration
            self.compare(shape, value, shape.accept(self.read(text)))
        return text

    def compare(self, shape: TypeCheck, value: object, copy: object) -> None:
        """Raise Unstorable if the copy is not the value."""
        if not _is_kept(shape, value, copy):
            raise Unstorable(f"is changed by {self._codec!r}: {found(value)} becomes {found(copy)}")

    def probe(self, shape: TypeCheck, hint: Any, owner: str, in_call: bool = False) -> None:
        """Encode and decode examples of what this annotation allows, in a call or as a result. `owner` has the
        annotation, for messages. Raises BadCodec, with the first value that the codec cannot write or does not
        restore."""
        for examples in (TYPICAL, EXTREME):
            for value in _of(hint, examples):
                try:
                    shape.check(value, 0)
                except Unstorable:
                    continue  # an annotation may allow less than its type
                problem = self._problem(shape, value, in_call, may_refuse=examples is EXTREME)
                if problem is not None:
                    raise BadCodec(f"{self._codec!r} {problem}, which {owner} allows")

    def _problem(self, shape: TypeCheck, value: object, in_call: bool, may_refuse: bool) -> str | None:
        sent = {"args": [value], "kwargs": {"value": value}} if in_call else value
        try:
            text = self.write(sent)
        except Exception as error:  # a user's codec may raise anything
            return None if may_refuse else f"cannot encode {short(value)} ({type(error).__name__}: {error})"
        try:
            back: Any = self.read(text)
            copies = [
                shape.accept(copy) for copy in ((back["args"][0], back["kwargs"]["value"]) if in_call else (back,))
            ]
        except Exception as error:
            return f"cannot decode what it encoded for {short(value)} ({type(error).__name__}: {error})"
        for copy in copies:
            if not _is_kept(shape, value, copy):
                return f"does not restore {found(value)} but returns {found(copy)}"
        return None


def _of(hint: Any, leaves: _Examples, depth: int = 0) -> Iterator[object]:
    """Examples of the values that an annotation allows; a few of them may not fit it."""
    hint = unwrap(hint)
    origin, args = get_origin(hint), get_args(hint)
    kind = hint if origin is None else origin
    if depth > DEEPEST:
        return
    if kind in (Annotated, Union, UnionType):
        for part in args[:1] if kind is Annotated else args:
            yield from _of(part, leaves, depth)
    elif hasattr(hint, "__type_params__") and hasattr(hint, "__value__"):  # `type X = ...`
        yield from _of(hint.__value__, leaves, depth + 1)
    elif kind is Literal:
        yield from args
    elif kind is object or kind is Any or not isinstance(kind, type):
        yield from leaves.get(Any, ())
    elif issubclass(kind, Enum):
        yield from kind
    elif issubclass(kind, BaseException):
        yield from leaves.get(Exception, ())
    elif kind in (list, tuple, set, frozenset, *LISTS, *SETS, *MAPPINGS) or hasattr(kind, "__total__"):
        yield from _containers(kind, args, leaves, depth + 1)
    else:
        yield from leaves.get(kind, ())


def _containers(kind: Any, args: tuple[Any, ...], leaves: _Examples, depth: int) -> Iterator[object]:
    if hasattr(kind, "__total__"):
        fields = {name: tuple(_of(part, leaves, depth)) for name, part in typing.get_type_hints(kind).items()}
        yield {name: values[0] for name, values in fields.items() if values}
        return
    parts = [tuple(_of(part, leaves, depth)) for part in args if part is not ...]
    if kind in MAPPINGS:
        keys, values = parts or (("", "a"), leaves.get(Any, ()))
        yield from ({key: value} for key, value in zip(keys * len(values), values * len(keys), strict=True))
    elif kind is tuple and args[-1:] != (...,) and args:
        if all(parts):
            yield tuple(values[0] for values in parts)
    else:
        items = parts[0] if parts else leaves.get(Any, ())
        try:
            yield (set if kind in SETS else list if kind in LISTS else kind)(items)
        except TypeError:  # items that are not hashable
            return


def _is_kept(shape: TypeCheck, value: object, copy: object) -> bool:
    """Whether the copy is the value, apart from what its annotation converts."""
    return same(value, copy) if shape.untyped else difference(value, copy) is None
