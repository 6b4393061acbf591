"""The codec of a step's result: from the return annotation of the function that the step calls."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from treadle.serialization.call_codec import CallCodec, Codec


def _untyped() -> Any: ...


_known: WeakKeyDictionary[Any, dict[Codec | None, CallCodec]] = WeakKeyDictionary()


def signature_of(function: Callable[..., Any], name: str, codec: Codec | None) -> CallCodec:
    """The codec of a step's result, by the function's return annotation if it has one."""
    own: Any = getattr(function, "signature", None)
    if isinstance(own, CallCodec):
        return own
    if "return" not in getattr(inspect.unwrap(function), "__annotations__", ()):
        return CallCodec(name, _untyped, codec)
    try:
        known = _known.setdefault(function, {})
    except TypeError:  # not hashable, or without weak references
        return CallCodec(name, function, codec)
    if codec not in known:
        known[codec] = CallCodec(name, function, codec)
    return known[codec]


def _signature_of_kind(kind: Any) -> CallCodec:
    def given() -> Any: ...

    given.__annotations__["return"] = kind
    return CallCodec("wait_for", given)
