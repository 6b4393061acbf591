"""The shape of an annotation: whether a live value fits it, what reads it from text, and how it is called in messages.

Without this file a call could only be checked after it was stored, by a worker that can no longer ask anybody.
"""

from __future__ import annotations

import dataclasses
import math
import re
import typing
from collections import abc
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, Flag
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, Final, Literal, NotRequired, Required, Union, get_args, get_origin
from uuid import UUID

import msgspec

from treadle import tagged
from treadle.tagged import RemoteError, Unstorable, found


class _Missing(Enum):
    MISSING = "missing"


MISSING: Final = _Missing.MISSING
"""No value was given, where None is one."""

_Check = Callable[[Any, int], bool]
_Free = Mapping[Any, Any]
_NOTHING: Final[frozenset[type]] = frozenset()
_EXACT: Final = (str, int, bool, NoneType, bytes, date, timedelta, Decimal, UUID, msgspec.UnsetType)
_KEYS: Final = (str, int, UUID, date, datetime)  # what comes back from the text of a JSON key as it was
_LIVE: Final = (bytes, datetime, date, time, timedelta, Decimal, UUID)
_LISTS: Final = (abc.Sequence, abc.MutableSequence, abc.Iterable, abc.Collection)
_SETS: Final = (abc.Set, abc.MutableSet)


def enc_hook(value: Any) -> object:
    """What msgspec does not know by itself: pydantic models, and subclasses of str, int and float."""
    if tagged.is_model(type(value)):
        text = value.model_dump_json(by_alias=True, round_trip=True).encode()
        if type(value).model_validate_json(text) != value:  # bytes, NaN, one-way aliases: let the tagged form try
            raise ValueError("does not survive its own JSON")
        return msgspec.Raw(text)
    if isinstance(value, (str, int, float)):
        return tagged.flat(value)
    raise NotImplementedError


def dec_hook(kind: Any, raw: object) -> object:
    if tagged.is_model(kind):
        return raw if type(raw) is kind else kind.model_validate_json(msgspec.json.encode(raw))
    raise NotImplementedError


encode_plain = msgspec.json.Encoder(enc_hook=enc_hook).encode


class Shape:
    """One annotation, compiled. `check` raises Unstorable for a value that does not fit and says whether plain JSON
    can carry it; values of the types in `exact` need no check; `wire` is what msgspec decodes (Any if it refuses the
    annotation, which is then `loose`); `says` is how messages call it."""

    __slots__ = ("check", "exact", "loose", "says", "wire")

    def __init__(self, says: str, wire: Any = Any, loose: bool = False, exact: frozenset[type] = _NOTHING) -> None:
        self.says, self.wire, self.loose, self.exact = says, wire, loose, exact
        self.check: _Check = self.refuse

    @property
    def untyped(self) -> bool:
        """Whether it says nothing: Any, object, no annotation."""
        return self.wire is Any and not self.loose

    def refuse(self, value: object, depth: int) -> bool:
        raise Unstorable(f"expected {self.says}, got {found(value)}")

    def settle(self, keep: bool = True) -> Shape:
        """Falls back to the tagged form if msgspec refuses the annotation, or `keep` says it would lose something."""
        if not (keep and not self.loose and _is_usable(self.wire)):
            check = self.check
            self.wire, self.loose, self.exact = Any, True, _NOTHING
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


