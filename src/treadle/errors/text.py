"""Reads the stored text of an error: its first line, and its traceback."""

from __future__ import annotations


def error_line(text: str | None) -> str:
    """A stored error in one line: the type of the exception and the first line of its message. "" for None.

    Treadle stores this line first, then the traceback. A runner in another language may store a bare Python traceback;
    there it is the first line after the frames that is not indented.
    """
    lines = (text or "").strip().splitlines()
    if not lines or not lines[0].startswith(("Traceback (most recent call last)", "+ Exception Group Traceback")):
        return lines[0].strip() if lines else ""
    frames = [number for number, line in enumerate(lines) if line.lstrip(" |").startswith("File ")]
    behind = lines[(frames[-1] if frames else 0) + 1 :]
    return next((line for line in behind if line and not line[0].isspace()), lines[-1].strip())


def traceback_of(text: str | None) -> str | None:
    """The traceback in a stored error; None if it has none."""
    start = (text or "").find("Traceback (most recent call last)")
    return None if start < 0 or text is None else text[text.rfind("\n", 0, start) + 1 :]
