"""The base of all errors, and the errors of decoders."""

from __future__ import annotations

from typing import Final

import msgspec

# Errors of a decoder for a text of another sender: no JSON, another shape, a lone surrogate, nested too deeply.
UNREADABLE: Final = (msgspec.MsgspecError, ValueError, RecursionError)


class TreadleError(Exception):
    """The base of all errors that Treadle raises on purpose."""
