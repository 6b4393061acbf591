"""How far long work is: one line that moves on a terminal, a plain line now and then elsewhere. Always on stderr.

Without it two minutes of work would look like a program that hangs.
"""

from __future__ import annotations

import shutil
import sys
from types import TracebackType
from typing import Self

import click

from treadle.cli.output import note
from treadle.core.clock import monotonic
from treadle.core.redaction import in_line

EVERY = 2.0  # s between plain lines
REDRAW = 0.05  # s between drawings of the moving one


class Bar:
    """`with Bar("cancelling", 300) as bar: bar.update(12)`. Nothing is drawn for work that is over in half a second."""

    def __init__(self, label: str, total: int, after: float = 0.5, live: bool | None = None) -> None:
        self.label, self.total = label, total
        self.live = sys.stderr.isatty() if live is None else live
        self._began = monotonic()
        self._next = self._began + after
        self._drawn = ""

    def update(self, done: int, words: str = "") -> None:
        """So much is done; `words` stand behind the bar."""
        now = monotonic()
        if now < self._next:
            return
        share = min(1.0, done / self.total) if self.total else 1.0
        text = f"{self.label} {share:4.0%}  {done:,}/{self.total:,}{'  ' + words if words else ''}"
        if self.live:
            self._next = now + REDRAW
            self._draw(text, share)
        else:
            self._next = now + EVERY
            note(text)

    def say(self, text: str) -> None:
        """A line of its own, above the bar."""
        drawn = self._drawn
        self._clear()
        note(text)
        if drawn:
            self._drawn = drawn
            click.echo(drawn, err=True, nl=False)

    def close(self) -> None:
        self._clear()

    def _draw(self, text: str, share: float) -> None:
        width = shutil.get_terminal_size().columns - 1
        room = min(30, width - len(text) - 3)
        bar = f"[{'#' * round(share * room):<{room}}] " if room >= 5 else ""
        line = in_line(bar + text)[:width]
        self._clear()
        self._drawn = line
        click.echo(line, err=True, nl=False)

    def _clear(self) -> None:
        if self._drawn:
            click.echo(f"\r{' ' * len(self._drawn)}\r", err=True, nl=False)
            self._drawn = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
