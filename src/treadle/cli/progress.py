"""A progress bar on stderr: one line that is redrawn on a terminal, and a line every 2 s elsewhere."""

from __future__ import annotations

import shutil
import sys
from types import TracebackType
from typing import Self

import click

from treadle.cli.output import note, plural
from treadle.core.clock import monotonic
from treadle.core.redaction import in_line

EVERY = 2.0  # s between plain lines
REDRAW = 0.05  # s between redraws on a terminal


class Bar:
    """A progress bar: `with Bar("cancelling", 300) as bar: bar.update(12)`.

    It draws nothing in the first half second, so that short work shows no bar.
    """

    def __init__(self, label: str, total: int, after: float = 0.5, live: bool | None = None) -> None:
        self.label, self.total = label, total
        self.live = sys.stderr.isatty() if live is None else live
        self._began = monotonic()
        self._next = self._began + after
        self._drawn = ""

    def update(self, done: int, words: str = "") -> None:
        """Show that `done` of the total is done; `words` follow the bar."""
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

    def counted(self, done: int) -> None:
        """Show that `done` is done of a total that is not known."""
        self.total = max(self.total, done)
        self.update(done)

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        drawn = self._drawn
        self.close()
        note(text)
        if drawn:
            self._drawn = drawn
            click.echo(drawn, err=True, nl=False)

    def _draw(self, text: str, share: float) -> None:
        width = shutil.get_terminal_size().columns - 1
        room = min(30, width - len(text) - 3)
        bar = f"[{'#' * round(share * room):<{room}}] " if room >= 5 else ""
        line = in_line(bar + text)[:width]
        self.close()
        self._drawn = line
        click.echo(line, err=True, nl=False)

    def close(self) -> None:
        """Remove the bar from the terminal."""
        if self._drawn:
            click.echo(f"\r{' ' * len(self._drawn)}\r", err=True, nl=False)
            self._drawn = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


class Phases:
    """Shows a progress bar for each phase of a move, an export or an import."""

    def __init__(self) -> None:
        self._bar: Bar | None = None
        self._phase = ""

    def __call__(self, phase: str, done: int, total: int | None) -> None:
        is_new = phase != self._phase
        if is_new or (self._bar is not None and total not in (None, self._bar.total)):
            self.close(phase)
        if total is not None:
            self._bar = self._bar or Bar(phase, total)
            self._bar.update(done)
        elif is_new and phase == "closing":
            note(f"waiting for {plural(done, 'job')} that {'is' if done == 1 else 'are'} still running at the source")
        elif is_new:
            note(phase)

    def close(self, phase: str = "") -> None:
        """Remove the bar; `phase` begins."""
        self._phase = phase
        if self._bar is not None:
            self._bar.close()
            self._bar = None