class Shapes:
    """Compiles annotations, and collects the classes they name: the only ones the tagged form may make. `ours`: the
    text is in our own forms, which cannot carry everything."""

    def __init__(self, ours: bool) -> None:
        self.ours = ours
        self.names: dict[type, str] = {}
        self.classes: dict[str, type] = {}
        self._made: dict[Any, Shape] = {}

    def of(self, hint: Any, free: _Free = MappingProxyType({})) -> Shape:
        """The shape of an annotation; `free` says what the type variables around it stand for."""
        hint = _unwrap(hint, free)
        origin, args = get_origin(hint), get_args(hint)
        if hasattr(hint, "__value__") and hasattr(hint, "__type_params__"):  # `type X = ...`, new in 3.12
            return self._alias(hint)
        if origin is Annotated:
            return self._annotated(args, free)
        if origin is Literal:
            return self._literal(hint, args)
        if origin is Union or origin is UnionType:
            return self._union(hint, args, free)
        kind = hint if origin is None else origin
        if kind is object or kind is Any or not isinstance(kind, type):  # Any is a class since 3.11
            return self._anything()
        if kind in (list, set, frozenset, *_LISTS, *_SETS):
            return self._items(hint, kind, args, free)
        if kind in (dict, abc.Mapping, abc.MutableMapping):
            return self._mapping(hint, args, free)
        if kind is tuple:
            return self._tuple(hint, args, free)
        return _scalar(kind) or self._class(hint, kind, tuple(_unwrap(part, free) for part in args))

    def _alias(self, hint: Any) -> Shape:
        if hint not in self._made:
            self._made[hint] = inside = Shape(_says(hint), loose=True)  # for an alias that names itself
            self._made[hint] = whole = self.of(hint.__value__)
            inside.check = whole.check
        return self._made[hint]

    def _anything(self) -> Shape:
        shape = Shape("anything", exact=frozenset((str, int, bool, NoneType)))

        def check(value: Any, depth: int) -> bool:
            if tagged.is_plain(value):
                return True
            if self.ours:
                tagged.tag(value, self.names)  # raises for what the tagged form cannot carry either
            return False

        shape.check = check
        return shape

    def _annotated(self, args: tuple[Any, ...], free: _Free) -> Shape:
        base = self.of(args[0], free)
        limits = tuple(part for part in args[1:] if isinstance(part, msgspec.Meta))
        if not limits:
            return base
        outer = get_origin(base.wire)
        rule = _subscript(Annotated, (base.wire if outer in (None, Union, UnionType, Literal) else outer, *limits))
        if not _is_usable(rule):
            return base  # limits msgspec cannot apply here, to a union it refuses for one
        shape = Shape(base.says, _subscript(Annotated, (base.wire, *limits)), base.loose)

        def check(value: Any, depth: int) -> bool:
            plain = _part(base, value, depth - 1, "")
            try:
                msgspec.convert(value, rule, builtin_types=_LIVE, dec_hook=dec_hook)
            except msgspec.ValidationError as error:
                raise Unstorable(f"{reason(error)[0]}, got {found(value)}") from None
            return plain

        shape.check = check
        return shape.settle()

    def _literal(self, hint: Any, values: tuple[Any, ...]) -> Shape:
        shape = Shape(_says(hint), hint)
        for value in values:
            if isinstance(value, Enum):
                self._name(type(value))

        def check(value: Any, depth: int) -> bool:
            return any(type(value) is type(one) and value == one for one in values) or shape.refuse(value, depth)

        shape.check = check
        return shape.settle()

    def _union(self, hint: Any, args: tuple[Any, ...], free: _Free) -> Shape:
        parts = [self.of(part, free) for part in args]
        if any(part.untyped for part in parts):
            return self._anything()
        wires = [part.wire for part in parts]
        blurred = Decimal in wires and (int in wires or float in wires)  # a Decimal is read from numbers too
        shape = Shape(_says(hint), _subscript(Union, tuple(wires)), any(part.loose for part in parts))
        shape.exact = _NOTHING.union(*(part.exact for part in parts))
        others = [part for part in parts if NoneType not in part.exact]

        def check(value: Any, depth: int) -> bool:
            if any(type(value) in part.exact for part in parts):
                return True
            for part in parts:
                try:
                    return part.check(value, depth)
                except Unstorable as error:
                    if error.path and len(others) == 1:
                        raise  # X | None: what is wrong inside the X says more
            return shape.refuse(value, depth)

        shape.check = check
        return shape.settle(not blurred)

    def _items(self, hint: Any, kind: Any, args: tuple[Any, ...], free: _Free) -> Shape:
        item = self.of(args[0] if args else Any, free)
        base: Any = list if kind in _LISTS else set if kind in _SETS else kind
        takes: tuple[type, ...] = (set, frozenset) if kind in _SETS else (kind,)
        if kind in _LISTS:
            takes = (list, tuple) if issubclass(kind, abc.Sequence) else (list, tuple, set, frozenset)
        shape = Shape(_says(hint), base[item.wire], item.loose)

        def check(value: Any, depth: int) -> bool:
            return _each(item, value, depth) if type(value) in takes else shape.refuse(value, depth)

        shape.check = check
        return shape

    def _tuple(self, hint: Any, args: tuple[Any, ...], free: _Free) -> Shape:
        if not args and hint is tuple:
            args = (Any, ...)
        if any(get_origin(part) is typing.Unpack or getattr(part, "__unpacked__", False) for part in args):
            return _opaque(tuple)
        many = args[-1:] == (...,)
        parts = [self.of(part, free) for part in args if part is not ...]
        wires = tuple(part.wire for part in parts)
        shape = Shape(_says(hint), _subscript(tuple, (*wires, ...) if many else wires))
        shape.loose = any(part.loose for part in parts)

        def check(value: Any, depth: int) -> bool:
            if type(value) is not tuple or not (many or len(value) == len(parts)):
                return shape.refuse(value, depth)
            if many:
                return _each(parts[0], value, depth)
            return _every(_part(parts[i], one, depth, f"[{i}]") for i, one in enumerate(value))

        shape.check = check
        return shape

    def _mapping(self, hint: Any, args: tuple[Any, ...], free: _Free) -> Shape:
        key, item = (self.of(part, free) for part in args or (Any, Any))
        anyhow = key.untyped
        wire = str if anyhow else key.wire
        kept = wire in _KEYS or (not key.loose and _is_key(wire))
        shape = Shape(_says(hint), _subscript(dict, (wire, item.wire)), item.loose)

        def check(value: Any, depth: int) -> bool:
            if type(value) is not dict:
                return shape.refuse(value, depth)
            plain = set(map(type, value)) <= {str} if anyhow else True
            if not anyhow or not plain:
                plain = _every(_part(key, one, depth, f"[{tagged.short(one)}]") for one in value) and plain
            return _each(item, value, depth) and plain

        shape.check = check
        return shape.settle(kept)

    def _class(self, hint: Any, kind: Any, args: tuple[Any, ...]) -> Shape:
        known = hint if not args else (kind, repr(args))
        if known in self._made:
            return self._made[known]
        if issubclass(kind, Enum):
            self._name(kind)
            return _instances(kind, frozenset((kind,))).settle(not issubclass(kind, Flag))
        if tagged.is_model(kind):
            self._made[known] = shape = _instances(kind).settle()
            self._name(kind)
            for field in kind.model_fields.values():  # its enums, should the tagged form have to carry one
                self.of(field.annotation)
            return shape
        free = dict(zip(getattr(kind, "__parameters__", ()), args, strict=False))
        if issubclass(kind, dict) and hasattr(kind, "__total__"):
            return self._typed_dict(hint, known, kind, free)
        if (
            issubclass(kind, msgspec.Struct)
            or dataclasses.is_dataclass(kind)
            or (issubclass(kind, tuple) and hasattr(kind, "_fields"))
        ):
            self._name(kind)
            return self._record(hint, known, kind, free)
        return _opaque(kind)

    def _record(self, hint: Any, known: Any, kind: Any, free: _Free) -> Shape:
        self._made[known] = shape = Shape(_says(hint), hint)  # first, for classes that hold themselves
        hints = typing.get_type_hints(kind, include_extras=True)
        fields = [(name, f".{name}", self.of(hints.get(name, Any), free)) for name in tagged.field_names(kind)]

        def check(value: Any, depth: int) -> bool:
            if type(value) is not kind:
                return shape.refuse(value, depth)
            if depth > tagged.MAX_DEPTH:
                raise Unstorable(f"is nested more than {tagged.MAX_DEPTH} deep, or contains itself")
            return _every(_part(part, getattr(value, name, MISSING), depth, step) for name, step, part in fields)

        shape.check = check
        return shape.settle()

    def _typed_dict(self, hint: Any, known: Any, kind: Any, free: _Free) -> Shape:
        self._made[known] = shape = Shape(_says(hint), hint)
        hints = typing.get_type_hints(kind, include_extras=True)
        fields = {name: self.of(part, free) for name, part in hints.items()}
        needed = {name for name, part in hints.items() if _is_needed(part, name in kind.__required_keys__)}

        def check(value: Any, depth: int) -> bool:
            if type(value) is not dict:
                return shape.refuse(value, depth)
            if depth > tagged.MAX_DEPTH:
                raise Unstorable(f"is nested more than {tagged.MAX_DEPTH} deep, or contains itself")
            wrong = [tagged.short(name) for name in value if name not in fields] + sorted(needed - value.keys())
            if wrong:
                raise Unstorable(f"expected {shape.says}, got a dict with wrong or missing keys: {', '.join(wrong)}")
            return _every(_part(fields[name], one, depth, f"[{name!r}]") for name, one in value.items())

        shape.check = check
        return shape.settle()

    def _name(self, kind: type) -> None:
        name = kind.__qualname__
        if self.classes.setdefault(name, kind) is not kind:
            name = f"{kind.__module__}.{name}"
            self.classes[name] = kind
        self.names[kind] = name


