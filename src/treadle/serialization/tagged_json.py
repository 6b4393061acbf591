"""Tagged JSON: represents values that JSON itself cannot, and never names code to import.

A text without the five characters ``"$t"`` (quotes included) is plain JSON. In any other text, an object with the key
``$t`` is a tag; everything else is plain JSON:

    {"$t": "tuple" | "set" | "frozenset", "v": [values]}
    {"$t": "dict", "v": [[key, value], ...]}        other keys than text, or a dict that has the key "$t"
    {"$t": "bytes", "v": base64}                    {"$t": "float", "v": "nan" | "inf" | "-inf"}
    {"$t": "datetime" | "date" | "time" | "timedelta", "v": ISO 8601}     with "fold": 1 if a time without a zone has it
    {"$t": "decimal" | "uuid", "v": text}           {"$t": "int", "v": "0x..."} beyond some 4,000 digits
    {"$t": "str", "v": [code points]}               text with lone surrogates, which UTF-8 cannot carry
    {"$t": "error", "v": {"type": name, "message": text, "stack": text}}      an exception; read back as `RemoteError`;
                                                               "stack" only of one that was raised
    {"$t": "enum", "of": name, "v": member}         {"$t": "object", "of": name, "v": {field: value}}

The last two are written and read only for classes in the task's annotations; elsewhere they are read as the member's
name and a dict. Integers below that size are JSON numbers: exact in Python, rounded by readers that use doubles. An
aware datetime is restored as the same instant with a fixed offset.
"""

from __future__ import annotations

import base64
import inspect
import sys
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from math import isfinite
from pathlib import PurePath
from types import NoneType
from typing import Any, Final, Protocol
from uuid import UUID

import msgspec

from treadle.core.errors import UNREADABLE
from treadle.core.job import Continuation
from treadle.core.plain_json import read_json
from treadle.serialization.nesting import circular, too_deep
from treadle.serialization.tagged_reader import untag
from treadle.serialization.tags import (
    MARK,
    MAX_DEPTH,
    TAG,
    RemoteError,
    Unstorable,
    _stack_of,
    field_names,
    flat,
    found,
    is_model,
    is_record,
    message_of,
    short,
)

MAX_VALUES: Final = 8_400_000  # 16 MiB of JSON cannot hold more; bounds shared parts that double at every level
WIDE: Final = 1_000_000  # values after which `is_plain` stops and the exact walk decides
_EXACT: Final = frozenset({str, int, bool, NoneType})  # JSON represents all their values exactly
_BITS: Final = 14_000  # Python writes at most 4,300 digits of an int: 14,284 bits


class Codec(Protocol):
    """Converts arguments and results to text. A user's codec must restore equal values of the same types:
    `serialization/own_codec.py` checks at the declaration of a task what its annotations allow, and each call checks
    values that JSON cannot represent. An exception that it raises becomes BadArgument or BadResult. It gets calls as
    ``{"args": [...], "kwargs": {...}}``."""

    def encode(self, value: object, /) -> str: ...
    def decode(self, text: str, /) -> object: ...


def has_mark(text: str) -> bool:
    """Whether a text is tagged. It searches for one character first: 2 us in 100 KB, where four take 85 us."""
    return "$" in text and MARK in text


def encode_any(value: object, names: Mapping[type, str] | None = None, *, flatten: bool = False) -> str:
    """The text of any plain value: None, bool, int, float, str, bytes, dates and times, Decimal, UUID, exceptions, and
    list, tuple, set, frozenset, dict of those. `names`: the classes that it may name; `flatten`: see `tag`. Raises
    Unstorable for everything else, for cycles and beyond 100 levels. The value is not changed."""
    if is_plain(value):
        text = _write(value)
        if text is not None and not has_mark(text):
            return text
    return write_tagged(tag(value, names, flatten=flatten))


def decode_any(text: str, classes: Mapping[str, type] | None = None) -> object:
    """The value that `encode_any` encoded. Objects and enum members of classes not in `classes` become dicts and names.
    Imports nothing, and calls no other classes. Raises Unstorable for any other text."""
    try:
        raw: object = read_json(text)
    except UNREADABLE as error:
        raise Unstorable(f"expected JSON: {error}") from None
    return untag(raw, classes) if has_mark(text) else raw


def _write(value: object) -> str | None:
    try:
        return msgspec.json.encode(value).decode()
    except (ValueError, TypeError):  # lone surrogates, integers beyond 4,300 digits: the tagged form represents them
        return None


