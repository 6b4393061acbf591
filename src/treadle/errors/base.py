"""The base of all errors, and the errors of decoders."""

from __future__ import annotations

from typing import Any, Final

import msgspec

# Errors of a decoder for a text of another sender: no JSON, another shape, a lone surrogate, nested too deeply.
UNREADABLE: Final = (msgspec.MsgspecError, ValueError, RecursionError)


class TreadleError(Exception):
    """The base of all errors that Treadle raises on purpose. They can be copied and pickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Exception would call the class with the finished message, which is not what `__init__` takes.
        return _restored, (type(self), self.args), self.__dict__


def _restored(kind: type[TreadleError], args: tuple[Any, ...]) -> TreadleError:
    error = kind.__new__(kind)
    error.args = args
    return error
