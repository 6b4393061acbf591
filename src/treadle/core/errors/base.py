"""The base of all errors, and the errors of decoders."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from treadle.core.command_lines import typed

# Errors of a decoder for a text of another sender: no JSON, another shape, a lone surrogate, nested too deeply.
UNREADABLE: Final = (msgspec.MsgspecError, ValueError, RecursionError)


# Reasons with which a job fails at once, because the same code would fail the same again: the stored arguments do not
# fit the function, the result cannot be stored, or the function calls Treadle in a way that never works.
ARGUMENTS: Final = "arguments"
RESULT: Final = "result"
CODE: Final = "code"


class TreadleError(Exception):
    """The base of all errors that Treadle raises on purpose. They can be copied and pickled.

    `fails_as` is the reason with which a job fails at once if its run raises this error, because every further attempt
    of the same code would raise it, too. None: a failed attempt, which is retried. Its value depends on the class and,
    for some classes, on the call that failed.
    """

    fails_as: str | None = None

    @property
    def permanent(self) -> bool:
        """Whether a job whose run raises this error fails at once."""
        return self.fails_as is not None

    def __str__(self) -> str:
        return typed(super().__str__())

    def __reduce__(self) -> tuple[Any, ...]:
        # Exception would call the class with the finished message, which is not what `__init__` takes.
        return _restored, (type(self), self.args), self.__dict__


def _restored(kind: type[TreadleError], args: tuple[Any, ...]) -> TreadleError:
    error = kind.__new__(kind)
    error.args = args
    return error
