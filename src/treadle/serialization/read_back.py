"""Reads a text as soon as it is written, where a class may change its values.

The worker must get what was passed; otherwise the call fails, or the job whose result it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from treadle.core.errors import BadArgument, BadResult
from treadle.serialization import tagged_json
from treadle.serialization.call_text import write_call
from treadle.serialization.comparison import difference
from treadle.serialization.nesting import too_deep
from treadle.serialization.parameters import Param, Parameters
from treadle.serialization.tags import Unstorable

_ADVICE: Final = "its class does not read all of what it writes: pass plain data, or change the class"
_REFUSED: Final = "its class refuses what it wrote: pass a value that it accepts again, or change the class"


class CallCodec(Protocol):
    """The parts of the codec of a task that are used here."""

    name: str
    _names: Mapping[type, str]
    _tagged_risk: int

    def _arguments(self, plan: Parameters, text: str) -> tuple[tuple[object, ...], dict[str, object]]: ...
    def _decode(self, result: Param, text: str) -> object: ...


def tagged_call(codec: CallCodec, plan: Parameters, args: Sequence[object], kwargs: Mapping[str, object]) -> str:
    """The payload of a checked call in the tagged form. Raises BadArgument."""
    trees = [_tag(codec, param, value) for param, value in zip(plan.places(len(args)), args, strict=False)]
    named = {name: _tag(codec, plan.by(name), value, name) for name, value in kwargs.items()}
    text = write_call(codec.name, trees, named)
    if codec._tagged_risk and (error := changed_argument(codec, plan, text, args, kwargs)) is not None:
        raise error
    return text


def _tag(codec: CallCodec, param: Param, value: object, name: str | None = None) -> object:
    try:
        return tagged_json.tag(value, codec._names, flatten=not param.shape.untyped)
    except Unstorable as error:
        raise BadArgument(codec.name, name or param.name, str(error)) from None


def unstorable_result(task: str, value: object, error: Exception) -> BadResult:
    """The error for a result that could not be encoded."""
    if isinstance(error, RecursionError):
        error = too_deep(value)
    if isinstance(error, Unstorable):
        return BadResult(task, tagged_json.why_not(value, error))
    return BadResult(task, f"cannot be stored: {type(error).__name__}: {error}")


def changed_argument(
    codec: CallCodec, plan: Parameters, text: str, args: Sequence[object], kwargs: Mapping[str, object]
) -> BadArgument | None:
    """Why the worker would not get the arguments of this text as they are; None if it would."""
    try:
        back, named_back = codec._arguments(plan, text)
    except BadArgument as error:
        return BadArgument(codec.name, error.parameter, f"could not be read again: {error.problem}; {_REFUSED}")
    by_place, named = plan.bind(codec.name, args, kwargs)
    sent = [(plan.at(index).name, value) for index, value in enumerate(by_place)] + list(named.items())
    for (name, value), read in zip(sent, [*back, *named_back.values()], strict=True):
        changed = difference(value, read)
        if changed is not None:
            return BadArgument(codec.name, name, f"{changed}; {_ADVICE}")
    return None


def changed_result(codec: CallCodec, param: Param, text: str, value: object) -> BadResult | None:
    """Why the result of this text would not be read as it is; None if it would."""
    try:
        back = codec._decode(param, text)
    except BadResult as error:
        why = error.problem.removeprefix("as stored: ")
        return BadResult(codec.name, f"could not be read again: {why}; {_REFUSED}")
    changed = difference(value, back)
    return None if changed is None else BadResult(codec.name, f"{changed}; {_ADVICE}")