def write_tagged(tree: object) -> str:
    """The text of a tree that `tag` returned."""
    return msgspec.json.encode(tree).decode()


def is_plain(value: object) -> bool:  # noqa: C901  (one flat loop: a call per container makes it a fifth slower)
    """Whether JSON represents the value exactly, apart from surrogates and huge integers. It checks containers level by
    level: 2.3 us for a dict of 20 values in 7 containers, 0.7 us for one of 5. Building the tagged tree takes 8 us."""
    level: list[Any] = [[value]]
    seen = 0
    for _ in range(MAX_DEPTH + 1):
        below: list[Any] = []
        for part in level:
            if type(part) is dict:
                for key in part:
                    if type(key) is not str or key == TAG:
                        return False
                part = part.values()
            seen += len(part)
            if len(part) > 8 and _EXACT.issuperset(map(type, part)):
                continue  # `issuperset` runs in C: fast for long lists of texts or integers
            for one in part:
                kind = type(one)
                if kind is dict or kind is list:
                    below.append(one)
                elif kind is float:
                    if not isfinite(one):
                        return False
                elif kind not in _EXACT:
                    return False
        if not below or seen > WIDE:
            return not below
        level = below
    return False


def tag(value: object, names: Mapping[type, str] | None = None, *, flatten: bool = False) -> object:
    """The value as a tree of JSON types. `flatten`: instances of subclasses of str, int and float (also StrEnum) become
    plain ones, for values whose annotations are already checked. Raises Unstorable."""
    try:
        return _Tagger(names, flatten)(value, 0)
    except RecursionError:
        raise too_deep(value) from None


class _Tagger:
    """One walk over one value: the classes that it may name, whether an annotation could name more (`annotated`), how
    many more values it accepts, and in how many models it is."""

    __slots__ = ("annotated", "flatten", "models", "names", "room")

    def __init__(self, names: Mapping[type, str] | None, flatten: bool) -> None:
        self.names, self.annotated = names or {}, names is not None
        self.flatten, self.room, self.models = flatten, MAX_VALUES, 0

    def __call__(self, value: Any, depth: int) -> object:
        kind = type(value)
        if kind is str:
            return value if value.isascii() or _is_utf8(value) else {TAG: "str", "v": [ord(c) for c in value]}
        if kind is bool or value is None:
            return value
        if kind is int:
            return value if value.bit_length() <= _BITS else {TAG: "int", "v": hex(value)}
        if kind is float:
            return value if isfinite(value) else {TAG: "float", "v": repr(value)}
        if kind is list:
            return self._items(value, depth)
        if kind is dict:
            return self._mapping(value, depth)
        if kind is tuple or kind is set or kind is frozenset:
            return {TAG: kind.__name__, "v": self._items(value, depth)}
        if kind in self.names:
            return self._known(value, kind, depth)
        return self._scalar(value, kind, depth)

    def _enter(self, values: Any, depth: int) -> None:
        self.room -= len(values)
        if depth >= MAX_DEPTH:
            raise too_deep(values)
        if self.room < 0:
            raise Unstorable(f"holds more than {MAX_VALUES:,} values")

    def _items(self, values: Any, depth: int) -> list[object]:
        self._enter(values, depth)
        out: list[object] = []
        try:
            for value in values:
                out.append(self(value, depth + 1))  # noqa: PERF401  # its length is the index of the failure
        except Unstorable as error:
            error.under(f"[{len(out)}]")
            raise
        return out

    def _mapping(self, values: dict[Any, Any], depth: int, fields: bool = False) -> object:
        self._enter(values, depth)
        plain = TAG not in values and all(type(k) is str and (k.isascii() or _is_utf8(k)) for k in values)
        pairs = []
        for key, value in values.items():
            try:
                pairs.append((key if plain else self(key, depth + 1), self(value, depth + 1)))
            except Unstorable as error:
                error.under(f".{key}" if fields else f"[{short(key)}]")
                raise
        return dict(pairs) if plain else {TAG: "dict", "v": pairs}

    def _known(self, value: Any, kind: type, depth: int) -> object:
        name = self.names[kind]
        if isinstance(value, Enum):
            member: object = value.name if value.name in kind.__members__ else value.value  # type: ignore[attr-defined]
            return {TAG: "enum", "of": name, "v": member}
        if is_model(kind):
            self.models += 1
            fields = _dumped(value)  # of a RootModel, and of some serializers, no dict
            tree = self._mapping(fields, depth, fields=True) if type(fields) is dict else self(fields, depth + 1)
            self.models -= 1
            return {TAG: "object", "of": name, "v": tree}
        fields = {field: getattr(value, field) for field in field_names(kind)}
        return {TAG: "object", "of": name, "v": self._mapping(fields, depth, fields=True)}

    def _scalar(self, value: Any, kind: type, depth: int) -> object:
        if kind is date:
            return {TAG: "date", "v": value.isoformat()}
        if kind is datetime or kind is time:
            if value.tzinfo is not None and value.utcoffset() is None:
                raise Unstorable(f"holds {found(value)}, whose zone needs a date: use a datetime or a fixed offset")
            tree = {TAG: kind.__name__, "v": value.isoformat()}
            return tree | {"fold": 1} if value.fold and value.tzinfo is None else tree
        if kind is timedelta:
            return {TAG: "timedelta", "v": msgspec.to_builtins(value)}
        if kind is bytes:
            return {TAG: "bytes", "v": base64.b64encode(value).decode()}
        if kind is Decimal or kind is UUID:
            return {TAG: kind.__name__.lower(), "v": str(value)}
        if isinstance(value, RemoteError):
            return self._error(value.type, value.message, value.stack)
        if isinstance(value, Exception):
            return self._error(kind.__qualname__, message_of(value), _stack_of(value))
        if self.flatten and isinstance(value, (str, int, float)):
            return self(flat(value), depth)
        if self.models:
            return self(_as_json(value), depth)
        raise Unstorable(_refusal(value, self.annotated))

    def _error(self, name: str, message: str, stack: str) -> object:
        facts = {"type": self(name, 0), "message": self(message, 0)}
        return {TAG: "error", "v": facts | {"stack": self(stack, 0)} if stack else facts}


