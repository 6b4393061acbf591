"""One shape: what a live value is held to, what reads it from text, and how it is called in messages.

Without it there would be annotations and no verdicts. Here is also what all shapes are put together from: the plain
types, and the parts of a whole with the path to what does not fit.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from types import NoneType
from typing import Any, Final, get_origin
from uuid import UUID

import msgspec

from treadle.serialization import tagged_json, tags
from treadle.serialization.tags import RemoteError, Unstorable, found


class _Missing(Enum):
    MISSING = "missing"


MISSING: Final = _Missing.MISSING
"""No value was given, where None is one."""

NOTHING: Final[frozenset[type]] = frozenset()
_Check = Callable[[Any, int], bool]
_EXACT: Final = (str, int, bool, NoneType, bytes, date, timedelta, Decimal, UUID, msgspec.UnsetType)


def enc_hook(value: Any) -> object:
    """What msgspec does not know by itself: pydantic models, and subclasses of str, int and float."""
    if tags.is_model(type(value)):
        text = value.model_dump_json(by_alias=True, round_trip=True).encode()
        if type(value).model_validate_json(text) != value:  # bytes, NaN, one-way aliases: let the tagged form try
            raise ValueError("does not survive its own JSON")
        return msgspec.Raw(text)
    if isinstance(value, (str, int, float)):
        return tagged_json.flat(value)
    raise NotImplementedError


def dec_hook(kind: Any, raw: object) -> object:
    if tags.is_model(kind):
        return raw if type(raw) is kind else kind.model_validate_json(msgspec.json.encode(raw))
    raise NotImplementedError


encode_plain = msgspec.json.Encoder(enc_hook=enc_hook).encode


class TypeCheck:
    """One annotation, compiled. `check` raises Unstorable for a value that does not fit and says whether plain JSON
    can carry it; values of the types in `exact` need no check; `wire` is what msgspec decodes (Any if it refuses the
    annotation, which is then `loose`); `says` is how messages call it."""

    __slots__ = ("check", "exact", "loose", "says", "wire")

    def __init__(self, says: str, wire: Any = Any, loose: bool = False, exact: frozenset[type] = NOTHING) -> None:
        self.says, self.wire, self.loose, self.exact = says, wire, loose, exact
        self.check: _Check = self.refuse

    @property
    def untyped(self) -> bool:
        """Whether it says nothing: Any, object, no annotation."""
        return self.wire is Any and not self.loose

    def refuse(self, value: object, depth: int) -> bool:
        raise Unstorable(f"expected {self.says}, got {found(value)}")

    def settle(self, keep: bool = True) -> TypeCheck:
        """Falls back to the tagged form if msgspec refuses the annotation, or `keep` says it would lose something."""
        if not (keep and not self.loose and is_usable(self.wire)):
            check = self.check
            self.wire, self.loose, self.exact = Any, True, NOTHING
            self.check = lambda value, depth: check(value, depth) and False
        return self

    def accept(self, value: object) -> object:
        """A value from elsewhere: as it is if it fits, else read as the JSON form of the annotation."""
        if self.untyped:
            return value
        try:
            self.check(value, 0)
        except Unstorable:
            if self.loose:
                raise
            try:
                return msgspec.convert(value, self.wire, str_keys=True, dec_hook=dec_hook)
            except Exception as error:  # the classes are the user's, and so is what their constructors raise
                why = reason(error)
            raise Unstorable(*why) from None
        return value


# --- a whole and its parts


def part_fits(shape: TypeCheck, value: object, depth: int, step: str) -> bool:
    if type(value) in shape.exact:
        return True
    try:
        return shape.check(value, depth + 1)
    except Unstorable as error:
        error.under(step)
        raise


def every(verdicts: Iterable[bool]) -> bool:
    """Like `all`, but asks each: the first may only need the tagged form, and the second not fit."""
    return False not in tuple(verdicts)


def each(item: TypeCheck, values: Any, depth: int) -> bool:
    """Checks all the items of a list, tuple or set, or the values of a dict: in C where types alone decide."""
    keyed = type(values) is dict
    if item.exact and item.exact.issuperset(map(type, values.values() if keyed else values)):
        return True
    if item.untyped and tagged_json.is_plain(values):
        return True
    pairs = values.items() if keyed else enumerate(values)
    return every(part_fits(item, one, depth, f"[{key!r}]") for key, one in pairs)


# --- the plain types


def scalar(kind: Any) -> TypeCheck | None:
    if kind in _EXACT:
        return _leaf(kind)
    if kind is float:
        return _floats()
    return _moments(kind) if kind is datetime or kind is time else None


def _leaf(kind: type) -> TypeCheck:
    shape = TypeCheck("None" if kind is NoneType else kind.__name__, kind, exact=frozenset((kind,)))
    roomy = kind in (str, int)

    def check(value: object, depth: int) -> bool:
        if type(value) is kind or (roomy and isinstance(value, kind) and type(value) is not bool):
            return True
        return shape.refuse(value, depth)

    shape.check = check
    return shape


def _floats() -> TypeCheck:
    shape = TypeCheck("float", float)

    def check(value: Any, depth: int) -> bool:
        if isinstance(value, float):
            return math.isfinite(value)
        if not isinstance(value, int) or type(value) is bool:
            return shape.refuse(value, depth)
        if value.bit_length() > 1024 or int(float(value)) != value:
            raise Unstorable(f"expected float, got {found(value)}, which no float is equal to")
        return True

    shape.check = check
    return shape


def _moments(kind: Any) -> TypeCheck:
    shape = TypeCheck(kind.__name__, kind)

    def check(value: Any, depth: int) -> bool:
        if type(value) is not kind:
            return shape.refuse(value, depth)
        if value.tzinfo is None or value.tzinfo is UTC:
            return True
        offset = value.utcoffset()
        if offset is None:
            raise Unstorable(f"expected {shape.says} with a fixed offset or none, got {found(value)}")
        return not offset.microseconds and not offset.seconds % 60  # else ISO 8601 as others read it would round it

    shape.check = check
    return shape


def instances(kind: type, exact: frozenset[type] = NOTHING) -> TypeCheck:
    shape = TypeCheck(says(kind), kind, exact=exact)

    def check(value: object, depth: int) -> bool:
        return True if type(value) is kind else shape.refuse(value, depth)

    shape.check = check
    return shape


def opaque(kind: type) -> TypeCheck:
    """Any other class: looked at, then left to the tagged form, which carries exceptions and refuses the rest."""
    shape = TypeCheck(says(kind), loose=True)

    def check(value: object, depth: int) -> bool:
        if isinstance(value, kind) or (issubclass(kind, BaseException) and isinstance(value, RemoteError)):
            return False
        return shape.refuse(value, depth)

    shape.check = check
    return shape


# --- words


def says(hint: Any) -> str:
    if isinstance(hint, type) and get_origin(hint) is None:
        return hint.__qualname__.rpartition("<locals>.")[2]
    return re.sub(r"[\w.<>]+\.(?=\w)", "", str(hint)).replace("NoneType", "None")


def is_usable(wire: Any) -> bool:
    try:
        msgspec.json.Decoder(wire, dec_hook=dec_hook)
    except Exception:  # TypeError mostly, and whatever evaluating the user's annotations raises
        return False
    return True


def reason(error: Exception) -> tuple[str, str]:
    """What msgspec complains about, in our words, and the path to it."""
    if not isinstance(error, msgspec.MsgspecError):
        return f"{type(error).__name__}: {tags.short(str(error), 200)}", ""
    text, _, path = str(error).partition(" - at `$")
    return (text[:1].lower() + text[1:]).replace("`", ""), path.rstrip("`")
