"""What people and programs are told: tables or JSON on stdout, notes on stderr, ages and moments in words.

Without it each command would align, colour and word things in its own way.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import click

from treadle.clock import moment, wall

OK, FAILED, USAGE, UNREACHABLE, INTERRUPTED = 0, 1, 2, 3, 130
UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
COLOURS = {
    "succeeded": "green", "ok": "green", "running": "cyan", "failed": "red", "fail": "red", "cancelled": "yellow",
    "warn": "yellow", "paused": "yellow", "waiting": "blue",
}  # fmt: skip


class Stop(Exception):
    """End the command with this exit code; the text, if there is one, goes to stderr as one line."""

    def __init__(self, code: int, text: str = "") -> None:
        self.code, self.text = code, text
        super().__init__(text)


def complain(text: str) -> None:
    """An error: one line on stderr that says what was found and what to do."""
    click.echo(f"treadle: {text}", err=True)


def note(text: str) -> None:
    """Anything that is neither data nor an error."""
    click.echo(text, err=True)


def data(text: str) -> None:
    """What was asked for. Raises Stop, with exit code 0, when whoever reads it has seen enough (`| head`)."""
    try:
        click.echo(text)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the interpreter's last flush would complain again
        raise Stop(OK) from None


def coloured(stream: Any = None) -> bool:
    """Whether a stream shows colours: a terminal, and nobody said NO_COLOR."""
    stream = sys.stdout if stream is None else stream
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" and bool(stream.isatty())


def paint(text: str, word: str, stream: Any = None) -> str:
    """The text in the colour of a state or verdict, where colours are shown."""
    colour = COLOURS.get(word)
    return click.style(text, fg=colour) if colour and coloured(stream) else text


def document(value: object) -> None:
    """One JSON document on stdout."""
    import msgspec

    data(msgspec.json.format(msgspec.json.encode(value, enc_hook=str), indent=2).decode())


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], empty: str, right: Sequence[str] = ()) -> None:
    """Aligned columns on stdout; names in `right` are aligned right. Without rows a note on stderr says so."""
    if not rows:
        note(empty)
        return
    texts = [[_cell(value) for value in row] for row in rows]
    widths = [max(len(name), *(len(row[at]) for row in texts)) for at, name in enumerate(columns)]
    data(_line([name.upper() for name in columns], widths, columns, right).rstrip())
    for row in texts:
        data(_line(row, widths, columns, right).rstrip())


def _line(cells: Sequence[str], widths: Sequence[int], columns: Sequence[str], right: Sequence[str]) -> str:
    parts = []
    for text, width, name in zip(cells, widths, columns, strict=True):
        padded = text.rjust(width) if name in right else text.ljust(width)
        parts.append(padded.replace(text, paint(text, text), 1) if text in COLOURS else padded)
    return "  ".join(parts)


def _cell(value: object) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return "".join(letter if letter.isprintable() else " " for letter in str(value))


def facts(pairs: Sequence[tuple[str, object]]) -> None:
    """Names and values, one a line; those without a value are left out."""
    shown = [(name, value) for name, value in pairs if value is not None and value != ""]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        first, *more = str(value).splitlines() or [""]
        data(f"{name:<{width}}  {paint(first, first)}")
        for line in more:
            data(f"{'':<{width}}  {line}")


def lasts(seconds: float) -> str:
    """A duration in one or two words: 0.4 s, 12 s, 3 m, 5 h, 2 d."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    for unit, size, most in (("s", 1, 100), ("m", 60, 100), ("h", 3600, 48)):
        if seconds < most * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86_400:.0f} d"


def age(at: float | None, now: float) -> str:
    """A moment as seen from now: `3 m ago`, `in 20 s`."""
    if at is None:
        return ""
    return f"{lasts(now - at)} ago" if at <= now else f"in {lasts(at - now)}"


def iso(at: float | None) -> str | None:
    """A moment for programs: ISO 8601 in UTC."""
    return None if at is None else moment(at).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def stamp(at: float | None, now: float) -> str | None:
    """A moment for people, with its age."""
    return None if at is None else f"{moment(at):%Y-%m-%d %H:%M:%S} UTC, {age(at, now)}"


def size(count: float) -> str:
    """Bytes in words."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def plural(count: int, what: str) -> str:
    """`1 job`, `3 jobs`, `2 processes`."""
    return f"{count:,} {what}" + ("" if count == 1 else "es" if what.endswith("s") else "s")


def masked(url: str) -> str:
    """A URL that may be shown: without its password."""
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(url)
    except ValueError:
        return url
    if not parts.password:
        return url
    return url.replace(f":{parts.password}@", ":***@", 1)


def seconds(text: str) -> float:
    """A duration: `30`, `1.5`, `30s`, `5m`, `2h`, `1d`. Raises BadParameter."""
    text = str(text).strip()
    unit = UNITS.get(text[-1:])
    try:
        found = float(text if unit is None else text[:-1]) * (unit or 1.0)
    except ValueError:
        found = -1.0
    if not 0 <= found < float("inf"):
        raise click.BadParameter(f"expected seconds such as 30, 1.5, 5m, 2h or 1d; found {text!r}")
    return found


def long_ago(text: str) -> datetime:
    """A moment: ISO 8601, or a duration meaning that long ago. Raises BadParameter."""
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        return moment(wall() - seconds(text))
    return found if found.tzinfo is not None else found.astimezone()


as_json = click.option("--json", "json_", is_flag=True, help="One JSON document on stdout, for programs.")
