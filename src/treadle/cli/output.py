"""Output of the commands: tables or JSON on stdout, notes and errors on stderr; formats of times and durations."""

from __future__ import annotations

import codecs
import io
import os
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import click

from treadle.core import file_urls
from treadle.core.clock import moment, moment_text, wall
from treadle.core.command_lines import typed
from treadle.core.redaction import in_json, in_line, shown, visible
from treadle.core.words import lasts as lasts
from treadle.core.words import plural as plural
from treadle.core.words import size as size
from treadle.serialization import short

ESCAPED = "treadle.escaped"
OK, FAILED, USAGE, UNREACHABLE, INTERRUPTED = 0, 1, 2, 3, 130
UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
COLOURS = {
    "succeeded": "green",
    "ok": "green",
    "running": "cyan",
    "failed": "red",
    "fail": "red",
    "cancelled": "yellow",
    "warn": "yellow",
    "paused": "yellow",
    "waiting": "blue",
}


class Stop(Exception):
    """Ends the command with an exit code; a text is printed to stderr as one line."""

    def __init__(self, code: int, text: str = "") -> None:
        self.code, self.text = code, text
        super().__init__(text)


def complain(text: str) -> None:
    """Print an error to stderr as one line."""
    click.echo(f"treadle: {in_line(typed(text))}", err=True)


def note(text: str) -> None:
    """Print a note to stderr. If its reader is gone (`2>&1 | head`), drop it: a worker must still stop at a signal."""
    try:
        click.echo(visible(typed(text)), err=True)
    except BrokenPipeError:
        discard(2)


def data(text: str) -> None:
    """Print data to stdout. Raises Stop with exit code 0 when the reader has closed the pipe (`| head`)."""
    _print(visible(text))


def piece(text: str) -> None:
    """Print data to stdout without a line end. Raises Stop as `data` does."""
    _print(visible(text), end=False)


def _print(text: str, end: bool = True) -> None:
    """Print to stdout unchanged: the caller has escaped control characters, and may have added colours."""
    try:
        click.echo(text, nl=end)
    except BrokenPipeError:
        discard(1)
        raise Stop(OK) from None


def discard(number: int) -> None:
    """Discard all further output to this descriptor. Python flushes at exit, and ends with 120 if that fails."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, number)
    os.close(null)


def write_everything() -> None:
    """Let stdout and stderr take every text: a character that their encoding lacks is written as JSON escapes it."""
    codecs.register_error(ESCAPED, _escaped)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=ESCAPED)


def _escaped(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[start : start + 2].hex()}" for start in range(0, len(units), 2)), error.end


def coloured(stream: Any = None) -> bool:
    """Whether to use colours: on a terminal that is not `dumb`, unless NO_COLOR is set."""
    stream = sys.stdout if stream is None else stream
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" and bool(stream.isatty())


def paint(text: str, word: str, stream: Any = None) -> str:
    """The text in the colour of a state or verdict, if the stream shows colours."""
    colour = COLOURS.get(word)
    return click.style(text, fg=colour) if colour and coloured(stream) else text


def document(value: object) -> None:
    """Print one JSON document to stdout. Values that JSON cannot represent become text."""
    import msgspec

    try:
        text = msgspec.json.encode(value, enc_hook=str)
    except Exception:  # lone surrogates, numbers with too many digits, the user's own classes
        text = msgspec.json.encode(_in_words(value))
    # JSON escapes only controls below U+0020. The other control characters occur only inside strings, so they can be
    # escaped here.
    _print(in_json(msgspec.json.format(text, indent=2).decode()))


def _in_words(value: object) -> object:
    """The value with text in place of each part that JSON cannot represent."""
    import msgspec

    if isinstance(value, dict):
        return {
            visible(name if isinstance(name, str) else short(name)): _in_words(part) for name, part in value.items()
        }
    if isinstance(value, list | tuple | set | frozenset):
        return [_in_words(part) for part in value]
    try:
        return msgspec.Raw(msgspec.json.encode(value, enc_hook=str))
    except Exception:
        return visible(value) if isinstance(value, str) else hex(value) if isinstance(value, int) else short(value)


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], empty: str, right: Sequence[str] = ()) -> None:
    """Print aligned columns to stdout, those in `right` aligned right; without rows, print `empty` to stderr."""
    if not rows:
        note(empty)
        return
    texts = [[_cell(value) for value in row] for row in rows]
    widths = [max(len(name), *(len(row[column]) for row in texts)) for column, name in enumerate(columns)]
    _print(_line([name.upper() for name in columns], widths, columns, right).rstrip())
    for row in texts:
        _print(_line(row, widths, columns, right).rstrip())


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
    return in_line(str(value))


def shortened(text: str, most: int) -> str:
    """The text, cut after this number of characters."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def facts(pairs: Sequence[tuple[str, object]]) -> None:
    """Print names and values, one per line; skip those without a value."""
    shown = [(name, value) for name, value in pairs if value is not None and value != ""]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        first, *more = visible(str(value)).split("\n")
        _print(f"{name:<{width}}  {paint(first, first)}")
        for line in more:
            _print(f"{'':<{width}}  {line}")


def verdict(word: str, name: str, text: str, advice: str) -> None:
    """Print one line of `treadle doctor`, and its advice below."""
    _print(f"{paint(f'{word:<4}', word)}  {name:<11}  {in_line(typed(text))}")
    if advice:
        data(f"{'':<19}-> {typed(advice)}")


def age(at: float | None, now: float) -> str:
    """Format a time relative to now: `3 m ago`, `in 20 s`."""
    if at is None:
        return ""
    return f"{lasts(now - at)} ago" if at <= now else f"in {lasts(at - now)}"


def iso(at: float | None) -> str | None:
    """Format a time for programs: ISO 8601 in UTC."""
    try:
        return None if at is None else moment(at).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return moment_text(at or 0.0)


def stamp(at: float | None, now: float) -> str | None:
    """Format a time for people, with its age."""
    return None if at is None else f"{moment_text(at)}, {age(at, now)}"


def place(url: str | None, otherwise: str) -> str:
    """A storage URL for output: without its password, and with the absolute path of a file.

    A relative path names different files in processes that run in different directories.
    """
    if url is None:
        return otherwise
    if (file := file_urls.read(url)) is None:
        return shown(url)
    return shown(file_urls.url_of(os.path.abspath(file.path)) + "".join(url.partition("?")[1:]))


def seconds(text: str) -> float:
    """Parse a duration: `30`, `1.5`, `30s`, `5m`, `2h`, `1d`. Raises BadParameter."""
    text = str(text).strip()
    unit = UNITS.get(text[-1:])
    try:
        duration = float(text if unit is None else text[:-1]) * (unit or 1.0)
    except ValueError:
        duration = -1.0
    if not 0 <= duration < float("inf"):
        raise click.BadParameter(f"expected seconds such as 30, 1.5, 5m, 2h or 1d; found {text!r}")
    return duration


def long_ago(text: str) -> datetime:
    """Parse a time: ISO 8601, or a duration before now. Raises BadParameter."""
    try:
        time = datetime.fromisoformat(str(text))
    except ValueError:
        try:
            return moment(wall() - seconds(text))
        except click.BadParameter:
            expected = "a time such as 2027-01-31T12:00, or a duration before now such as 5m, 2h or 1d"
            raise click.BadParameter(f"expected {expected}; found {text!r}") from None
    return time if time.tzinfo is not None else time.astimezone()


as_json = click.option("--json", "json_", is_flag=True, help="Print one JSON document on stdout, for programs.")
