"""Tagged JSON: what JSON cannot say, said in JSON, without ever naming code to import.

Without this file a tuple, a date or a NaN in an untyped argument would come back as something else,
and an exception could not be told at all.

The form. A text in which the five characters ``"$t"`` (quotes included) do not occur is plain JSON and means
what it says. In any other text, an object with the key ``$t`` is a tag; everything else still means itself:

    {"$t": "tuple" | "set" | "frozenset", "v": [values]}
    {"$t": "dict", "v": [[key, value], ...]}        other keys than text, or a dict that has the key "$t"
    {"$t": "bytes", "v": base64}                    {"$t": "float", "v": "nan" | "inf" | "-inf"}
    {"$t": "datetime" | "date" | "time" | "timedelta", "v": ISO 8601}
    {"$t": "decimal" | "uuid", "v": text}           {"$t": "int", "v": "0x..."} beyond some 4,000 digits
    {"$t": "str", "v": [code points]}               text with lone surrogates, which UTF-8 cannot carry
    {"$t": "error", "v": {"type": name, "message": text, "stack": text}}      an exception; read back as `RemoteError`;
                                                               "stack" only of one that was raised
    {"$t": "enum", "of": name, "v": member}         {"$t": "object", "of": name, "v": {field: value}}

The last two are written and read only for classes that stand in the task's annotations; read anywhere else they
become the member's name and a dict. Integers of any size below are JSON numbers: exact in Python, rounded by a
reader that makes doubles of them. An aware datetime comes back as the same moment at a fixed offset.
"""

from __future__ import annotations

import base64
import dataclasses
import sys
import traceback
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from math import isfinite
from pathlib import PurePath
from types import NoneType
from typing import Any, Final, Protocol
from uuid import UUID

import msgspec

from treadle.core.job import Continuation
from treadle.errors import UNREADABLE, TreadleError

TAG: Final = "$t"
MARK: Final = '"$t"'  # in a text: it is tagged. A text value holding these characters has its quotes escaped
STACK: Final = 4_000  # characters of a traceback, the last ones
MAX_DEPTH: Final = 100  # containers inside each other; deeper is a cycle or a mistake
MAX_VALUES: Final = 8_400_000  # 16 MiB of JSON cannot hold more; bounds shared parts that double at every level
WIDE: Final = 1_000_000  # values after which the level-wise look gives up and the exact walk decides
_EXACT: Final = frozenset({str, int, bool, NoneType})  # what JSON says exactly, whatever the value
_BITS: Final = 14_000  # Python writes at most 4,300 digits of an int: 14,284 bits


class Unstorable(TreadleError, ValueError):
    """A value the form cannot carry, or a text it cannot read. `path` leads from the outermost value to it."""

    def __init__(self, problem: str, path: str = "") -> None:
        self.problem, self.path = problem, path
        super().__init__(problem, path)

    def under(self, step: str) -> None:
        """Says that the value stands one container further in. A cycle's path ends somewhere."""
        if len(self.path) < 200:
            self.path = step + self.path

    def __str__(self) -> str:
        return f"at {self.path} {self.problem}" if self.path else self.problem


class RemoteError(Exception):
    """An exception that crossed a process as data: the name of its class and its message, never the class.

    stack  its traceback as text; empty if it was never raised. Two that differ in it only are equal
    """

    def __init__(self, type: str, message: str, stack: str = "") -> None:
        self.type, self.message, self.stack = type, message, stack
        super().__init__(type, message)

    def __reduce__(self) -> tuple[Any, ...]:
        return RemoteError, (self.type, self.message, self.stack)

    def __str__(self) -> str:
        return self.message

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemoteError) and self.args == other.args

    def __hash__(self) -> int:
        return hash(self.args)


class Codec(Protocol):
    """What turns arguments and results into text. A user's own must give back equal values of the same types
    (`serialization/verify_codec.py` looks); any exception it raises becomes BadArgument or BadResult. Calls reach it
    as ``{"args": [...], "kwargs": {...}}``."""

    def encode(self, value: object, /) -> str: ...
    def decode(self, text: str, /) -> object: ...


