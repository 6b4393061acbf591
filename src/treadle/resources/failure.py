"""Describes the exception of a user's function in one line, with the place in that function."""

from __future__ import annotations

import functools
import traceback
from typing import Any


def described(error: BaseException, function: Any) -> str:
    """`OSError: no database (shop.py, line 12)`."""
    message, kind = " ".join(str(error).split()), type(error).__name__
    while isinstance(function, functools.partial):
        function = function.func
    code = getattr(function, "__code__", None)
    own = None if code is None else code.co_filename
    lines = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == own]
    place = f" ({lines[-1].filename}, line {lines[-1].lineno})" if lines else ""
    return f"{kind}{': ' if message else ''}{message}{place}"