def _unwrap(hint: Any, free: _Free) -> Any:
    """The annotation without what says nothing about values: NewType, Required, Final, type variables."""
    for _ in range(tagged.MAX_DEPTH):
        if isinstance(hint, typing.TypeVar):
            hint = free.get(hint) or hint.__bound__ or Any
        elif hint is typing.LiteralString:
            hint = str
        elif isinstance(hint, typing.NewType):
            hint = hint.__supertype__
        elif get_origin(hint) in (Required, NotRequired, Final, typing.ClassVar):
            hint = get_args(hint)[0]
        else:
            break
    return NoneType if hint is None else hint


def _is_needed(hint: Any, total: bool) -> bool:
    while get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    return get_origin(hint) is Required or (total and get_origin(hint) is not NotRequired)


def _is_usable(wire: Any) -> bool:
    try:
        msgspec.json.Decoder(wire, dec_hook=dec_hook)
    except Exception:  # TypeError mostly, and whatever evaluating the user's annotations raises
        return False
    return True


def _subscript(form: Any, args: tuple[Any, ...]) -> Any:
    return form[args]


def _is_key(wire: Any) -> bool:
    """Whether an enum or Literal is all text or all whole numbers, and so comes back from a JSON key."""
    values = get_args(wire) if get_origin(wire) is Literal else ()
    if isinstance(wire, type) and issubclass(wire, Enum):
        values = tuple(one.value for one in wire)
    return len({type(value) for value in values}) == 1 and type(values[0]) in (str, int)


