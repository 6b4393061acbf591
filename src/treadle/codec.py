"""What a call and a result look like as text, and whether they fit the function before anything is stored.

Without this file a wrong argument would fail in a worker at night instead of raising where the call was made, and
nobody else could read what a job carries.

The payload of a call is JSON: an array of the positional arguments, ``[]`` for none; or, when arguments can only be
given by name, ``{"args": [...], "kwargs": {...}}``. Keywords that continue the positional ones are stored among them;
defaults are not stored. Annotated values are in the plain form msgspec gives them: datetimes, dates, times and
durations as ISO 8601, bytes as base64, Decimal and UUID as text, enum members as their values, sets and tuples as
arrays, dataclasses, Structs and models as objects. A result is such a value by itself. A text in which ``"$t"``
occurs is tagged from end to end instead (see `treadle.tagged`): Treadle writes it only where the plain form would lose
something, and reads it for every parameter, annotated or not.

What fits. Instances, not look-alikes: a str is no datetime, a dict no dataclass, a tuple no list, a str no sequence,
a datetime no date, a bool no int, a member's value no member. An int is a float where it converts exactly; subclasses
fit str and int (and lose their class), not other classes. Abstract annotations take list and tuple (``Iterable`` and
``Collection`` also sets), give back a list, set or dict, and never consume an iterator. What is read back is more
lenient, since anybody may have written it: there a value may also be the JSON form of its annotation.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import re
import typing
from collections import abc
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, Flag
from types import MappingProxyType, NoneType, SimpleNamespace, UnionType
from typing import Annotated, Any, Final, Literal, NotRequired, Required, Union, get_args, get_origin
from uuid import UUID

import msgspec
from msgspec import UNSET
from msgspec.structs import astuple

from treadle import tagged
from treadle.errors import BadArgument, BadResult, BadTask
from treadle.tagged import MARK, Codec, RemoteError, TaggedCodec, Unstorable, decode_any, encode_any, found, probe

__all__ = [
    "MISSING",
    "Codec",
    "RemoteError",
    "Signature",
    "TaggedCodec",
    "Unstorable",
    "decode_any",
    "encode_any",
    "encode_foreign_call",
    "probe",
]


class _Missing(Enum):
    MISSING = "missing"


MISSING: Final = _Missing.MISSING
"""No value was given, where None is one."""

_Check = Callable[[Any, int], bool]
_Free = Mapping[Any, Any]
_Call = tuple[tuple[object, ...], dict[str, object]]
_NOTHING: Final[frozenset[type]] = frozenset()
_EXACT: Final = (str, int, bool, NoneType, bytes, date, timedelta, Decimal, UUID, msgspec.UnsetType)
_KEYS: Final = (str, int, UUID, date, datetime)  # what comes back from the text of a JSON key as it was
_LIVE: Final = (bytes, datetime, date, time, timedelta, Decimal, UUID)
_LISTS: Final = (abc.Sequence, abc.MutableSequence, abc.Iterable, abc.Collection)
_SETS: Final = (abc.Set, abc.MutableSet)


def _enc_hook(value: Any) -> object:
    """What msgspec does not know by itself: pydantic models, and subclasses of str, int and float."""
    if tagged.is_model(type(value)):
        text = value.model_dump_json(by_alias=True, round_trip=True).encode()
        if type(value).model_validate_json(text) != value:  # bytes, NaN, one-way aliases: let the tagged form try
            raise ValueError("does not survive its own JSON")
        return msgspec.Raw(text)
    if isinstance(value, (str, int, float)):
        return tagged.flat(value)
    raise NotImplementedError


def _dec_hook(kind: Any, raw: object) -> object:
    if tagged.is_model(kind):
        return raw if type(raw) is kind else kind.model_validate_json(msgspec.json.encode(raw))
    raise NotImplementedError


_encode = msgspec.json.Encoder(enc_hook=_enc_hook).encode


class _Shape:
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

    def settle(self, keep: bool = True) -> _Shape:
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
                return msgspec.convert(value, self.wire, str_keys=True, dec_hook=_dec_hook)
            except Exception as error:  # the classes are the user's, and so is what their constructors raise
                why = _reason(error)
            raise Unstorable(*why) from None
        return value


class _Shapes:
    """Compiles annotations, and collects the classes they name: the only ones the tagged form may make. `ours`: the
    text is in our own forms, which cannot carry everything."""

    def __init__(self, ours: bool) -> None:
        self.ours = ours
        self.names: dict[type, str] = {}
        self.classes: dict[str, type] = {}
        self._made: dict[Any, _Shape] = {}

    def of(self, hint: Any, free: _Free = MappingProxyType({})) -> _Shape:
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

    def _alias(self, hint: Any) -> _Shape:
        if hint not in self._made:
            self._made[hint] = inside = _Shape(_says(hint), loose=True)  # for an alias that names itself
            self._made[hint] = whole = self.of(hint.__value__)
            inside.check = whole.check
        return self._made[hint]

    def _anything(self) -> _Shape:
        shape = _Shape("anything", exact=frozenset((str, int, bool, NoneType)))

        def check(value: Any, depth: int) -> bool:
            if tagged.is_plain(value):
                return True
            if self.ours:
                tagged.tag(value, self.names)  # raises for what the tagged form cannot carry either
            return False

        shape.check = check
        return shape

    def _annotated(self, args: tuple[Any, ...], free: _Free) -> _Shape:
        base = self.of(args[0], free)
        limits = tuple(part for part in args[1:] if isinstance(part, msgspec.Meta))
        if not limits:
            return base
        outer = get_origin(base.wire)
        rule = _subscript(Annotated, (base.wire if outer in (None, Union, UnionType, Literal) else outer, *limits))
        if not _is_usable(rule):
            return base  # limits msgspec cannot apply here, to a union it refuses for one
        shape = _Shape(base.says, _subscript(Annotated, (base.wire, *limits)), base.loose)

        def check(value: Any, depth: int) -> bool:
            plain = _part(base, value, depth - 1, "")
            try:
                msgspec.convert(value, rule, builtin_types=_LIVE, dec_hook=_dec_hook)
            except msgspec.ValidationError as error:
                raise Unstorable(f"{_reason(error)[0]}, got {found(value)}") from None
            return plain

        shape.check = check
        return shape.settle()

    def _literal(self, hint: Any, values: tuple[Any, ...]) -> _Shape:
        shape = _Shape(_says(hint), hint)
        for value in values:
            if isinstance(value, Enum):
                self._name(type(value))

        def check(value: Any, depth: int) -> bool:
            return any(type(value) is type(one) and value == one for one in values) or shape.refuse(value, depth)

        shape.check = check
        return shape.settle()

    def _union(self, hint: Any, args: tuple[Any, ...], free: _Free) -> _Shape:
        parts = [self.of(part, free) for part in args]
        if any(part.untyped for part in parts):
            return self._anything()
        wires = [part.wire for part in parts]
        blurred = Decimal in wires and (int in wires or float in wires)  # a Decimal is read from numbers too
        shape = _Shape(_says(hint), _subscript(Union, tuple(wires)), any(part.loose for part in parts))
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

    def _items(self, hint: Any, kind: Any, args: tuple[Any, ...], free: _Free) -> _Shape:
        item = self.of(args[0] if args else Any, free)
        base: Any = list if kind in _LISTS else set if kind in _SETS else kind
        takes: tuple[type, ...] = (set, frozenset) if kind in _SETS else (kind,)
        if kind in _LISTS:
            takes = (list, tuple) if issubclass(kind, abc.Sequence) else (list, tuple, set, frozenset)
        shape = _Shape(_says(hint), base[item.wire], item.loose)

        def check(value: Any, depth: int) -> bool:
            return _each(item, value, depth) if type(value) in takes else shape.refuse(value, depth)

        shape.check = check
        return shape

    def _tuple(self, hint: Any, args: tuple[Any, ...], free: _Free) -> _Shape:
        if not args and hint is tuple:
            args = (Any, ...)
        if any(get_origin(part) is typing.Unpack or getattr(part, "__unpacked__", False) for part in args):
            return _opaque(tuple)
        many = args[-1:] == (...,)
        parts = [self.of(part, free) for part in args if part is not ...]
        wires = tuple(part.wire for part in parts)
        shape = _Shape(_says(hint), _subscript(tuple, (*wires, ...) if many else wires))
        shape.loose = any(part.loose for part in parts)

        def check(value: Any, depth: int) -> bool:
            if type(value) is not tuple or not (many or len(value) == len(parts)):
                return shape.refuse(value, depth)
            if many:
                return _each(parts[0], value, depth)
            return _every(_part(parts[i], one, depth, f"[{i}]") for i, one in enumerate(value))

        shape.check = check
        return shape

    def _mapping(self, hint: Any, args: tuple[Any, ...], free: _Free) -> _Shape:
        key, item = (self.of(part, free) for part in args or (Any, Any))
        anyhow = key.untyped
        wire = str if anyhow else key.wire
        kept = wire in _KEYS or (not key.loose and _is_key(wire))
        shape = _Shape(_says(hint), _subscript(dict, (wire, item.wire)), item.loose)

        def check(value: Any, depth: int) -> bool:
            if type(value) is not dict:
                return shape.refuse(value, depth)
            plain = set(map(type, value)) <= {str} if anyhow else True
            if not anyhow or not plain:
                plain = _every(_part(key, one, depth, f"[{tagged.short(one)}]") for one in value) and plain
            return _each(item, value, depth) and plain

        shape.check = check
        return shape.settle(kept)

    def _class(self, hint: Any, kind: Any, args: tuple[Any, ...]) -> _Shape:
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

    def _record(self, hint: Any, known: Any, kind: Any, free: _Free) -> _Shape:
        self._made[known] = shape = _Shape(_says(hint), hint)  # first, for classes that hold themselves
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

    def _typed_dict(self, hint: Any, known: Any, kind: Any, free: _Free) -> _Shape:
        self._made[known] = shape = _Shape(_says(hint), hint)
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
        msgspec.json.Decoder(wire, dec_hook=_dec_hook)
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


def _part(shape: _Shape, value: object, depth: int, step: str) -> bool:
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


def _each(item: _Shape, values: Any, depth: int) -> bool:
    """Checks all the items of a list, tuple or set, or the values of a dict: in C where types alone decide."""
    keyed = type(values) is dict
    if item.exact and item.exact.issuperset(map(type, values.values() if keyed else values)):
        return True
    if item.untyped and tagged.is_plain(values):
        return True
    pairs = values.items() if keyed else enumerate(values)
    return _every(_part(item, one, depth, f"[{key!r}]") for key, one in pairs)


def _scalar(kind: Any) -> _Shape | None:
    if kind in _EXACT:
        return _leaf(kind)
    if kind is float:
        return _floats()
    return _moments(kind) if kind is datetime or kind is time else None


def _leaf(kind: type) -> _Shape:
    shape = _Shape("None" if kind is NoneType else kind.__name__, kind, exact=frozenset((kind,)))
    roomy = kind in (str, int)

    def check(value: object, depth: int) -> bool:
        if type(value) is kind or (roomy and isinstance(value, kind) and type(value) is not bool):
            return True
        return shape.refuse(value, depth)

    shape.check = check
    return shape


def _floats() -> _Shape:
    shape = _Shape("float", float)

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


def _moments(kind: Any) -> _Shape:
    shape = _Shape(kind.__name__, kind)

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


def _instances(kind: type, exact: frozenset[type] = _NOTHING) -> _Shape:
    shape = _Shape(_says(kind), kind, exact=exact)

    def check(value: object, depth: int) -> bool:
        return True if type(value) is kind else shape.refuse(value, depth)

    shape.check = check
    return shape


def _opaque(kind: type) -> _Shape:
    """Any other class: looked at, then left to the tagged form, which carries exceptions and refuses the rest."""
    shape = _Shape(_says(kind), loose=True)

    def check(value: object, depth: int) -> bool:
        if isinstance(value, kind) or (issubclass(kind, BaseException) and isinstance(value, RemoteError)):
            return False
        return shape.refuse(value, depth)

    shape.check = check
    return shape


def _reason(error: Exception) -> tuple[str, str]:
    """What msgspec complains about, in our words, and the path to it."""
    if not isinstance(error, msgspec.MsgspecError):
        return f"{type(error).__name__}: {tagged.short(str(error), 200)}", ""
    text, _, path = str(error).partition(" - at `$")
    return (text[:1].lower() + text[1:]).replace("`", ""), path.rstrip("`")


class _Param(msgspec.Struct, frozen=True):
    """A parameter: its shape, and what reads it from plain text."""

    name: str
    shape: _Shape
    required: bool
    decode: Callable[[Any], Any]


def _param(name: str, shape: _Shape, required: bool) -> _Param:
    return _Param(name, shape, required, msgspec.json.Decoder(shape.wire, dec_hook=_dec_hook).decode)


class _Envelope(msgspec.Struct, forbid_unknown_fields=True):
    args: list[msgspec.Raw] = []
    kwargs: dict[str, msgspec.Raw] = {}


class _Plan:
    """The parameters a payload holds, by how they can be given, and one decoder for the common payload."""

    def __init__(
        self, positional: Sequence[_Param], more: _Param | None, named: Mapping[str, _Param], rest: _Param | None
    ) -> None:
        self.positional, self.more, self.named, self.rest = tuple(positional), more, named, rest
        by_place = {param.name for param in positional}
        self.needed = tuple(p for p in named.values() if p.required and p.name not in by_place)
        self.low = sum(param.required for param in positional)
        self.high = len(positional)
        self.simple = more is None and not self.needed
        self.loose = tuple((i, p) for i, p in enumerate(positional) if p.shape.loose)
        self.read: Callable[[str], Any] | None = None
        if self.simple and positional:
            fields = [
                (f"p{i}", p.shape.wire) if p.required else (f"p{i}", p.shape.wire, UNSET)
                for i, p in enumerate(positional)
            ]
            whole = msgspec.defstruct("Arguments", fields, array_like=True, forbid_unknown_fields=True)
            self.read = msgspec.json.Decoder(whole, dec_hook=_dec_hook).decode

    def at(self, index: int) -> _Param:
        """The parameter a positional argument belongs to."""
        return self.positional[index] if index < self.high else typing.cast("_Param", self.more)

    def by(self, name: str) -> _Param:
        """The parameter a keyword belongs to."""
        return self.named.get(name) or typing.cast("_Param", self.rest)

    def bind(self, task: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """The same call with keywords that continue the positional arguments among them. Raises BadArgument."""
        given, named = list(args), dict(kwargs)
        if len(given) > self.high and self.more is None:
            raise BadArgument(task, None, f"takes at most {self.high} positional arguments, got {len(given)}")
        for param in self.positional[: len(given)]:
            if param.name in named and param.name in self.named:
                raise BadArgument(task, param.name, "is given twice")
        for param in self.positional[len(given) :]:
            if param.name not in named or param.name not in self.named:
                break
            given.append(named.pop(param.name))
        for param in (*self.positional[len(given) :], *self.needed):
            if param.required and not (param.name in named and param.name in self.named):
                raise BadArgument(task, param.name, f"is missing: expected {param.shape.says}")
        for name in named:
            if name not in self.named and self.rest is None:
                known = ", ".join(dict.fromkeys([*(p.name for p in self.positional), *self.named])) or "none"
                raise BadArgument(task, name, f"is not one of its parameters ({known})")
        return given, named


class Signature:
    """What the arguments and the result of one task look like as text. Built once per task; cheap to call.

    `codec` replaces the forms described above by the user's own; arguments and results are still checked. Raises
    BadTask for a function without a signature or with annotations that mean nothing. Names that are not known yet
    (a class further down the module) are looked up again at the first use, which raises BadTask if they still are not;
    an unknown name in the return annotation only leaves the result untyped."""

    def __init__(self, name: str, function: Callable[..., object], codec: Codec | None = None) -> None:
        self.name = name
        self._function = function
        self._codec = None if type(codec) is TaggedCodec else codec
        self._names: Mapping[type, str] = {}
        self._classes: Mapping[str, type] = {}
        self._plan: _Plan | None = None
        self._rest: _Plan | None = None
        self._result: _Param | None = None
        with suppress(NameError, AttributeError):  # a forward reference: the first use looks again
            self._resolve()

    def encode_call(self, args: Sequence[object], kwargs: Mapping[str, object], *, first_later: bool = False) -> str:
        """The payload of a call. `first_later`: the first positional argument is handed in at run time, and the
        rest is what is given here. The values are not changed. Raises BadArgument naming the parameter that is
        missing, unknown, given twice, of the wrong type or cannot be stored. 0.4 us for one int."""
        plan = self._late() if first_later else self._plan or self._ready()
        if kwargs or not plan.low <= len(args) <= plan.high or not plan.simple:
            if first_later:
                self._only_later(kwargs)
            args, kwargs = plan.bind(self.name, args, kwargs)
        if not args and not kwargs and self._codec is None:
            return "[]"
        plain = True
        for i, value in enumerate(args):
            param = plan.at(i)
            if type(value) not in param.shape.exact:
                plain = self._check(param, value) and plain
        for name, value in kwargs.items():
            plain = self._check(plan.by(name), value, name) and plain
        if self._codec is not None:
            return self._by_codec({"args": list(args), "kwargs": dict(kwargs)})
        if plain:
            text = _plain({"args": args, "kwargs": kwargs} if kwargs else args)
            if text is not None and MARK not in text:
                return text
        trees = [self._tag(plan.at(i), value) for i, value in enumerate(args)]
        named = {name: self._tag(plan.by(name), value, name) for name, value in kwargs.items()}
        return _write(self.name, trees, named)

    def decode_call(self, text: str, *, first: object = MISSING) -> tuple[tuple[object, ...], dict[str, object]]:
        """The arguments of a payload, whoever wrote it, as values of their annotated types. `first` is the value
        for a payload made with `first_later`: checked (or read as the JSON form of its annotation) and put in
        front. Raises BadArgument, and nothing else, for a payload that does not fit. 0.6 us for one int."""
        plan = (self._plan or self._ready()) if first is MISSING else self._late()
        args, kwargs = self._arguments(plan, text)
        if first is not MISSING:
            args = (self._accept(self._ready().at(0), first), *args)
        return args, kwargs

    def encode_result(self, value: object) -> str:
        """The text of what the function returned. Raises BadResult if it does not match the return annotation, or,
        without one, cannot be stored."""
        self._ready()
        shape = self._returns().shape
        try:
            if self._codec is not None:
                if not shape.untyped:
                    shape.check(value, 0)
                return _text_of(self._codec, value)
            untyped = shape.untyped
            plain = type(value) in shape.exact or (tagged.is_plain(value) if untyped else shape.check(value, 0))
            text = _plain(value) if plain else None
            if text is not None and MARK not in text:
                return text
            return tagged.write_tagged(tagged.tag(value, self._names, flatten=not untyped))
        except Unstorable as error:
            raise BadResult(self.name, str(error)) from None
        except Exception as error:  # a user's codec, or a value too deep to be looked at from here
            raise BadResult(self.name, f"cannot be stored: {type(error).__name__}: {error}") from error

    def decode_result(self, text: str) -> object:
        """The value `encode_result` was given, or the one another worker wrote in the JSON form of the return
        annotation. Raises BadResult for any other text."""
        self._ready()
        result = self._returns()
        try:
            if self._codec is not None:
                return result.shape.accept(self._codec.decode(text))
            if MARK in text:
                return result.shape.accept(decode_any(text, self._classes))
            return result.shape.accept(result.decode(text)) if result.shape.loose else result.decode(text)
        except Unstorable as error:
            raise BadResult(self.name, f"as it is stored: {error}") from None
        except Exception as error:  # constructors are the user's, and so is a codec
            raise BadResult(self.name, f"as it is stored: {Unstorable(*_reason(error))}") from None

    # --- building -------------------------------------------------------------------------------------------------

    def _ready(self) -> _Plan:
        if self._plan is None:
            try:
                self._resolve(final=True)
            except (NameError, AttributeError) as error:
                raise BadTask(
                    f"{self.name}: an annotation names what cannot be found where the function is defined: "
                    f"{error}; define or import it at module level, outside TYPE_CHECKING"
                ) from error
        return typing.cast("_Plan", self._plan)

    def _resolve(self, final: bool = False) -> None:
        try:
            parameters = list(inspect.signature(self._function).parameters.values())
            hints = _hints(self._function, final)
        except (TypeError, ValueError, SyntaxError) as error:
            raise BadTask(f"{self.name}: the signature of {self._function!r} cannot be read: {error}") from error
        shapes = _Shapes(self._codec is None)
        made = [(p.kind, _param(p.name, shapes.of(hints.get(p.name, Any)), p.default is p.empty)) for p in parameters]
        kinds = inspect.Parameter
        by_place = [p for kind, p in made if kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)]
        by_name = {p.name: p for kind, p in made if kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY)}
        more = next((p for kind, p in made if kind is kinds.VAR_POSITIONAL), None)
        rest = next((p for kind, p in made if kind is kinds.VAR_KEYWORD), None)
        self._result = _param("return", shapes.of(hints.get("return", Any)), False)
        self._names, self._classes = shapes.names, shapes.classes
        if by_place or more:
            later = {name: p for name, p in by_name.items() if not by_place or p is not by_place[0]}
            self._rest = _Plan(by_place[1:], more, later, rest)
        self._plan = _Plan(by_place, more, by_name, rest)

    def _late(self) -> _Plan:
        self._ready()
        if self._rest is None:
            raise BadArgument(
                self.name,
                None,
                "has no positional parameter for the result of the job before it: add one, or use pass_result=False",
            )
        return self._rest

    def _returns(self) -> _Param:
        return typing.cast("_Param", self._result)

    def _only_later(self, kwargs: Mapping[str, object]) -> None:
        plan = self._ready()
        if plan.positional and plan.positional[0].name in kwargs and plan.positional[0].name in plan.named:
            raise BadArgument(self.name, plan.positional[0].name, "is given here, and is to come from the job before")

    # --- arguments to text ----------------------------------------------------------------------------------------

    def _check(self, param: _Param, value: object, name: str | None = None) -> bool:
        if param.shape.untyped:
            return tagged.is_plain(value)  # what cannot be stored is found when it is written
        try:
            return param.shape.check(value, 0)
        except Unstorable as error:
            raise BadArgument(self.name, name or param.name, str(error)) from None
        except RecursionError:
            raise BadArgument(self.name, name or param.name, "is nested too deep to be checked from here") from None

    def _tag(self, param: _Param, value: object, name: str | None = None) -> object:
        try:
            return tagged.tag(value, self._names, flatten=not param.shape.untyped)
        except Unstorable as error:
            raise BadArgument(self.name, name or param.name, str(error)) from None

    def _by_codec(self, call: object) -> str:
        codec = typing.cast("Codec", self._codec)
        try:
            return _text_of(codec, call)
        except Exception as error:  # whatever a user's codec raises
            raise BadArgument(self.name, None, f"was refused by {codec!r}: {type(error).__name__}: {error}") from error

    # --- text to arguments ----------------------------------------------------------------------------------------

    def _arguments(self, plan: _Plan, text: str) -> _Call:
        if self._codec is not None:
            return self._read_tree(plan, self._from_codec(text))
        if text == "[]" and plan.simple and not plan.low:
            return (), {}
        if MARK in text:
            try:
                return self._read_tree(plan, msgspec.json.decode(text), tags=True)
            except (msgspec.MsgspecError, ValueError, RecursionError) as error:
                if isinstance(error, BadArgument):
                    raise
                raise BadArgument(self.name, None, f"has a payload that is not JSON: {error}") from None
        if plan.read is not None and text[:1] == "[":
            try:
                return self._whole(plan, plan.read, text), {}
            except Exception:  # the long way finds out what is wrong; `suppress` would cost 0.15 us
                pass
        return self._one_by_one(plan, text)

    def _whole(self, plan: _Plan, read: Callable[[str], Any], text: str) -> tuple[object, ...]:
        """All the positional arguments in one pass of the prebuilt decoder."""
        values: tuple[Any, ...] = astuple(read(text))
        if values[-1] is UNSET:
            values = tuple(value for value in values if value is not UNSET)
        if plan.loose:
            mixed = list(values)
            for i, param in plan.loose:
                if i < len(mixed):
                    mixed[i] = param.shape.accept(mixed[i])
            values = tuple(mixed)
        return values

    def _one_by_one(self, plan: _Plan, text: str) -> _Call:
        """Each argument by its own decoder, for calls with keywords and to say which one is wrong."""
        try:
            if text.lstrip()[:1] == "[":
                envelope = _Envelope(_read_array(text))
            else:
                envelope = _read_object(text)
        except Exception as error:  # MsgspecError, UnicodeEncodeError, RecursionError
            what = Unstorable(*_reason(error))
            raise BadArgument(
                self.name,
                None,
                "expected a payload of JSON, an array or an object of args and kwargs, "
                f"got {tagged.short(text)}: {what}",
            ) from None
        given, named = plan.bind(self.name, envelope.args, envelope.kwargs)
        args = tuple(self._read(plan.at(i), raw) for i, raw in enumerate(given))
        return args, {name: self._read(plan.by(name), raw, name) for name, raw in named.items()}

    def _read(self, param: _Param, raw: msgspec.Raw, name: str | None = None) -> object:
        try:
            value = param.decode(raw)
            return param.shape.accept(value) if param.shape.loose else value
        except Unstorable as error:
            why = error
        except Exception as error:  # the constructors of annotated classes are the user's
            why = Unstorable(*_reason(error))
        raise BadArgument(self.name, name or param.name, str(why))

    def _read_tree(self, plan: _Plan, tree: object, tags: bool = False) -> _Call:
        """Arguments from a tagged text or a user's codec: values already, or trees that hold tags."""
        args, kwargs = (tree, {}) if isinstance(tree, list) else _envelope(tree)
        if not isinstance(args, list) or not isinstance(kwargs, dict) or not all(type(k) is str for k in kwargs):
            raise BadArgument(self.name, None, f"expected a payload of args and kwargs, got {found(tree)}")
        given, named = plan.bind(self.name, args, kwargs)
        values = [self._accept(plan.at(i), value, None, tags) for i, value in enumerate(given)]
        return tuple(values), {k: self._accept(plan.by(k), value, k, tags) for k, value in named.items()}

    def _accept(self, param: _Param, value: object, name: str | None = None, tags: bool = False) -> object:
        try:
            return param.shape.accept(tagged.untag(value, self._classes) if tags else value)
        except Unstorable as error:
            why = error
        except Exception as error:  # what comparing or making the user's classes raises
            why = Unstorable(*_reason(error))
        raise BadArgument(self.name, name or param.name, str(why))

    def _from_codec(self, text: str) -> object:
        codec = typing.cast("Codec", self._codec)
        try:
            return codec.decode(text)
        except Exception as error:  # whatever a user's codec raises
            why = f"cannot be read by {codec!r}: {type(error).__name__}: {error}"
            raise BadArgument(self.name, None, why) from error


