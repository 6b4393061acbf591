"""Writes tables into a Markdown page, each between the two lines that mark its section there."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Unmarked(ValueError):
    """A page lacks the marks of a section."""


class Section(NamedTuple):
    """The lines around the part of a page that a command writes."""

    start: str
    end: str

    def around(self, text: str) -> tuple[str, str] | None:
        """The text up to the first line and from the last one on, both included; None: it has no such lines."""
        head, start, rest = text.partition(self.start)
        _, end, tail = rest.partition(self.end)
        return (head + start, end + tail) if start and end else None

    def check(self, page: Path) -> tuple[str, str]:
        """As `around`, of a file. Raises Unmarked."""
        found = self.around(page.read_text(encoding="utf-8"))
        if found is None:
            raise Unmarked(f"--write: {page} has no lines {self.start!r} and {self.end!r}, between which the tables go")
        return found

    def write(self, page: Path, words: str) -> None:
        """Replace the text between the lines. Raises Unmarked."""
        head, tail = self.check(page)
        page.write_text(f"{head}\n\n{words}\n\n{tail}", encoding="utf-8")