def _dumped(model: Any) -> object:
    """The fields of a pydantic model, as its serializers write them. Raises Unstorable."""
    try:
        return model.model_dump(mode="python", by_alias=True, round_trip=True, warnings=False)
    except Exception as error:  # serializers are user code, and pydantic refuses cycles
        why = f"cannot be written by {type(model).__name__}: {type(error).__name__}: {short(str(error), 200)}"
        raise circular(model) or Unstorable(why) from None


def _as_json(value: Any) -> object:
    """A part of a model that only pydantic knows, such as a URL, in its JSON form. Raises Unstorable."""
    try:
        tree: object = sys.modules["pydantic_core"].to_jsonable_python(value)
    except Exception:  # pydantic does not know it either
        raise Unstorable(_refusal(value)) from None
    if type(tree) is type(value):
        raise Unstorable(_refusal(value))
    return tree


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _refusal(value: object, annotated: bool = True) -> str:
    kind = type(value)
    if is_record(kind) or isinstance(value, Enum) or is_model(kind):
        if not annotated:
            data = "value.model_dump(mode='json')" if is_model(kind) else "msgspec.to_builtins(value)"
            data = "value.value" if isinstance(value, Enum) else data
            why = f"no annotation can name {kind.__name__} here"
            return f"holds {found(value)}, and {why}: pass plain data, such as {data}"
        return (
            f"holds {found(value)}, and no annotation names {kind.__name__}: annotate the parameter or the return "
            "value with it; where there is none, as for a signal or a message, pass a dict of its fields"
        )
    for base in (str, int, float, list, dict, tuple, set):
        if isinstance(value, base):
            return f"holds {found(value)}: pass {base.__name__}(value), because a subclass is not restored"
    if isinstance(value, PurePath):
        return f"holds {found(value)}: annotate the parameter with str and pass str(path)"
    return f"holds {found(value)}, which cannot be stored: pass plain data, or an instance of an annotated dataclass"


def why_not(value: object, error: Unstorable) -> str:
    """Why a result cannot be stored, and for some results what to write instead."""
    parts = list(value.values()) if isinstance(value, Mapping) else value
    if isinstance(parts, list | tuple | set | frozenset) and any(isinstance(part, Continuation) for part in parts):
        return f"is a {type(value).__name__} of jobs: to run them as children of this job, return flow(*jobs)"
    if inspect.isawaitable(value):
        if inspect.iscoroutine(value):
            value.close()
        return f"is a {type(value).__name__} that nothing has awaited: make the function async, and await it there"
    if value is None:
        return f"{error}; return a value, or annotate the function with a type that allows None"
    return str(error)
