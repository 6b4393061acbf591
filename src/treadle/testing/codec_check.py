"""Checks that values survive their codec: in tests, a value that decodes differently is an error at the enqueue."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from treadle.core.errors import BadArgument, BadResult
from treadle.core.injected import call_signature
from treadle.serialization.call_codec import CallCodec

if TYPE_CHECKING:
    from treadle.tasks.core import TaskCore


class Checked:
    """A signature that decodes each value it has encoded, and raises if the two differ."""

    def __init__(self, signature: CallCodec, task: TaskCore) -> None:
        self._signature, self._task = signature, task
        self._parameters = call_signature(signature._function)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._signature, name)

    def encode_call(self, args: Sequence[object], kwargs: Mapping[str, object], *, first_later: bool = False) -> str:
        """Same as the signature's. Raises BadArgument for a value that does not decode to itself."""
        text = self._signature.encode_call(args, kwargs, first_later=first_later)
        if not first_later:
            again, named = self._signature.decode_call(text)
            encoded = self._parameters.bind(*args, **kwargs).arguments
            decoded = self._parameters.bind(*again, **named).arguments
            for name, value in encoded.items():
                if not same(value, decoded.get(name)):
                    raise BadArgument(self._task.name, name, _changed(value, decoded.get(name)))
        return text

    def encode_result(self, value: object) -> str:
        """Same as the signature's. Raises BadResult for a value that does not decode to itself."""
        return self._checked(value, self._signature.encode_result(value), self._signature.decode_result)

    def encode_value(self, value: object) -> str:
        """The folded results of children, checked like a result."""
        return self._checked(value, self._signature.encode_value(value), self._signature.decode_value)

    def _checked(self, value: object, text: str, decode: Callable[[str], object]) -> str:
        decoded = decode(text)
        if not same(value, decoded):
            raise BadResult(self._task.name, _changed(value, decoded))
        return text


def same(one: object, other: object) -> bool:
    """Equality as far as annotations promise it: a tuple may decode as a list, and NaN equals NaN."""
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, float) and one != one:
        return isinstance(other, float) and other != other
    if isinstance(one, BaseException):
        return isinstance(other, BaseException) and str(one) == str(other)
    return bool(one == other)


def _changed(value: object, decoded: object) -> str:
    return f"does not survive its codec: {short(value)} comes back as {short(decoded)}"


def short(value: object) -> str:
    """`repr(value)`, at most 200 characters long."""
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:197]}..."
