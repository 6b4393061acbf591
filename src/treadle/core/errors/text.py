"""Reads the stored text of an error: its first line, and its traceback. Also the user's part of a live traceback."""

from __future__ import annotations

import os
import re
from pathlib import Path
from types import TracebackType
from typing import Final

_FOLDER: Final = str(Path(__file__).parents[2]) + os.sep
LINE: Final = 10_000  # characters of a line, as many as a worker of Treadle stores of an error
LOOKED: Final = 20_000  # characters at the end of a bare traceback in which its last line is
LINES: Final = 500  # most lines of that part that are read
_SEALED: Final = re.compile(r'\{"\$t":"sealed","key":"([A-Za-z0-9._-]{1,64})"')


def readable(text: str | None) -> str | None:
    """A stored text as people read it: in place of an encrypted one, the id of its key."""
    sealed = None if text is None else _SEALED.match(text)
    return text if sealed is None else f"encrypted (key {sealed[1]})"


def error_line(text: str | None) -> str:
    """A stored error in one line: the type of the exception and the first line of its message. "" for None.

    Treadle stores this line first, then the traceback. A runner in another language may store a bare Python traceback;
    there it is the first line after the frames that is not indented.
    """
    text = (readable(text) or "").strip()
    if not text.startswith(("Traceback (most recent call last)", "+ Exception Group Traceback")):
        return text[:LINE].splitlines()[0].strip() if text else ""
    lines = text[-LOOKED:].splitlines()[-LINES:]
    frames = [number for number, line in enumerate(lines) if line.lstrip(" |").startswith("File ")]
    behind = lines[(frames[-1] if frames else 0) + 1 :]
    return next((line for line in behind if line and not line[0].isspace()), lines[-1].strip())[:LINE]


def traceback_of(text: str | None) -> str | None:
    """The traceback in a stored error; None if it has none."""
    start = (text or "").find("Traceback (most recent call last)")
    return None if start < 0 or text is None else text[text.rfind("\n", 0, start) + 1 :]


def is_ours(file: str) -> bool:
    """Whether a frame of this source file is Treadle's own."""
    return file.startswith(_FOLDER)


def users_part(trace: TracebackType | None) -> TracebackType | None:
    """A traceback without the frames of Treadle at its beginning; None if it has only such frames."""
    while trace is not None and is_ours(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return trace
