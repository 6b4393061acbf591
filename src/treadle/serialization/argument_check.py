"""Lists every part of a stored call that a signature cannot read; `CallCodec.decode_call` stops at the first.

Only calls that `decode_call` refused come here, so this need not be fast.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from treadle.core.errors import UNREADABLE, BadArgument, BadTask
from treadle.core.plain_json import read_json, refuse_deep
from treadle.serialization.call_codec import CallCodec
from treadle.serialization.call_text import _envelope, _read_array, _read_object
from treadle.serialization.parameters import Envelope, Param, Parameters
from treadle.serialization.tagged_json import has_mark


def reads(signature: CallCodec, text: str, first_later: bool = False) -> bool:
    """Whether the signature can read this payload. Takes 1 us, and drops the decoded values."""
    try:
        if first_later:
            signature._arguments(signature._late(), text)
        else:
            signature.decode_call(text)
    except (BadArgument, BadTask):
        return False
    return True


def misfits(signature: CallCodec, text: str, first_later: bool = False) -> list[BadArgument]:
    """Why this payload cannot be read, one error for each parameter, in the order of the call; [] if it can.

    first_later  the first argument is the result of another job, so the payload lacks it
    """
    try:
        plan = signature._late() if first_later else signature._ready()
        args, kwargs, tags = _parts(signature, text)
    except BadArgument as error:
        return [error]
    errors = [*_of_shape(signature.name, plan, args, kwargs)]
    by_place, named = _bound(plan, args, kwargs)
    for param, value, name in (*((plan.at(n), value, None) for n, value in enumerate(by_place)), *named):
        try:
            if isinstance(value, msgspec.Raw):
                signature._read(param, value, name)
            else:
                signature._accept(param, value, name, tags)
        except BadArgument as error:
            errors.append(error)
    return errors


def first_misfit(signature: CallCodec, value: object) -> BadArgument | None:
    """Why a value that another job returned cannot be the first argument; None if it can."""
    try:
        signature._accept(signature._ready().at(0), value)
    except BadArgument as error:
        return error
    return None


def _parts(signature: CallCodec, text: str) -> tuple[Sequence[Any], Mapping[str, Any], bool]:
    """Positional and named values: encoded ones, or trees, which may contain tags. Raises BadArgument."""
    if signature._codec is None and not has_mark(text):
        try:
            refuse_deep(text)
            envelope = Envelope(_read_array(text)) if text.lstrip()[:1] == "[" else _read_object(text)
        except UNREADABLE as error:
            raise _no_payload(signature, error) from None
        return envelope.args, envelope.kwargs, False
    try:
        tree = read_json(text) if signature._codec is None else signature._from_codec(text)
        args, kwargs = (tree, {}) if isinstance(tree, list) else _envelope(tree)
    except UNREADABLE as error:
        if isinstance(error, BadArgument):
            raise
        raise _no_payload(signature, error) from None
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        raise _no_payload(signature, TypeError("no array and no object of args and kwargs"))
    return args, kwargs, signature._codec is None


def _no_payload(signature: CallCodec, error: BaseException) -> BadArgument:
    return BadArgument(signature.name, None, f"expected a payload of JSON: {error}")


def _of_shape(task: str, plan: Parameters, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[BadArgument]:
    """The arguments that are missing, unknown, given twice or too many. `Parameters.bind` raises for the first of these
    only."""
    errors: list[BadArgument] = []
    by_place, more = list(args), dict(kwargs)
    while True:
        try:
            plan.bind(task, by_place, more)
        except BadArgument as error:
            errors.append(error)
            if error.parameter is None and len(by_place) > plan.high:
                del by_place[plan.high :]
            elif error.parameter in more:
                del more[error.parameter]
            else:
                errors += [*_missing(task, plan, by_place, more)][1:]
                return errors
        else:
            return errors


def _missing(task: str, plan: Parameters, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[BadArgument]:
    """The required parameters without a value, in the order in which `Parameters.bind` looks at them."""
    behind = {param.name for param in plan.positional[len(args) :]} | {param.name for param in plan.needed}
    params = dict.fromkeys((*plan.positional, *plan.needed))
    return [
        BadArgument(task, param.name, f"is missing: expected {param.shape.says}")
        for param in params
        if param.required and param.name in behind and param.name not in kwargs
    ]


def _bound(
    plan: Parameters, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Sequence[Any], list[tuple[Param, Any, str]]]:
    """The values that belong to a parameter, to be read one by one."""
    values = args if plan.more is not None else args[: plan.high]
    by_place = {param.name: param for param in plan.positional}
    known = {**by_place, **plan.named}
    named = [
        (known.get(name, plan.rest), value, name)
        for name, value in kwargs.items()
        if name in known or plan.rest is not None
    ]
    return values, [(param, value, name) for param, value, name in named if param is not None]