def _says(hint: Any) -> str:
    if isinstance(hint, type) and get_origin(hint) is None:
        return hint.__qualname__.rpartition("<locals>.")[2]
    return re.sub(r"[\w.<>]+\.(?=\w)", "", str(hint)).replace("NoneType", "None")


def _part(shape: Shape, value: object, depth: int, step: str) -> bool:
    if type(value) in shape.exact:
        return True
    try:
        return shape.check(value, depth + 1)
    except Unstorable as error:
        error.under(step)
        raise


def _every(verdicts: Iterable[bool]) -> bool:
    """Like `all`, but asks each: the first may only need the tagged form, and the second not fit."""
    return False not in tuple(verdicts)


def _each(item: Shape, values: Any, depth: int) -> bool:
    """Checks all the items of a list, tuple or set, or the values of a dict: in C where types alone decide."""
    keyed = type(values) is dict
    if item.exact and item.exact.issuperset(map(type, values.values() if keyed else values)):
        return True
    if item.untyped and tagged.is_plain(values):
        return True
    pairs = values.items() if keyed else enumerate(values)
    return _every(_part(item, one, depth, f"[{key!r}]") for key, one in pairs)


def _scalar(kind: Any) -> Shape | None:
    if kind in _EXACT:
        return _leaf(kind)
    if kind is float:
        return _floats()
    return _moments(kind) if kind is datetime or kind is time else None


def _leaf(kind: type) -> Shape:
    shape = Shape("None" if kind is NoneType else kind.__name__, kind, exact=frozenset((kind,)))
    roomy = kind in (str, int)

    def check(value: object, depth: int) -> bool:
        if type(value) is kind or (roomy and isinstance(value, kind) and type(value) is not bool):
            return True
        return shape.refuse(value, depth)

    shape.check = check
    return shape


def _floats() -> Shape:
    shape = Shape("float", float)

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


def _moments(kind: Any) -> Shape:
    shape = Shape(kind.__name__, kind)

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


def _instances(kind: type, exact: frozenset[type] = _NOTHING) -> Shape:
    shape = Shape(_says(kind), kind, exact=exact)

    def check(value: object, depth: int) -> bool:
        return True if type(value) is kind else shape.refuse(value, depth)

    shape.check = check
    return shape


def _opaque(kind: type) -> Shape:
    """Any other class: looked at, then left to the tagged form, which carries exceptions and refuses the rest."""
    shape = Shape(_says(kind), loose=True)

    def check(value: object, depth: int) -> bool:
        if isinstance(value, kind) or (issubclass(kind, BaseException) and isinstance(value, RemoteError)):
            return False
        return shape.refuse(value, depth)

    shape.check = check
    return shape


def reason(error: Exception) -> tuple[str, str]:
    """What msgspec complains about, in our words, and the path to it."""
    if not isinstance(error, msgspec.MsgspecError):
        return f"{type(error).__name__}: {tagged.short(str(error), 200)}", ""
    text, _, path = str(error).partition(" - at `$")
    return (text[:1].lower() + text[1:]).replace("`", ""), path.rstrip("`")