_read_array = msgspec.json.Decoder(list[msgspec.Raw]).decode
_read_object = msgspec.json.Decoder(_Envelope).decode


def encode_foreign_call(args: Sequence[object], kwargs: Mapping[str, object], name: str = "stub") -> str:
    """The payload of a call whose signature is not known here: values in tagged JSON, which every task reads, also
    for annotated parameters. `name` is the task's, for messages. Raises BadArgument."""
    if tagged.is_plain([*args, *kwargs.values()]):
        text = _plain({"args": args, "kwargs": dict(kwargs)} if kwargs else args)
        if text is not None and MARK not in text:
            return text
    try:
        return _write(name, [tagged.tag(value) for value in args], {k: tagged.tag(v) for k, v in kwargs.items()})
    except Unstorable as error:
        raise BadArgument(name, None, str(error)) from None


def _write(task: str, args: list[object], kwargs: dict[str, object]) -> str:
    try:
        return tagged.write_tagged({"args": args, "kwargs": kwargs} if kwargs else args)
    except ValueError as error:  # a keyword that is no text UTF-8 can carry
        raise BadArgument(task, None, f"cannot be stored: {error}") from None


def _plain(value: object) -> str | None:
    """The plain JSON of a checked value, or None where only the tagged form has words: lone surrogates, integers
    beyond 4,300 digits, models that lose something."""
    try:
        return _encode(value).decode()
    except Exception:  # also what a user's model raises; the tagged form then says what is wrong
        return None


def _text_of(codec: Codec, value: object) -> str:
    text = codec.encode(value)
    if not isinstance(text, str):
        raise ValueError(f"{codec!r} must encode to str, got {found(text)}")
    return text


def _envelope(tree: Any) -> tuple[Any, Any]:
    if not isinstance(tree, dict) or tree.keys() - {"args", "kwargs"}:
        return None, None
    return tree.get("args", []), tree.get("kwargs", {})


def _hints(function: Any, final: bool) -> dict[str, Any]:
    """The annotations of a function, method, partial or callable object, evaluated. Raises NameError."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    if not hasattr(function, "__annotations__") or inspect.isclass(function):
        function = function.__init__ if inspect.isclass(function) else type(function).__call__
    try:
        return typing.get_type_hints(function, include_extras=True)
    except (NameError, AttributeError):
        if not final:
            raise
    kept = SimpleNamespace(__annotations__={k: v for k, v in function.__annotations__.items() if k != "return"})
    return typing.get_type_hints(kept, getattr(function, "__globals__", {}), include_extras=True)