class TaggedCodec:
    """The default: plain JSON where JSON is enough, tagged JSON where not."""

    def encode(self, value: object, /) -> str:
        """Raises Unstorable."""
        return encode_any(value)

    def decode(self, text: str, /) -> object:
        """Raises Unstorable."""
        return decode_any(text)


def has_mark(text: str) -> bool:
    """Whether a text is tagged. One character is looked for first: 2 us in 100 KB, where four take 85."""
    return "$" in text and MARK in text


def encode_any(value: object, names: Mapping[type, str] | None = None) -> str:
    """The text of any plain value: None, bool, int, float, str, bytes, dates and times, Decimal, UUID, exceptions,
    and list, tuple, set, frozenset, dict of those. `names` are the classes it may name. Raises Unstorable for
    everything else, for cycles and beyond 100 levels; the value is never changed."""
    if is_plain(value):
        text = _write(value)
        if text is not None and not has_mark(text):
            return text
    return write_tagged(tag(value, names))


def decode_any(text: str, classes: Mapping[str, type] | None = None) -> object:
    """What `encode_any` was given. Objects and enum members of classes not in `classes` become dicts and names.
    Nothing is imported and nothing but those classes is called. Raises Unstorable for any other text."""
    try:
        raw: object = msgspec.json.decode(text)
    except UNREADABLE as error:
        raise Unstorable(f"expected JSON: {error}") from None
    return untag(raw, classes) if has_mark(text) else raw


def _write(value: object) -> str | None:
    try:
        return msgspec.json.encode(value).decode()
    except (ValueError, TypeError):  # lone surrogates, integers beyond 4,300 digits: the tagged form has words for them
        return None


def write_tagged(tree: object) -> str:
    """The text of what `tag` made."""
    return msgspec.json.encode(tree).decode()


def is_plain(value: object) -> bool:  # noqa: C901  (one flat loop: a call per container makes it a fifth slower)
    """Whether JSON says the value exactly, surrogates and huge integers apart. Looks at containers a level at a time:
    2.3 us for a dict of 20 values in 7 containers, 0.7 for one of 5; making the tagged tree takes 8."""
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
                continue  # in C: long lists of text or whole numbers
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
    """The value as a tree JSON can say. `flatten`: subclasses of str, int and float (StrEnum too) count as what they
    are underneath, for values whose annotations were checked already. Raises Unstorable."""
    try:
        return _Tagger(names or {}, flatten)(value, 0)
    except RecursionError:
        raise Unstorable("is nested too deep to be stored from here") from None


