"""The errors of steps as the history of a job keeps them: the class and its arguments, never a pickle.

An error is made again, from its arguments and attributes, only if its class is found in a module that is loaded here,
and if the two are equal. Otherwise it becomes a StepFailed. An attribute that cannot be stored is missing. Every run
raises the same, the first one included: what a function catches must not depend on the run.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from types import WrapperDescriptorType
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import replace

from treadle.core import errors
from treadle.core.errors import StepFailed
from treadle.policy.error_text import message_of
from treadle.serialization.call_codec import decode_any, encode_any

MESSAGE: Final = 1_000  # characters of a stored message
ARGUMENTS: Final = 2_000  # bytes of the stored arguments of an error; beyond that it is a StepFailed
NOTES: Final = "__notes__"
OURS: Final = "treadle.errors"


class Failure(Struct, frozen=True, omit_defaults=True):
    """The error of a step. Each later run raises it in the place of the step, and does not call the function again.

    type     the qualified name of its class
    module   where that is defined
    args     its arguments, as JSON of Treadle's codec; UNSET: the error cannot be made again from them
    fields   its attributes that can be stored
    message  its text, if that is not its only argument
    round    how often the job had been reopened, while no step has followed: the next reopening forgets the failure
    """

    type: str
    module: str = OURS
    args: Raw | UnsetType = UNSET
    fields: Raw | UnsetType = UNSET
    message: str = ""
    round: int | UnsetType = UNSET

    @property
    def text(self) -> str:
        """The text of the error."""
        if not self.message and isinstance(self.args, Raw):
            return ", ".join(map(str, msgspec.json.decode(self.args, type=list[Any])))
        return self.message

    @property
    def words(self) -> str:
        """The error in one line."""
        return f"{self.type}: {self.text}" if self.text else self.type


CUT_OFF: Final = Failure("CancelledError", "asyncio")
"""Of a step that the function itself has cut off, for example by `asyncio.timeout`: later runs wait there to be cut off
again."""


def failure_of(step: str, error: Exception, round: int | UnsetType = UNSET) -> tuple[Failure, Exception]:
    """The stored form of an error, and the error that every run raises: this one, or the one that stands for it."""
    kind, args, state = type(error), error.args, _state(error)
    if isinstance(error, OSError):
        args = error.__reduce__()[1]  # type: ignore[assignment]  # its `args` lack the name of the file
    fields = {name: value for name, value in state.items() if _text(value) is not UNSET}
    message = message_of(error).encode(errors="backslashreplace").decode()[:MESSAGE]
    failure = Failure(
        kind.__qualname__, kind.__module__, _text(list(args)), _text(fields) if fields else UNSET, "", round
    )
    if error.args != (message,):
        failure = replace(failure, message=message)
    again = _again(failure)
    if again is None or not _is_restored(again, error, fields):
        failure = replace(failure, args=UNSET, fields=UNSET, message=message)
        return failure, _unknown(step, failure)
    return failure, error if len(fields) == len(state) else again


def _is_restored(again: Exception, error: Exception, fields: Mapping[str, object]) -> bool:
    try:
        return again.args == error.args and message_of(again) == message_of(error) and bool(_state(again) == fields)
    except Exception:  # code of the user, and attributes such as arrays, whose comparison is no bool
        return False


def error_of(step: str, failure: Failure) -> Exception:
    """The error to raise in the place of this step."""
    return _again(failure) or _unknown(step, failure)


def _unknown(step: str, failure: Failure) -> StepFailed:
    return StepFailed(step, failure.type, failure.text)


def _text(value: object) -> Raw | UnsetType:
    """The encoded value; UNSET if it is too long or cannot be restored from its text."""
    try:
        text = encode_any(value)
        exact = len(text) <= ARGUMENTS and decode_any(text) == value
    except Exception:  # a value that cannot be stored, or whose comparison raises
        return UNSET
    return Raw(text.encode()) if exact else UNSET


def _again(failure: Failure) -> Exception | None:
    """The error, made from its class and arguments; None: that is not possible here."""
    kind = _class(failure)
    if kind is None or isinstance(failure.args, UnsetType):
        return None
    try:
        args: Any = decode_any(bytes(failure.args).decode())
        if isinstance(kind.__init__, WrapperDescriptorType):  # of a class of Python's own, or one without its own
            error: Any = kind(*args)
        else:  # a constructor may take other arguments than it passes on, and may have effects
            error = kind.__new__(kind, *args)
            error.args = tuple(args)
        if not isinstance(failure.fields, UnsetType):
            vars(error).update(decode_any(bytes(failure.fields).decode()))
    except Exception:  # code of the user, and a text that another program may have stored
        return None
    return error if type(error) is kind or isinstance(error, OSError) else None


def _class(failure: Failure) -> type[Exception] | None:
    """The class, if a loaded module defines it. Nothing is imported, as the names come from a stored text."""
    place: Any = errors if failure.module == OURS else sys.modules.get(failure.module)
    for name in failure.type.split("."):
        place = vars(place).get(name) if hasattr(place, "__dict__") else None
    return place if isinstance(place, type) and issubclass(place, Exception) else None


def _state(error: Exception) -> Any:
    """The attributes of an error, to compare two of them."""
    return {name: value for name, value in vars(error).items() if name != NOTES}


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The error, or the errors in a group, at every level."""
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            yield from leaves(part)
    else:
        yield error
