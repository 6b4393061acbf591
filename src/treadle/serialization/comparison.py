"""Compares a value with the one that was read from its text: types at every level, and all fields of its classes.

The `__eq__` of a class with fields is not used, because it may ignore some of them, and because 1 == True. A
conversion by an annotation is no difference: of a subclass of str, int or float, of an int to a float, of a zone to its
offset, and, outside of models, of the collections that abstract annotations accept.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from time import sleep
from types import BuiltinFunctionType, FunctionType, MethodType, MethodWrapperType, NoneType
from typing import Annotated, Any, Final, Literal, get_args, get_origin
from uuid import UUID

from treadle.serialization.tags import (
    RemoteError,
    Unstorable,
    field_names,
    flat,
    found,
    is_model,
    is_record,
    message_of,
    short,
)

_BY_VALUE: Final = frozenset({str, int, bool, NoneType, bytes, date, timedelta, UUID})
_SCALARS: Final = frozenset({*_BY_VALUE, Decimal, datetime, time})
_BASES: Final = (str, int, float)
_SETS: Final = (set, frozenset)
_CODE: Final = (FunctionType, BuiltinFunctionType, MethodType, MethodWrapperType)
_NOTHING: Final = object()


def same(sent: object, read: object) -> bool:
    """Whether the values are equal and of the same types at every level, without any conversion. NaN equals NaN, and an
    exception its RemoteError."""
    return _Comparison(False).of(sent, read, True) is None


def difference(sent: object, read: object) -> Unstorable | None:
    """The first part that differs otherwise than an annotation asks, with its path and both values; or None."""
    try:
        return _Comparison(True).of(sent, read, False)
    except RecursionError:
        return Unstorable("is nested too deep to be compared")


def fits_field(model: Any, name: str) -> bool:
    """Whether the default of a field is what its annotation makes of it, or nothing that the annotation allows."""
    field = model.model_fields[name]
    if field.is_required() or field.default_factory or field.default is None or type(field.default) is field.annotation:
        return True
    converted = _converted_default(model, name)
    return converted is _NOTHING or _Comparison(True).field(field.annotation, field.default, converted) is None


class _Comparison:
    """One walk over two values. It compares a pair of objects once, so cycles and shared parts end."""

    def __init__(self, converts: bool, named_code: bool = False) -> None:
        self._converts = converts  # whether an int may have become a float
        self._hint: Any = Any  # the annotation of the field of a model around
        self._named_code = named_code  # whether functions are equal if their names are
        self._seen: dict[tuple[int, int], object] = {}  # with the objects, so that their ids stay theirs

    def of(self, sent: Any, read: Any, strict: bool) -> Unstorable | None:
        """`strict`: inside a model, where pydantic keeps the kind of a collection."""
        kind = type(sent)
        if kind is not type(read):
            return self._converted(sent, read, strict)
        if kind in _BY_VALUE:
            return None if sent == read else _changed(sent, read)
        if kind is float:
            return None if sent == read or (sent != sent and read != read) else _changed(sent, read)
        pair = id(sent), id(read)
        if sent is read or pair in self._seen:
            return None
        self._seen[pair] = sent, read
        return self._parts(sent, read, kind, strict)

    def _parts(self, sent: Any, read: Any, kind: type, strict: bool) -> Unstorable | None:
        if is_model(kind):
            return self._models(sent, read)
        if is_record(kind):
            names = field_names(kind)
            one, other = ({name: getattr(value, name, _NOTHING) for name in names} for value in (sent, read))
            return self._named(names, one, other, strict)
        if issubclass(kind, list | tuple | deque):
            return self._items(sent, read, strict)
        if issubclass(kind, dict):
            return self._mappings(sent, read, strict)
        if issubclass(kind, _SETS):
            return self._members(sent, read, strict)
        if kind is Decimal:  # 1.10 and 1.1 differ, and comparing a signalling NaN raises
            equal = str(sent) == str(read)
        elif kind is datetime or kind is time:
            equal = _moment(sent) == _moment(read)
        elif issubclass(kind, Exception):
            equal = _facts(sent) == _facts(read)
        elif issubclass(kind, Enum):
            equal = sent._value_ == read._value_
        else:
            return self._objects(sent, read, strict)
        return None if equal else _changed(sent, read)

    def _converted(self, sent: Any, read: Any, strict: bool) -> Unstorable | None:
        """Values of two types: nothing, if an annotation converts the one to the other."""
        if isinstance(sent, Exception) and isinstance(read, Exception):
            return (
                None
                if RemoteError in (type(sent), type(read)) and _facts(sent) == _facts(read)
                else _changed(sent, read)
            )
        if self._converts and type(sent) is int and type(read) is float and sent == read:
            return None
        if _is_flattened(sent, read) and (not strict or _asks_for(self._hint, sent, read)):
            return None
        if not strict:
            if type(read) is list and type(sent) in (tuple, *_SETS):
                return self._items(sent, read, strict)
            if type(read) in _SETS and type(sent) in _SETS:
                return self._members(sent, read, strict)
        return _changed(sent, read)

    def _models(self, sent: Any, read: Any) -> Unstorable | None:
        for name, field in type(sent).model_fields.items():
            one, other = sent.__dict__.get(name, _NOTHING), read.__dict__.get(name, _NOTHING)
            changed = self.field(field.annotation, one, other)
            if changed is not None and (name in sent.model_fields_set or not _is_default(sent, name, one, other)):
                return _at(f".{name}", changed)
        one, other = (getattr(value, "__pydantic_extra__", None) or {} for value in (sent, read))
        for name in {**one, **other}:
            changed = self.field(Any, one.get(name, _NOTHING), other.get(name, _NOTHING))
            if changed is not None:
                return _at(f".{name}", changed)
        return self._private(sent, read)

    def field(self, hint: Any, sent: object, read: object) -> Unstorable | None:
        around, self._hint = self._hint, hint
        changed = self.of(sent, read, True)
        self._hint = around
        return changed

    def _private(self, sent: Any, read: Any) -> Unstorable | None:
        """The private attributes of two models. Code in them is what the class put there: the same by its name."""
        one, other = (getattr(value, "__pydantic_private__", None) or {} for value in (sent, read))
        around, self._named_code = self._named_code, True
        kind: Any = type(sent)
        try:
            for name in {**one, **other}:
                changed = self.field(Any, one.get(name, _NOTHING), other.get(name, _NOTHING))
                if changed is not None and not _is_always_new(kind, name):
                    return _at(f".{name}", changed)
        finally:
            self._named_code = around
        return None

    def _named(
        self, names: Iterable[str], sent: Mapping[str, object], read: Mapping[str, object], strict: bool
    ) -> Unstorable | None:
        for name in names:
            changed = self.of(sent.get(name, _NOTHING), read.get(name, _NOTHING), strict)
            if changed is not None:
                return _at(f".{name}", changed)
        return None

    def _items(self, sent: Any, read: Any, strict: bool) -> Unstorable | None:
        if len(sent) != len(read):
            return _changed(sent, read)
        for index, (one, other) in enumerate(zip(sent, read, strict=True)):
            changed = self.of(one, other, strict)
            if changed is not None:
                return _at(f"[{index}]", changed)
        return None

    def _mappings(self, sent: Any, read: Any, strict: bool) -> Unstorable | None:
        if len(sent) != len(read):
            return _changed(sent, read)
        for key, other in _paired(sent, read):
            changed = self.of(key, other, strict) or self.of(sent[key], read.get(other, _NOTHING), strict)
            if changed is not None:
                return _at(f"[{short(key)}]", changed)
        return None

    def _members(self, sent: Any, read: Any, strict: bool) -> Unstorable | None:
        if len(sent) != len(read):
            return _changed(sent, read)
        changes = (self.of(one, other, strict) for one, other in _paired(sent, read))
        return next((changed for changed in changes if changed is not None), None)

    def _objects(self, sent: Any, read: Any, strict: bool) -> Unstorable | None:
        """Instances of any other class: by its `__eq__`, or by their attributes if it has none. The `==` of an array
        gives no bool: then by what its class writes of it for a copy."""
        kind: Any = type(sent)
        if self._named_code and kind in _CODE:
            return None if sent.__qualname__ == read.__qualname__ else _changed(sent, read)
        if kind.__eq__ is object.__eq__:
            if not callable(sent) or (self._named_code and kind.__reduce__ is object.__reduce__):
                return self.of(object.__getstate__(sent), object.__getstate__(read), strict)
        else:
            try:
                equal = sent == read
            except Exception:  # `__eq__` is user code
                equal = None
            if type(equal) is bool:
                return None if equal else _changed(sent, read)
        if kind.__reduce__ is object.__reduce__:
            return _changed(sent, read)
        try:
            one, other = sent.__reduce_ex__(2), read.__reduce_ex__(2)
        except Exception:  # user code, too
            return _changed(sent, read)
        return None if self.of(one, other, strict) is None else _changed(sent, read)


def _paired(sent: Any, read: Any) -> Iterator[tuple[Any, Any]]:
    """The members of two sets, or the keys of two dicts, that belong together. Those without an equal one, such as
    NaN, are paired in the order of their reprs."""
    known = {key: key for key in read}
    alone = iter(sorted((key for key in read if key not in sent), key=short))
    yield from ((key, known[key]) for key in sent if key in known)
    yield from ((key, next(alone, _NOTHING)) for key in sorted((key for key in sent if key not in known), key=short))


@lru_cache(1_024)
def _is_always_new(model: Any, name: str) -> bool:
    """Whether the factory of a private attribute never makes the same again, such as `uuid4` or `time`."""
    factory = getattr(model.__private_attributes__.get(name), "default_factory", None)
    if factory is None:
        return False
    try:
        first = factory()
        sleep(0.001)  # a clock must go on; once for each attribute
        return _Comparison(True, True).of(first, factory(), True) is not None
    except Exception:  # user code
        return False


def _is_default(model: Any, name: str, sent: object, read: object) -> bool:
    """Whether this is the default of a field, which pydantic does not validate, and what its annotation makes of it."""
    kind: Any = type(model)
    return same(sent, kind.model_fields[name].default) and same(_converted_default(kind, name), read)


@lru_cache(1_024)
def _converted_default(model: Any, name: str) -> object:
    """The default of a field as its annotation reads it, without the validators; _NOTHING if it refuses it."""
    field = model.model_fields[name]
    adapter = sys.modules["pydantic"].TypeAdapter
    try:
        try:
            reader = adapter(field.annotation, config=model.model_config)
        except sys.modules["pydantic"].PydanticUserError:  # a class that has a configuration of its own
            reader = adapter(field.annotation)
        return reader.validate_python(field.default)
    except Exception:  # the classes in the annotation are user code
        return _NOTHING


def _is_flattened(sent: Any, read: Any) -> bool:
    """Whether this is an instance of a subclass of str, int or float, as an instance of that base."""
    base = type(read)
    if base not in _BASES or type(sent) is bool or not isinstance(sent, (int, float) if base is float else base):
        return False
    return flat(sent) == read or (sent != sent and read != read)


def _asks_for(hint: Any, sent: object, read: object) -> bool:
    """Whether a field names the type of what was read, and nothing else that allows what was sent: `list[float]` does
    for a subclass of float."""
    kinds = list(_leaves(hint))
    return type(read) in kinds and all(kind in _BASES or _is_other(kind, sent) for kind in kinds)


def _is_other(kind: Any, sent: object) -> bool:
    """Whether a type holds no parts that another annotation describes, and does not allow this value itself."""
    if not isinstance(kind, type):
        return False
    return kind in _SCALARS or is_model(kind) or (issubclass(kind, Enum) and not isinstance(sent, kind))


def _leaves(hint: Any) -> Iterator[Any]:
    """The types in an annotation that have no parameters."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        yield from _leaves(args[0])
    elif args and origin is not Literal:
        for part in args:
            if part is not ...:
                yield from _leaves(part)
    else:
        yield hint


def _moment(value: Any) -> tuple[object, ...]:
    """A datetime or time without its zone, and the offset. Of an aware one, the offset says what `fold` says."""
    offset = value.utcoffset()
    return value.replace(tzinfo=None, fold=0), offset, offset is None and value.fold


def _facts(error: Exception) -> tuple[str, str]:
    return (error.type if isinstance(error, RemoteError) else type(error).__qualname__), message_of(error)


def _changed(sent: object, read: object) -> Unstorable:
    old, new = ("nothing" if value is _NOTHING else found(value) for value in (sent, read))
    return Unstorable(f"{old} would arrive {'changed' if new == old else f'as {new}'}")


def _at(step: str, changed: Unstorable) -> Unstorable:
    changed.under(step)
    return changed
