"""Hides secrets where people look: values by their names, and all payloads from tokens without a right to them.

It works on JSON, so no type of a value escapes it. The worker protocol is exempt: a worker needs the arguments as they
are. Its work is bounded by the size of what it reads (`Effort`): a value with more places to look at is hidden whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from treadle.core.errors import error_line, readable
from treadle.core.json_secrets import LARGEST, JsonSecrets, Search
from treadle.core.model import Record
from treadle.core.redaction import HIDDEN, Effort, TooMuch

SMALL: Final = 64 * 2**10  # bytes of arguments that are shown one by one
PARTS: Final = 32  # commas in them
PLAIN_KEY: Final = re.compile(r"[A-Za-z_][\w-]{0,63}", re.ASCII)
SHOWN: Final = 10  # items of a list whose shape is shown
_decode = msgspec.json.Decoder(float_hook=Raw).decode  # numbers stay as they are written, and cost 0.1 us
_encode = msgspec.json.Encoder().encode
_NAMED: Final = Raw(_encode(HIDDEN))


class Rows(Protocol):
    """Hides what can be known from the row of a job only."""

    def row(self, row: Record) -> Record: ...
    def hiding(self, row: Record) -> Callable[[str], str]: ...
    def of(self, task: str) -> Redaction: ...


class Redaction:
    """The names whose values are hidden from people.

    extra   more names that are hidden, whole; compared without case. `card.number` hides `number` directly below `card`
    reveal  names that are shown although they contain one of WORDS, whole; compared without case
    shapes  whether only the shape of each payload is shown: for tokens without a right to payloads
    rows    hides what only the row of a job tells: values by the names of its task, and its secrets in texts
    done    whether everything is hidden already, in rows that `row` returned
    """

    __slots__ = ("_done", "_names", "_secrets", "rows", "shapes")

    def __init__(
        self,
        extra: Iterable[str] = (),
        reveal: Iterable[str] = (),
        shapes: bool = False,
        rows: Rows | None = None,
        done: bool = False,
    ) -> None:
        self._names = tuple(extra), tuple(reveal)
        self._secrets = JsonSecrets(*self._names)
        self.shapes, self.rows, self._done = shapes, rows, done

    def as_shapes(self) -> Redaction:
        """The same for a token without a right to payloads."""
        return Redaction(*self._names, shapes=True)

    def row(self, row: Record) -> Record:
        """Hide what `rows` hides, so that `rest` has nothing more to hide. For a token without a right to payloads, the
        row stays as it is."""
        return row if self.rows is None else self.rows.row(row)

    def of(self, row: Record) -> Redaction:
        """The same with the names that the task of this row's job hides, for a value that is not in the row."""
        return self if self.rows is None else self.rows.of(row.job.task)

    @property
    def rest(self) -> Redaction:
        """Hides the rest in a row that `row` returned: a second pass would cost as much as the first."""
        return self if self.rows is None else _DONE

    def about(self, row: Record, text: str | None) -> str | None:
        """Hide secrets in a text about the job of this row, such as a line of its log."""
        return self.text(text) if self.rows is None or text is None else self.rows.hiding(row)(text)

    def grouped(self, row: Record) -> Record:
        """The row as failures are grouped by it. For a token without a right to payloads, its error is reduced to the
        class."""
        return replace(row, error=self.error(row.error)) if self.shapes else row

    def failure(self, row: Record, *texts: str) -> list[str]:
        """Hide secrets in the texts of an error of this row's job."""
        hide = self.error if self.shapes or self.rows is None else self.rows.hiding(row)
        return [hide(text) or "" for text in texts]

    def hides(self, key: str) -> bool:
        """Whether the values of this key are hidden."""
        return not self._done and self._secrets.hides(key)

    # --- JSON

    def json(self, value: Any, above: tuple[str, ...] = ()) -> Raw:
        """A value of an answer as JSON, without secrets; or its shape. `value` is anything that msgspec encodes, also
        JSON text in a Raw. `above`: the names above it, without case."""
        raw = value if isinstance(value, Raw) else Raw(_encode(value))
        if self.shapes:
            return Raw(_encode(self._shape_of(bytes(raw))))
        hidden = None if self._done else self._secrets.hidden(bytes(raw), above)
        return raw if hidden is None else Raw(hidden)

    def size_of(self, text: str | bytes) -> str | None:
        """Instead of a shape: the size of a JSON text too large to decode (8 MB of brackets take 90 ms to read)."""
        return _size(text) if self.shapes and len(text) > LARGEST else None

    def stored(self, text: str) -> str:
        """The stored text of a value that cannot be shown as JSON."""
        return f"text({len(text)})" if self.shapes else bytes(self.json(Raw(text.encode(errors="replace")))).decode()

    def args(self, values: Any) -> Any:
        """The arguments by position. `values`: a sequence, or its JSON."""
        if _is_large(values) or (self._done and isinstance(values, Raw)):
            hidden = self.json(values)
            return hidden if bytes(hidden)[:1] == b"[" else [hidden]
        return [self.json(value) for value in _items(values, list[Raw])]

    def kwargs(self, values: Any) -> Any:
        """The arguments by name. `values`: a mapping, or its JSON."""
        if _is_large(values) or (self._done and isinstance(values, Raw)):
            hidden = self.json(values)
            return hidden if bytes(hidden)[:1] == b"{" else {"(all)": hidden}
        return {
            _key_shape(name) if self.shapes else name: self.named(name, value)
            for name, value in _items(values, dict[str, Raw]).items()
        }

    def named(self, name: str, value: Any) -> Raw:
        """The value of a step, a signal or something else with a name."""
        return _NAMED if not self.shapes and self.hides(name) else self.json(value, (name.casefold(),))

    def headers(self, headers: Mapping[str, str] | Iterable[tuple[str, str]]) -> dict[str, str]:
        """The headers of a job."""
        return {
            _key_shape(name) if self.shapes else name: HIDDEN if self.hides(name) else self.text(value) or ""
            for name, value in dict(headers).items()
        }

    def split(self, text: str, effort: Effort, names: Sequence[str] = ()) -> tuple[str, list[Any]] | None:
        """JSON text without secrets, and the secrets; None if it has none. `names`: the names of the positional
        arguments; only the payload of a call has some."""
        return self._secrets.split(text, effort, names)

    def _shape_of(self, text: bytes) -> Any:
        """`{"to": "text(17)"}`; of a value with too much to decode, its size."""
        if (size := self.size_of(text)) is not None:
            return size
        try:
            if text[:1] != b'"':
                Search(text, "keys", Effort(len(text) // 2)).effort.spend(4 * text.count(b":"))
            return _shape(_decode(text))
        except TooMuch:
            return _size(text)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return f"text({len(text)})"

    # --- texts

    def text(self, text: str | None, effort: Effort | None = None) -> str | None:
        """Hide secrets in a text of a job, such as a line of its log or the text of its progress."""
        if text is None or (words := readable(text)) is not text:
            return None if text is None else words
        if self.shapes:
            return f"text({len(text)})"
        try:
            return text if self._done else self._secrets.mask.hidden(text, effort or Effort(len(text)))
        except TooMuch:
            return HIDDEN

    def error(self, text: str | None) -> str | None:
        """Hide secrets in an error with its traceback. A token without a right to payloads gets only the class of the
        error."""
        if text is None or not self.shapes:
            return self.text(text)
        name = re.match(r"[A-Za-z_][\w.]{0,200}(?=:|\Z)", error_line(text), re.ASCII)
        return name[0] if name else "error"

    def within(self, sentence: str, error: str | None) -> str:
        """Hide secrets in a sentence of ours, which may quote the last line of this error."""
        line = error_line(error)
        hidden = self.error(error) if self.shapes else self.text(line)
        return sentence.replace(line, hidden or "") if line else sentence


def _shape(value: Any) -> Any:
    """The types and lengths of a JSON value. Keys stay if they look like names."""
    if isinstance(value, dict):
        return {_key_shape(name): _shape(item) for name, item in value.items()}
    if isinstance(value, list):
        more = [f"{len(value) - SHOWN:,} more"] if len(value) > SHOWN else []
        return [_shape(item) for item in value[:SHOWN]] + more
    if isinstance(value, str):
        return f"text({len(value)})"
    if value is None:
        return None
    return "boolean" if isinstance(value, bool) else "number"


def _key_shape(name: str) -> str:
    return name if PLAIN_KEY.fullmatch(name) else f"text({len(name)})"


def _size(text: str | bytes) -> str:
    return f"JSON({len(text)})"


def _is_large(values: Any) -> bool:
    """Whether this is JSON whose parts are not decoded one by one: a part costs 1 us."""
    return isinstance(values, Raw) and (len(text := bytes(values)) > SMALL or text.count(b",") > PARTS)


def _items(values: Any, kind: Any) -> Any:
    """The parts of a list or a mapping that is given as such, or as JSON."""
    return msgspec.json.decode(values, type=kind) if isinstance(values, Raw) else values


_DONE: Final = Redaction(done=True)
