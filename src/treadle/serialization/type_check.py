"""The compiled check of one annotation: which values fit, how text is decoded, and how messages name the type.

This module also has the checks of plain types, and the helpers that check the parts of a value and report the path to
the wrong part.
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
from treadle.serialization.tags import RemoteError, Unstorable, found, reason


class _Missing(Enum):
    MISSING = "missing"


MISSING: Final = _Missing.MISSING
"""Marks a missing value where None is a value."""

NOTHING: Final[frozenset[type]] = frozenset()
_Check = Callable[[Any, int], bool]
_EXACT: Final = (str, int, bool, NoneType, bytes, date, timedelta, Decimal, UUID, msgspec.UnsetType)


def enc_hook(value: Any) -> object:
    """For values that msgspec does not encode: pydantic models, and subclasses of str, int and float."""
    if tags.is_model(type(value)):
        return msgspec.Raw(value.model_dump_json(by_alias=True, round_trip=True, warnings=False).encode())
    if isinstance(value, (str, int, float)):
        return tags.flat(value)
    raise NotImplementedError


def dec_hook(kind: Any, raw: object) -> object:
    if tags.is_model(kind):
        return raw if type(raw) is kind else kind.model_validate_json(msgspec.json.encode(raw))
    raise NotImplementedError


def _from_native(kind: Any, raw: object) -> object:
    """`dec_hook` for a tree of native values: JSON has no bytes, and no NaN."""
    if tags.is_model(kind) and type(raw) is not kind and not tagged_json.is_plain(raw):
        return kind.model_validate(raw, strict=False)  # the rest, such as an enum, is in its JSON form
    return dec_hook(kind, raw)


encode_plain = msgspec.json.Encoder(enc_hook=enc_hook).encode


class TypeCheck:
    """One annotation, compiled. `check` raises Unstorable for a value that does not fit, and returns whether plain JSON
    can represent it; values of the types in `exact` need no check. `wire` is the type that msgspec decodes (Any if it
    does not support the annotation, which is then `loose`); `says` is the name in messages."""

    __slots__ = ("check", "exact", "loose", "says", "wire")

    def __init__(self, says: str, wire: Any = Any, loose: bool = False, exact: frozenset[type] = NOTHING) -> None:
        self.says, self.wire, self.loose, self.exact = says, wire, loose, exact
        self.check: _Check = self.refuse

    @property
    def untyped(self) -> bool:
        """Whether it accepts everything: Any, object, no annotation."""
        return self.wire is Any and not self.loose

    def refuse(self, value: object, depth: int) -> bool:
        raise Unstorable(f"expected {self.says}, got {found(value)}")

    def settle(self, keep: bool = True) -> TypeCheck:
        """Use the tagged form if msgspec does not support the annotation, or if the plain form would lose something
        (not `keep`)."""
        if not (keep and not self.loose and is_usable(self.wire)):
            check = self.check
            self.wire, self.loose, self.exact = Any, True, NOTHING
            self.check = lambda value, depth: check(value, depth) and False
        return self

    def accept(self, value: object) -> object:
        """The value if it fits, otherwise the value decoded from the JSON form of the annotation. Raises Unstorable."""
        if self.untyped:
            return value
        try:
            self.check(value, 0)
        except Unstorable:
            if self.loose:
                raise
            try:
                return msgspec.convert(value, self.wire, str_keys=True, dec_hook=_from_native)
            except Exception as error:  # the classes are user code, so their constructors may raise anything
                why = reason(error)
            raise Unstorable(*why) from None
        return value


# --- the parts of a value


def part_fits(shape: TypeCheck, value: object, depth: int, step: str) -> bool:
    if type(value) in shape.exact:
        return True
    try:
        return shape.check(value, depth + 1)
    except Unstorable as error:
        error.under(step)
        raise


def every(verdicts: Iterable[bool]) -> bool:
    """Like `all`, but evaluates every item: after one that needs the tagged form, another may not fit at all."""
    return False not in tuple(verdicts)


def each(item: TypeCheck, values: Any, depth: int) -> bool:
    """Check all items of a list, tuple or set, or the values of a dict; in C if the types alone decide."""
    keyed = type(values) is dict
    if item.exact and item.exact.issuperset(map(type, values.values() if keyed else values)):
        return True
    if item.untyped and tagged_json.is_plain(values):
        return True
    pairs = values.items() if keyed else enumerate(values)
    return every(part_fits(item, one, depth, f"[{key!r}]") for key, one in pairs)


# --- plain types


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
            raise Unstorable(f"expected float, got {found(value)}, which no float equals")
        return True

    shape.check = check
    return shape


def _moments(kind: Any) -> TypeCheck:
    shape = TypeCheck(kind.__name__, kind)

    def check(value: Any, depth: int) -> bool:
        if type(value) is not kind:
            return shape.refuse(value, depth)
        if value.tzinfo is None or value.tzinfo is UTC:
            return not value.fold or value.tzinfo is UTC
        offset = value.utcoffset()
        if offset is None:
            raise Unstorable(f"expected {shape.says} with a fixed offset or without one, got {found(value)}")
        return not offset.microseconds and not offset.seconds % 60  # otherwise other ISO 8601 readers would round it

    shape.check = check
    return shape


def instances(kind: type, exact: frozenset[type] = NOTHING) -> TypeCheck:
    shape = TypeCheck(says(kind), kind, exact=exact)

    def check(value: object, depth: int) -> bool:
        return True if type(value) is kind else shape.refuse(value, depth)

    shape.check = check
    return shape


def opaque(kind: type) -> TypeCheck:
    """Any other class: checked by `isinstance`, then left to the tagged form, which represents exceptions only."""
    shape = TypeCheck(says(kind), loose=True)

    def check(value: object, depth: int) -> bool:
        if isinstance(value, kind) or (issubclass(kind, BaseException) and isinstance(value, RemoteError)):
            return False
        return shape.refuse(value, depth)

    shape.check = check
    return shape


# --- names and messages


def says(hint: Any) -> str:
    if isinstance(hint, type) and get_origin(hint) is None:
        return hint.__qualname__.rpartition("<locals>.")[2]
    return re.sub(r"[\w.<>]+\.(?=\w)", "", str(hint)).replace("NoneType", "None")


def is_usable(wire: Any) -> bool:
    try:
        msgspec.json.Decoder(wire, dec_hook=dec_hook)
    except Exception:  # mostly TypeError, and anything that evaluating annotations raises
        return False
    return True
