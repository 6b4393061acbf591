"""Checks that the `options=` function of a task can be called with the arguments of its jobs.

It refuses only a function that fits no call at all: one may be meant for calls that give some parameters by name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from inspect import Parameter
from typing import Any, Final

from treadle.core.errors import BadOption
from treadle.core.injected import call_signature

PLACED: Final = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


def check_parameters(task: str, function: Callable[..., Any], computed: Callable[..., Any] | None) -> None:
    """Raise BadOption if no call of the task's function fits `computed`."""
    if not callable(computed):
        return
    try:
        own, other = call_signature(function), inspect.signature(computed)
    except (TypeError, ValueError, SyntaxError, NameError):
        return
    parameters = list(own.parameters.values())
    if any(parameter.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD) for parameter in parameters):
        return
    without_first = parameters[1:] if parameters and parameters[0].kind in PLACED else parameters  # as in a chain
    if any(_fits(other, call) for known in (parameters, without_first) for call in _calls(known, other)):
        return
    raise BadOption(
        "options",
        f"{task}: expected a function that takes the arguments of a job, {own}, found one with {other}: give it the "
        "same parameters, or **rest for those that it does not use",
    )


def _calls(parameters: Sequence[Parameter], other: inspect.Signature) -> Iterator[tuple[int, list[str]]]:
    """The calls that differ for the other function: how many arguments by position, and the names of the others.
    Optional ones are given where it takes them."""
    placed = [parameter for parameter in parameters if parameter.kind in PLACED]
    for count in range(len(placed) + 1):
        others = [parameter for parameter in parameters if parameter not in placed[:count]]
        by_name = [named for named in others if named.default is Parameter.empty or named.name in other.parameters]
        if all(named.kind is not Parameter.POSITIONAL_ONLY for named in by_name):
            yield count, [named.name for named in by_name]


def _fits(signature: inspect.Signature, call: tuple[int, list[str]]) -> bool:
    try:
        signature.bind(*range(call[0]), **dict.fromkeys(call[1]))
    except TypeError:
        return False
    return True