class _Tagger:
    """One walk over one value: the classes it may name, and how many values it may still meet."""

    __slots__ = ("flatten", "names", "room")

    def __init__(self, names: Mapping[type, str], flatten: bool) -> None:
        self.names, self.flatten, self.room = names, flatten, MAX_VALUES

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

    def _enter(self, count: int, depth: int) -> None:
        self.room -= count
        if depth >= MAX_DEPTH:
            raise Unstorable(f"is nested more than {MAX_DEPTH} deep, or contains itself")
        if self.room < 0:
            raise Unstorable(f"holds more than {MAX_VALUES:,} values")

    def _items(self, values: Any, depth: int) -> list[object]:
        self._enter(len(values), depth)
        out: list[object] = []
        try:
            for value in values:
                out.append(self(value, depth + 1))  # noqa: PERF401  (the length says where it stopped)
        except Unstorable as error:
            error.under(f"[{len(out)}]")
            raise
        return out

    def _mapping(self, values: dict[Any, Any], depth: int) -> object:
        self._enter(len(values), depth)
        plain = TAG not in values and all(type(k) is str and (k.isascii() or _is_utf8(k)) for k in values)
        pairs = []
        for key, value in values.items():
            try:
                pairs.append((key if plain else self(key, depth + 1), self(value, depth + 1)))
            except Unstorable as error:
                error.under(f"[{short(key)}]")
                raise
        return dict(pairs) if plain else {TAG: "dict", "v": pairs}

    def _known(self, value: Any, kind: type, depth: int) -> object:
        name = self.names[kind]
        if isinstance(value, Enum):
            member: object = value.name if value.name in kind.__members__ else value.value  # type: ignore[attr-defined]
            return {TAG: "enum", "of": name, "v": member}
        if is_model(kind):
            fields = value.model_dump(mode="python", by_alias=True, round_trip=True)
        else:
            fields = {field: getattr(value, field) for field in field_names(kind)}
        return {TAG: "object", "of": name, "v": self._mapping(fields, depth)}

    def _scalar(self, value: Any, kind: type, depth: int) -> object:
        if kind is datetime or kind is date:
            return {TAG: kind.__name__, "v": value.isoformat()}
        if kind is time:
            if value.tzinfo is not None and value.utcoffset() is None:
                raise Unstorable(f"holds {found(value)}, whose zone needs a date: use a datetime or a fixed offset")
            return {TAG: "time", "v": value.isoformat()}
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
        raise Unstorable(_refusal(value))

    def _error(self, name: str, message: str, stack: str) -> object:
        facts = {"type": self(name, 0), "message": self(message, 0)}
        return {TAG: "error", "v": facts | {"stack": self(stack, 0)} if stack else facts}


def flat(value: str | int | float) -> str | int | float:
    """An instance of a subclass of str, int or float as what it is underneath."""
    if isinstance(value, str):
        return str.__str__(value)
    return int.__index__(value) if isinstance(value, int) else float.__float__(value)


def field_names(kind: Any) -> tuple[str, ...]:
    """The fields of a Struct, dataclass or NamedTuple class."""
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    names: tuple[str, ...] = kind.__struct_fields__ if issubclass(kind, msgspec.Struct) else kind._fields
    return names


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def message_of(error: Exception) -> str:
    """What the exception says, whatever it is."""
    try:
        return str(error)
    except Exception:  # a broken __str__ must not lose the failure itself
        return "(its message cannot be read)"


def _stack_of(error: Exception) -> str:
    """Its traceback, at most STACK characters; empty if it was never raised."""
    if error.__traceback__ is None:
        return ""
    try:
        text = "".join(traceback.format_exception(error)).rstrip()
    except Exception:  # a broken __str__ of it, or of what was behind it
        text = "".join(traceback.format_tb(error.__traceback__)).rstrip()
    return text if len(text) <= STACK else f"... (shortened) ...\n{text[-STACK:]}"


def short(value: object, most: int = 60) -> str:
    """A repr that cannot fail, of at most `most` characters."""
    try:
        text = repr(value)
    except Exception:  # somebody's broken __repr__, or a tree too deep to show
        return "..."
    return text if len(text) <= most else text[: most - 3] + "..."


def found(value: object) -> str:
    """What was found, for messages: ``int (42)``."""
    return "None" if value is None else f"{type(value).__name__} ({short(value)})"


def is_model(kind: object) -> bool:
    """Whether a class is a pydantic model; pydantic is never imported for it."""
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(kind, type) and issubclass(kind, pydantic.BaseModel)


def _refusal(value: object) -> str:
    kind = type(value)
    named = isinstance(value, tuple) and hasattr(value, "_fields")
    record = isinstance(value, msgspec.Struct) and not isinstance(value, Continuation)
    if record or isinstance(value, Enum) or dataclasses.is_dataclass(value) or named or is_model(kind):
        return (
            f"holds {found(value)} where no annotation names {kind.__name__}: "
            f"annotate the parameter (or the return value) with it"
        )
    for base in (str, int, float, list, dict, tuple, set):
        if isinstance(value, base):
            return f"holds {found(value)}: pass {base.__name__}(value), a subclass would not come back"
    if isinstance(value, PurePath):
        return f"holds {found(value)}: annotate the parameter with str and pass str(path), a path is text to store"
    return f"holds {found(value)}, which cannot be stored: pass plain data, or a dataclass that is annotated"


