"""Whether values survive their codec: in tests one that comes back as another is an error where it is enqueued."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from treadle.errors import BadArgument, BadResult
from treadle.serialization.call_codec import CallCodec

if TYPE_CHECKING:
    from treadle.execution.runner import AnyTask


class Checked:
    """A signature that reads what it has written, and complains where that is something else."""

    def __init__(self, signature: CallCodec, task: AnyTask) -> None:
        self._signature, self._task = signature, task
        self._parameters = inspect.signature(signature._function)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._signature, name)

    def encode_call(self, args: Sequence[object], kwargs: Mapping[str, object], *, first_later: bool = False) -> str:
        """As the signature does. Raises BadArgument for a value that does not come back as it is."""
        text = self._signature.encode_call(args, kwargs, first_later=first_later)
        if not first_later:
            again, named = self._signature.decode_call(text)
            given = self._parameters.bind(*args, **kwargs).arguments
            found = self._parameters.bind(*again, **named).arguments
            for name, value in given.items():
                if not same(value, found.get(name)):
                    raise BadArgument(self._task.name, name, _changed(value, found.get(name)))
        return text

    def encode_result(self, value: object) -> str:
        """As the signature does. Raises BadResult for a value that does not come back as it is."""
        text = self._signature.encode_result(value)
        found = self._signature.decode_result(text)
        if not same(value, found):
            raise BadResult(self._task.name, _changed(value, found))
        return text

    def encode_value(self, value: object) -> str:
        """What children's results were folded to; as for a result."""
        text = self._signature.encode_value(value)
        found = self._signature.decode_value(text)
        if not same(value, found):
            raise BadResult(self._task.name, _changed(value, found))
        return text


def same(one: object, other: object) -> bool:
    """Equal, as far as annotations promise it: a tuple may come back as a list, a NaN is the same as another."""
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, float) and one != one:
        return isinstance(other, float) and other != other
    if isinstance(one, BaseException):
        return isinstance(other, BaseException) and str(one) == str(other)
    return bool(one == other)


def _changed(value: object, found: object) -> str:
    return f"does not survive its codec: {short(value)} comes back as {short(found)}"


def short(value: object) -> str:
    """As Python writes it, 200 characters at most."""
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:197]}..."
