"""The codec of a step's result: from the return annotation of the function that the step calls.

Codecs are cached by annotation and not by function. A function that is defined in its task is another object in each
run, and a cache would keep it, with all that it refers to, for as long as the process lives.
"""

from __future__ import annotations

import builtins
import copy
import functools
import inspect
import typing
from collections.abc import Callable
from typing import Any, Final

from treadle.core.injected import annotations_of, evaluated_in
from treadle.serialization.call_codec import CallCodec, Codec

KEPT: Final = 1_024  # codecs; making one takes 80 us


def signature_of(function: Callable[..., Any], name: str, codec: Codec | None) -> CallCodec:
    """The codec of a step's result, by the function's return annotation if it has one."""
    own: Any = getattr(function, "signature", None)
    if isinstance(own, CallCodec):
        return own
    try:
        kind = _returned(inspect.unwrap(function))
    except (TypeError, ValueError, SyntaxError):
        return CallCodec(name, function, codec)  # raises BadTask, which says what is wrong
    return signature_of_kind(kind, name, codec)


def signature_of_kind(kind: Any, name: str, codec: Codec | None = None) -> CallCodec:
    """The codec of a value of this type."""
    try:
        codec_of = _kept(kind, typing.cast("Any", codec))
    except TypeError:  # not hashable
        codec_of = _new(kind, codec)
    codec_of = copy.copy(codec_of)
    codec_of.name = name  # its errors name the step
    return codec_of


def _returned(function: Callable[..., Any]) -> Any:
    """The evaluated return annotation; Any if there is none, or if a name in it is unknown."""
    kind = annotations_of(function).get("return", Any)
    known = getattr(function, "__globals__", {})
    plain = known.get(kind, vars(builtins).get(kind)) if isinstance(kind, str) else kind
    if isinstance(plain, type) and not typing.get_args(plain):
        return plain  # evaluating it takes 14 us
    try:
        return evaluated_in(function, {"return": kind})["return"]
    except (NameError, AttributeError):
        return Any


def _new(kind: Any, codec: Codec | None) -> CallCodec:
    def given() -> Any: ...

    given.__annotations__["return"] = kind
    return CallCodec("", given, codec)


_kept = functools.lru_cache(KEPT)(_new)


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling it gives a coroutine; also for a task, a partial, and an object with `async def __call__`."""
    while isinstance(function, functools.partial):
        function = function.func
    function = getattr(function, "__wrapped__", function)  # a task wraps its function
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004
