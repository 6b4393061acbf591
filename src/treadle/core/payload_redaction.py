"""Hides secrets where people look: values by their names, and all payloads from tokens without a right to them.

It works on JSON, so no type of a value escapes it. The worker protocol is exempt: a worker needs the arguments as they
are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Final, Protocol

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from treadle.core.model import Record
from treadle.core.redaction import HIDDEN, WORDS, in_text, masked
from treadle.errors import error_line, readable

SMALL: Final = 64 * 2**10  # bytes of arguments that are shown one by one
LARGEST: Final = 256 * 2**10  # bytes of a value that are decoded to hide parts of it: 3 ms
HITS: Final = 1_000  # words in a larger value that are looked at before the whole value is hidden
ESCAPED: Final = re.compile(rb"\\u00[4-7]")  # an escaped letter, which no encoder writes: a key could be hidden by it
AS_KEY: Final = re.compile(rb'[^"\\]{0,300}"[ \t\r\n]{0,40}[:,]')  # what follows a word within a key, or a pair's first
PLAIN_KEY: Final = re.compile(r"[A-Za-z_][\w-]{0,63}", re.ASCII)
AS_NAME: Final = re.compile(rb'[\w-]{0,40}\\{0,16}["\']?[ \t]{0,9}[=:]')  # behind a word, in a text that names a value
# Secrets without a name, see in_text(): an option -p, and the credentials of a URL or of basic authentication.
VALUE: Final = re.compile(rb"""(?<![\w-])-p[ \t"'\\=]|\bbasic[\s\\]|://(?:(?!://)[^\s"'<>@]){0,256}+@""")
SHOWN: Final = 10  # items of a list in a shape

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode
_NAMED: Final = Raw(b'"***"')


class Rows(Protocol):
    """Hides what only the row of a job tells."""

    def row(self, row: Record) -> Record: ...
    def text(self, text: str, row: Record) -> str: ...


class Redaction:
    """The names whose values are hidden from people.

    extra   more names that are hidden, whole; compared without case. `card.number` hides `number` directly below `card`
    reveal  names that are shown although they contain one of WORDS, whole; compared without case
    shapes  whether only the shape of each payload is shown: for tokens without a right to payloads
    rows    hides what only the row of a job tells: values by the names of its task, and its secrets in texts
    """

    __slots__ = ("_extra", "_foreign", "_paths", "_pattern", "_reveal", "_text", "_words", "rows", "shapes")

    def __init__(
        self,
        extra: Iterable[str] = (),
        reveal: Iterable[str] = (),
        shapes: bool = False,
        rows: Rows | None = None,
    ) -> None:
        extra = tuple(extra)
        given = frozenset(each.casefold() for each in extra)
        self._paths = frozenset(tuple(each.split(".")) for each in given if "." in each)
        self._extra = given
        self._reveal = frozenset(each.casefold() for each in reveal)
        self.shapes, self.rows = shapes, rows
        self._pattern = re.compile("|".join(WORDS), re.IGNORECASE | re.ASCII)
        names = {*self._extra, *(path[-1] for path in self._paths)}
        self._words = tuple(each.encode() for each in (*WORDS, *names))
        self._foreign = not all(map(str.isascii, extra))  # JSON may escape the letters of such a key
        self._text = in_text([*WORDS, *sorted(self._extra)])

    def as_shapes(self) -> Redaction:
        """The same for a token without a right to payloads."""
        return Redaction(self._extra, self._reveal, True)

    def row(self, row: Record) -> Record:
        """The row without what `rows` hides; for a token without a right to payloads, as it is."""
        return row if self.rows is None else self.rows.row(row)

    def about(self, row: Record, text: str | None) -> str | None:
        """A text about the job of this row, such as a line of its log."""
        return self.text(text) if self.rows is None or text is None else self.rows.text(text, row)

    def grouped(self, row: Record) -> Record:
        """The row as failures are grouped by it: for a token without a right to payloads, with the class of its
        error."""
        return replace(row, error=self.error(row.error)) if self.shapes else row

    def failure(self, row: Record, text: str | None) -> str | None:
        """An error of the job of this row."""
        return self.error(text if self.shapes else self.about(row, text))

    def hides(self, key: str) -> bool:
        """Whether the values of this key are hidden."""
        folded = key.casefold()
        if folded in self._reveal:
            return False
        return folded in self._extra or self._pattern.search(key) is not None

    # --- JSON

    def json(self, value: Any, above: tuple[str, ...] = ()) -> Raw:
        """A value of an answer as JSON, without secrets; or its shape. `value` is anything that msgspec encodes, also
        JSON text in a Raw. `above`: the names above it, without case."""
        raw = value if isinstance(value, Raw) else Raw(_encode(value))
        text = bytes(raw)
        if self.shapes:
            return Raw(_encode(self._shape_of(text)))
        if not self._may_have(text):
            return raw
        if len(text) > LARGEST:
            return Raw(_encode(f"{HIDDEN} ({len(text):,} bytes of JSON with a hidden key)"))
        try:
            return Raw(_encode(self._without(_decode(text), above)))
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return _NAMED

    def stored(self, text: str) -> str:
        """The stored text of a value that cannot be shown as JSON."""
        return f"text({len(text)})" if self.shapes else bytes(self.json(Raw(text.encode(errors="replace")))).decode()

    def args(self, values: Any) -> Any:
        """The arguments by position. `values`: a sequence, or its JSON."""
        if _is_large(values):
            found = self.json(values)
            return found if bytes(found)[:1] == b"[" else [found]
        return [self.json(each) for each in _items(values, list[Raw])]

    def kwargs(self, values: Any) -> Any:
        """The arguments by name. `values`: a mapping, or its JSON."""
        if _is_large(values):
            found = self.json(values)
            return found if bytes(found)[:1] == b"{" else {"(all)": found}
        return {
            _key(name) if self.shapes else name: self.named(name, each)
            for name, each in _items(values, dict[str, Raw]).items()
        }

    def named(self, name: str, value: Any) -> Raw:
        """The value of a step, a signal or another thing with a name."""
        return _NAMED if not self.shapes and self.hides(name) else self.json(value, (name.casefold(),))

    def headers(self, headers: Mapping[str, str] | Iterable[tuple[str, str]]) -> dict[str, str]:
        """The headers of a job."""
        return {
            _key(name) if self.shapes else name: HIDDEN if self.hides(name) else self.text(value) or ""
            for name, value in dict(headers).items()
        }

    def _may_have(self, text: bytes) -> bool:
        """Whether a hidden key may occur in JSON: a look for its letters, 20 times as fast as decoding."""
        if ESCAPED.search(text) is not None:
            return True
        folded = text.lower()
        if self._foreign and not text.isascii():
            folded = text.decode(errors="replace").casefold().encode()
        found = [word for word in self._words if word in folded]
        may_be = b"-p" in folded or b"basic" in folded or (b"@" in folded and b"://" in folded)
        if may_be and VALUE.search(folded) is not None:
            return True
        if self._foreign and b"\\u" in text:
            return True
        return bool(found) and (len(text) <= LARGEST or _as_key(found, folded))

    def _without(self, value: Any, path: tuple[str, ...] = (), hidden: list[Any] | None = None) -> Any:
        """The value without secrets, which are added to `hidden`. `path`: the keys above it."""
        if isinstance(value, dict):
            return {name: self._value(name, each, path, hidden) for name, each in value.items()}
        if isinstance(value, list):
            if len(value) == 2 and isinstance(value[0], str):  # an item of a mapping that JSON cannot represent
                return [self._without(value[0], path, hidden), self._value(value[0], value[1], path, hidden)]
            return [self._without(each, path, hidden) for each in value]
        return self._text.sub(masked, value) if isinstance(value, str) else value

    def _value(self, key: str, value: Any, path: tuple[str, ...], hidden: list[Any] | None) -> Any:
        # In tagged JSON the fields of an object are below "v", which is none of its names.
        below = path if key in ("v", "$t") else (*path, key.casefold())
        if value is None or not (self.hides(key) or self._is_below(below)):
            return self._without(value, below, hidden)
        if hidden is not None:
            hidden.append(value)
        return HIDDEN

    def _is_below(self, path: tuple[str, ...]) -> bool:
        return any(path[-len(each) :] == each for each in self._paths)

    def split(self, text: str, names: Sequence[str] = ()) -> tuple[str, list[Any]] | None:
        """JSON text without secrets, and the secrets; None if it has none. `names`: of the positional arguments, for
        the payload of a call."""
        by_place = any(self.hides(name) or self._is_below((name.casefold(),)) for name in names)
        raw = text.encode(errors="replace")
        if not by_place and not self._may_have(raw):
            return None
        if len(raw) > LARGEST:
            return _encode([f"{HIDDEN} ({len(raw):,} bytes of JSON with a hidden key)"]).decode(), []
        hidden = list[Any]()
        try:
            tree = _decode(raw)
            places = tree if isinstance(tree, list) else tree.get("args") if isinstance(tree, dict) else None
            if isinstance(places, list):
                places[:] = [
                    self._value(name, each, (), hidden) if name else self._without(each, (), hidden)
                    for name, each in zip_longest(names[: len(places)], places, fillvalue="")
                ]
            return _encode(tree if isinstance(tree, list) else self._without(tree, (), hidden)).decode(), hidden
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return f'"{HIDDEN}"', []

    def _shape_of(self, text: bytes) -> Any:
        """`{"to": "text(17)"}`; of a value too large to decode, its size."""
        if len(text) > LARGEST:
            return f"JSON({len(text)})"
        try:
            return _shape(_decode(text))
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return f"text({len(text)})"

    # --- texts

    def text(self, text: str | None) -> str | None:
        """A line of a log, the text of a progress, or another text of a job."""
        if text is None or (words := readable(text)) is not text:
            return None if text is None else words
        return f"text({len(text)})" if self.shapes else self._text.sub(masked, text)

    def error(self, text: str | None) -> str | None:
        """An error with its traceback; of a token without a right to payloads, the class of the error."""
        if text is None or not self.shapes:
            return self.text(text)
        found = re.match(r"[A-Za-z_][\w.]{0,200}(?=:|\Z)", error_line(text), re.ASCII)
        return found[0] if found else "error"

    def within(self, sentence: str, error: str | None) -> str:
        """A sentence of ours that may quote the last line of this error."""
        line = error_line(error)
        hidden = self.error(error) if self.shapes else self.text(line)
        return sentence.replace(line, hidden or "") if line else sentence


def _as_key(words: Sequence[bytes], folded: bytes) -> bool:
    """Whether one of these words occurs in a key of this JSON, or names a value in a text; also True after HITS other
    places."""
    hits = 0
    for word in words:
        at = folded.find(word)
        while at >= 0:
            hits += 1
            end = at + len(word)
            if hits > HITS or AS_KEY.match(folded, end) or AS_NAME.match(folded, end):
                return True
            at = folded.find(word, at + len(word))
    return False


def _is_large(values: Any) -> bool:
    """Whether this is JSON whose parts are not decoded one by one: a part of two bytes costs 1 us."""
    return isinstance(values, Raw) and len(bytes(values)) > SMALL


def _items(values: Any, kind: Any) -> Any:
    """The parts of a list or a mapping that is given as such, or as JSON."""
    return msgspec.json.decode(values, type=kind) if isinstance(values, Raw) else values


def _shape(value: Any) -> Any:
    """The types and lengths of a JSON value. Keys stay if they look like names."""
    if isinstance(value, dict):
        return {_key(name): _shape(each) for name, each in value.items()}
    if isinstance(value, list):
        more = [f"{len(value) - SHOWN:,} more"] if len(value) > SHOWN else []
        return [_shape(each) for each in value[:SHOWN]] + more
    if isinstance(value, str):
        return f"text({len(value)})"
    if value is None:
        return None
    return "boolean" if isinstance(value, bool) else "number"


def _key(name: str) -> str:
    return name if PLAIN_KEY.fullmatch(name) else f"text({len(name)})"
