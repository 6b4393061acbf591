"""Reads tagged JSON. Every tag is checked, and no text can make it import code."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import msgspec

from treadle.serialization.tags import MAX_DEPTH, TAG, RemoteError, Unstorable, found, is_model, reason, short

# CPython reads an offset of less than a second as 0.
_SPLIT_SECOND: Final = re.compile(r"([+-])00:00:00\.(\d{6})$")


def untag(raw: object, classes: Mapping[str, type] | None = None) -> object:
    """The value of a parsed tagged text. Raises Unstorable for an unknown or malformed tag."""
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
            known = classes.get(raw.get("of", ""))
            whole = TAG in v if type(v) is dict else is_model(known)
            fields = read(v) if whole else {key: read(item) for key, item in v.items()}
            return fields if known is None else build(known, fields)
        case "enum":
            return member(classes[raw["of"]], v) if raw.get("of") in classes else v
        case "error":
            stack = _text(read(v["stack"])) if "stack" in v else ""
            return RemoteError(_text(read(v["type"])), _text(read(v["message"])), stack)
        case "str":
            return "".join(map(chr, _list(v)))
        case _:
            return _read_scalar(kind, _text(v), raw)


def _read_scalar(kind: str, v: str, raw: dict[str, Any]) -> object:
    match kind:
        case "bytes":
            return base64.b64decode(v, validate=True)
        case "datetime":
            return _moment(datetime.fromisoformat(v), v, raw)
        case "date":
            return date.fromisoformat(v)
        case "time":
            return _moment(time.fromisoformat(v), v, raw)
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
    raise ValueError("unknown tag")


def _moment(value: Any, v: str, raw: dict[str, Any]) -> object:
    if (offset := _SPLIT_SECOND.search(v)) is not None:
        sign, micros = offset.groups()
        return value.replace(tzinfo=timezone(timedelta(microseconds=int(f"{sign}{micros}"))))
    return value.replace(fold=1) if raw.get("fold") == 1 else value


def _list(v: object) -> list[Any]:
    if type(v) is not list:
        raise TypeError(f"expected an array, got {found(v)}")
    return v


def _text(v: object) -> str:
    if type(v) is not str:
        raise TypeError(f"expected text, got {found(v)}")
    return v


def member(kind: Any, v: object) -> object:
    """A member of an Enum by its name, or a combination of flags by its value."""
    return kind[v] if isinstance(v, str) else kind(v)


def build(kind: Any, values: Any) -> object:
    """An instance with these fields, made by the class's own constructor, whose errors become Unstorable."""
    try:
        if is_model(kind):
            return kind.model_validate(values)
        late = {field.name for field in getattr(kind, "__dataclass_fields__", {}).values() if not field.init}
        instance = kind(**{name: value for name, value in values.items() if name not in late})
        for name in late & values.keys():
            object.__setattr__(instance, name, values[name])
        return instance
    except Exception as error:  # the class is user code, so its constructor may raise anything
        why, path = reason(error)
        raise Unstorable(f"cannot be restored as {kind.__name__}: {why}", path) from None
