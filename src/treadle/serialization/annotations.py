"""Compiles the annotations of a task's parameters and result to type checks, once per task."""

from __future__ import annotations

import dataclasses
import typing
from collections import abc
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, Flag
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, Final, Literal, NotRequired, Required, Union, get_args, get_origin
from uuid import UUID

import msgspec

from treadle.core.job import Continuation
from treadle.serialization import tagged_json, tags
from treadle.serialization.tags import Unstorable, found
from treadle.serialization.type_check import (
    MISSING,
    NOTHING,
    TypeCheck,
    dec_hook,
    each,
    every,
    instances,
    is_usable,
    opaque,
    part_fits,
    reason,
    says,
    scalar,
)

_Free = Mapping[Any, Any]
_KEYS: Final = (str, int, UUID, date, datetime)  # JSON keys of these types are restored exactly from their text
_LIVE: Final = (bytes, datetime, date, time, timedelta, Decimal, UUID)
_LISTS: Final = (abc.Sequence, abc.MutableSequence, abc.Iterable, abc.Collection)
_SETS: Final = (abc.Set, abc.MutableSet)


class AnnotationCompiler:
    """Compiles annotations, and collects the classes that they name: only these may be made from tagged text. `ours`:
    values are stored in Treadle's own formats, which cannot represent everything."""

    def __init__(self, ours: bool) -> None:
        self.ours = ours
        self.names: dict[type, str] = {}
        self.classes: dict[str, type] = {}
        self._made: dict[Any, TypeCheck] = {}

    def of(self, hint: Any, free: _Free = MappingProxyType({})) -> TypeCheck:
        """The check of an annotation; `free` maps the type variables around it to types."""
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
        return scalar(kind) or self._class(hint, kind, tuple(_unwrap(part, free) for part in args))

    def _alias(self, hint: Any) -> TypeCheck:
        if hint not in self._made:
            self._made[hint] = inside = TypeCheck(says(hint), loose=True)  # stored first, for a recursive alias
            self._made[hint] = whole = self.of(hint.__value__)
            inside.check = whole.check
        return self._made[hint]

    def _anything(self) -> TypeCheck:
        shape = TypeCheck("anything", exact=frozenset((str, int, bool, NoneType)))

        def check(value: Any, depth: int) -> bool:
            if tagged_json.is_plain(value):
                return True
            if self.ours:
                tagged_json.tag(value, self.names)  # raises for values that the tagged form cannot represent
            return False

        shape.check = check
        return shape

    def _annotated(self, args: tuple[Any, ...], free: _Free) -> TypeCheck:
        base = self.of(args[0], free)
        limits = tuple(part for part in args[1:] if isinstance(part, msgspec.Meta))
        if not limits:
            return base
        outer = get_origin(base.wire)
        rule = _subscript(Annotated, (base.wire if outer in (None, Union, UnionType, Literal) else outer, *limits))
        if not is_usable(rule):
            return base  # msgspec cannot apply these limits, for example to a union that it does not support
        shape = TypeCheck(base.says, _subscript(Annotated, (base.wire, *limits)), base.loose)

        def check(value: Any, depth: int) -> bool:
            plain = part_fits(base, value, depth - 1, "")
            try:
                msgspec.convert(value, rule, builtin_types=_LIVE, dec_hook=dec_hook)
            except msgspec.ValidationError as error:
                raise Unstorable(f"{reason(error)[0]}, got {found(value)}") from None
            return plain

        shape.check = check
        return shape.settle()

    def _literal(self, hint: Any, values: tuple[Any, ...]) -> TypeCheck:
        shape = TypeCheck(says(hint), hint)
        for value in values:
            if isinstance(value, Enum):
                self._name(type(value))

        def check(value: Any, depth: int) -> bool:
            return any(type(value) is type(one) and value == one for one in values) or shape.refuse(value, depth)

        shape.check = check
        return shape.settle()

    def _union(self, hint: Any, args: tuple[Any, ...], free: _Free) -> TypeCheck:
        parts = [self.of(part, free) for part in args]
        if any(part.untyped for part in parts):
            return self._anything()
        wires = [part.wire for part in parts]
        blurred = Decimal in wires and (int in wires or float in wires)  # a Decimal is decoded from numbers too
        shape = TypeCheck(says(hint), _subscript(Union, tuple(wires)), any(part.loose for part in parts))
        shape.exact = NOTHING.union(*(part.exact for part in parts))
        others = [part for part in parts if NoneType not in part.exact]

        def check(value: Any, depth: int) -> bool:
            if any(type(value) in part.exact for part in parts):
                return True
            for part in parts:
                try:
                    return part.check(value, depth)
                except Unstorable as error:
                    if error.path and len(others) == 1:
                        raise  # X | None: the error inside X is more precise
            return shape.refuse(value, depth)

        shape.check = check
        return shape.settle(not blurred)

    def _items(self, hint: Any, kind: Any, args: tuple[Any, ...], free: _Free) -> TypeCheck:
        item = self.of(args[0] if args else Any, free)
        base: Any = list if kind in _LISTS else set if kind in _SETS else kind
        takes: tuple[type, ...] = (set, frozenset) if kind in _SETS else (kind,)
        if kind in _LISTS:
            takes = (list, tuple) if issubclass(kind, abc.Sequence) else (list, tuple, set, frozenset)
        shape = TypeCheck(says(hint), base[item.wire], item.loose)

        def check(value: Any, depth: int) -> bool:
            return each(item, value, depth) if type(value) in takes else shape.refuse(value, depth)

        shape.check = check
        return shape

    def _tuple(self, hint: Any, args: tuple[Any, ...], free: _Free) -> TypeCheck:
        if not args and hint is tuple:
            args = (Any, ...)
        if any(get_origin(part) is typing.Unpack or getattr(part, "__unpacked__", False) for part in args):
            return opaque(tuple)
        many = args[-1:] == (...,)
        parts = [self.of(part, free) for part in args if part is not ...]
        wires = tuple(part.wire for part in parts)
        shape = TypeCheck(says(hint), _subscript(tuple, (*wires, ...) if many else wires))
        shape.loose = any(part.loose for part in parts)

        def check(value: Any, depth: int) -> bool:
            if type(value) is not tuple or not (many or len(value) == len(parts)):
                return shape.refuse(value, depth)
            if many:
                return each(parts[0], value, depth)
            return every(part_fits(parts[i], one, depth, f"[{i}]") for i, one in enumerate(value))

        shape.check = check
        return shape

    def _mapping(self, hint: Any, args: tuple[Any, ...], free: _Free) -> TypeCheck:
        key, item = (self.of(part, free) for part in args or (Any, Any))
        anyhow = key.untyped
        wire = str if anyhow else key.wire
        kept = wire in _KEYS or (not key.loose and _is_key(wire))
        shape = TypeCheck(says(hint), _subscript(dict, (wire, item.wire)), item.loose)

        def check(value: Any, depth: int) -> bool:
            if type(value) is not dict:
                return shape.refuse(value, depth)
            plain = set(map(type, value)) <= {str} if anyhow else True
            if not anyhow or not plain:
                plain = every(part_fits(key, one, depth, f"[{tags.short(one)}]") for one in value) and plain
            return each(item, value, depth) and plain

        shape.check = check
        return shape.settle(kept)

    def _class(self, hint: Any, kind: Any, args: tuple[Any, ...]) -> TypeCheck:
        known = hint if not args else (kind, repr(args))
        if known in self._made:
            return self._made[known]
        if issubclass(kind, Continuation):
            return opaque(kind)  # a spec is not data
        if issubclass(kind, Enum):
            self._name(kind)
            return instances(kind, frozenset((kind,))).settle(not issubclass(kind, Flag))
        if tags.is_model(kind):
            self._made[known] = shape = instances(kind).settle()
            self._name(kind)
            for field in kind.model_fields.values():  # its enums, in case the tagged form is needed
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
        return opaque(kind)

    def _record(self, hint: Any, known: Any, kind: Any, free: _Free) -> TypeCheck:
        self._made[known] = shape = TypeCheck(says(hint), hint)  # stored first, for recursive classes
        hints = typing.get_type_hints(kind, include_extras=True)
        fields = [(name, f".{name}", self.of(hints.get(name, Any), free)) for name in tagged_json.field_names(kind)]

        def check(value: Any, depth: int) -> bool:
            if type(value) is not kind:
                return shape.refuse(value, depth)
            if depth > tags.MAX_DEPTH:
                raise Unstorable(f"is nested more than {tags.MAX_DEPTH} deep, or contains itself")
            return every(part_fits(part, getattr(value, name, MISSING), depth, step) for name, step, part in fields)

        shape.check = check
        return shape.settle()

    def _typed_dict(self, hint: Any, known: Any, kind: Any, free: _Free) -> TypeCheck:
        self._made[known] = shape = TypeCheck(says(hint), hint)
        hints = typing.get_type_hints(kind, include_extras=True)
        fields = {name: self.of(part, free) for name, part in hints.items()}
        needed = {name for name, part in hints.items() if _is_needed(part, name in kind.__required_keys__)}

        def check(value: Any, depth: int) -> bool:
            if type(value) is not dict:
                return shape.refuse(value, depth)
            if depth > tags.MAX_DEPTH:
                raise Unstorable(f"is nested more than {tags.MAX_DEPTH} deep, or contains itself")
            wrong = [tags.short(name) for name in value if name not in fields] + sorted(needed - value.keys())
            if wrong:
                raise Unstorable(f"expected {shape.says}, got a dict with wrong or missing keys: {', '.join(wrong)}")
            return every(part_fits(fields[name], one, depth, f"[{name!r}]") for name, one in value.items())

        shape.check = check
        return shape.settle()

    def _name(self, kind: type) -> None:
        name = kind.__qualname__
        if self.classes.setdefault(name, kind) is not kind:
            name = f"{kind.__module__}.{name}"
            self.classes[name] = kind
        self.names[kind] = name


def _unwrap(hint: Any, free: _Free) -> Any:
    """The annotation without wrappers that do not restrict values: NewType, Required, Final, type variables."""
    for _ in range(tags.MAX_DEPTH):
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


def _subscript(form: Any, args: tuple[Any, ...]) -> Any:
    return form[args]


def _is_key(wire: Any) -> bool:
    """Whether the values of an enum or Literal are all texts or all integers, so JSON keys restore them exactly."""
    values = get_args(wire) if get_origin(wire) is Literal else ()
    if isinstance(wire, type) and issubclass(wire, Enum):
        values = tuple(one.value for one in wire)
    return len({type(value) for value in values}) == 1 and type(values[0]) in (str, int)