def untag(raw: object, classes: Mapping[str, type] | None = None) -> object:
    """The value of a parsed tagged text. Raises Unstorable for a tag that is not one of ours or is malformed."""
    return _untag(raw, classes or {}, 0)


def _untag(raw: Any, classes: Mapping[str, type], depth: int) -> Any:
    kind = type(raw)
    if kind is not list and kind is not dict:
        return raw
    if depth >= MAX_DEPTH + 2:
        raise Unstorable(f"is nested more than {MAX_DEPTH} deep")
    if kind is list:
        return [_untag(item, classes, depth + 1) for item in raw]
    if TAG not in raw:
        return {key: _untag(item, classes, depth + 1) for key, item in raw.items()}
    try:
        return _read(raw[TAG], raw["v"], raw, lambda part: _untag(part, classes, depth + 1), classes)
    except Unstorable:
        raise
    except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError) as error:
        raise Unstorable(f"holds a malformed tag {short(raw)}: {type(error).__name__} {error}") from None


def _read(kind: str, v: Any, raw: dict[str, Any], read: Callable[[object], Any], classes: Mapping[str, type]) -> Any:
    match kind:
        case "tuple" | "set" | "frozenset":
            return {"tuple": tuple, "set": set, "frozenset": frozenset}[kind](map(read, _list(v)))
        case "dict":
            return {read(key): read(item) for key, item in map(_list, _list(v))}
        case "object":
            made = read(v) if TAG in v else {key: read(item) for key, item in v.items()}
            return build(classes[raw["of"]], made) if raw.get("of") in classes else made
        case "enum":
            return member(classes[raw["of"]], v) if raw.get("of") in classes else v
        case "error":
            stack = _text(read(v["stack"])) if "stack" in v else ""
            return RemoteError(_text(read(v["type"])), _text(read(v["message"])), stack)
        case "str":
            return "".join(map(chr, _list(v)))
        case _:
            return _read_scalar(kind, _text(v))


def _read_scalar(kind: str, v: str) -> object:
    match kind:
        case "bytes":
            return base64.b64decode(v, validate=True)
        case "datetime":
            return datetime.fromisoformat(v)
        case "date":
            return date.fromisoformat(v)
        case "time":
            return time.fromisoformat(v)
        case "timedelta":
            return msgspec.convert(v, timedelta)
        case "decimal":
            return Decimal(v)
        case "uuid":
            return UUID(v)
        case "int":
            return int(v, 16)
        case "float" if v in ("nan", "inf", "-inf"):
            return float(v)
    raise ValueError("no such tag")


def _list(v: object) -> list[Any]:
    if type(v) is not list:
        raise TypeError(f"expected an array, got {found(v)}")
    return v


def _text(v: object) -> str:
    if type(v) is not str:
        raise TypeError(f"expected text, got {found(v)}")
    return v


def member(kind: Any, v: object) -> object:
    """A member of an Enum by its name; a combination of flags by its value."""
    return kind[v] if isinstance(v, str) else kind(v)


def build(kind: Any, values: dict[str, Any]) -> object:
    """An instance from its fields, through its own constructor. Any error of that is Unstorable."""
    try:
        if is_model(kind):
            return kind.model_validate(values)
        late = {field.name for field in getattr(kind, "__dataclass_fields__", {}).values() if not field.init}
        made = kind(**{name: value for name, value in values.items() if name not in late})
        for name in late & values.keys():
            object.__setattr__(made, name, values[name])
        return made
    except Exception as error:  # the class is the user's, and so is what its constructor raises
        raise Unstorable(f"does not make a {kind.__name__}: {type(error).__name__} {error}") from None
