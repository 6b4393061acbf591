"""Hides secrets where people look: values by their names, and all payloads from tokens without a right to them.

It works on JSON, so no type of a value escapes it. The worker protocol is exempt: a worker needs the arguments as they
are. Its work is bounded by the size of what it reads (`Effort`): a value with more places to look at is hidden whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import zip_longest
from types import NoneType
from typing import Any, Final, Literal, Protocol

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from treadle.core.errors import error_line, readable
from treadle.core.json_shapes import key_shape, shape_of
from treadle.core.long_numbers import has_digits
from treadle.core.model import Record
from treadle.core.redaction import HIDDEN, WORDS, Effort, TextMask, TooMuch

SMALL: Final = 64 * 2**10  # bytes of arguments that are shown one by one
PARTS: Final = 32  # commas in them
LARGEST: Final = 256 * 2**10  # bytes of a value that are decoded to hide parts of it: 3 ms
HITS: Final = 1_000  # words in a larger value that are looked at before the whole value is hidden
# An escaped letter, which no encoder writes: a key could be hidden by it. Some write the slashes of a URL like this.
ESCAPED: Final = re.compile(rb"\\(?:u00[4-7]|/)")
AS_KEY: Final = re.compile(rb'[^"\\]{0,300}"[ \t\r\n]{0,40}[:,]')  # what follows a word within a key, or a pair's first
AS_NAME: Final = re.compile(rb'[\w-]{0,40}\\{0,16}["\']?[ \t]{0,9}[=:]')  # behind a word, in a text that names a value
# Behind a word that names a value in a text of JSON: letters, also beyond ASCII, and one of these signs.
LETTERS_BEHIND: Final = re.compile(rb"[A-Za-z0-9_\-\x80-\xff]*+")
SIGNS_BEHIND: Final = frozenset(sign.encode() for sign in "\\' \t\n\r\f\v,:=")
LETTERS: Final = ((b"\xc5\xbf", b"s"), (b"\xe2\x84\xaa", b"k"), (b"\xc4\xb0", b"i"), (b"\xc4\xb1", b"i"))  # as `folded`
# Secrets without a name, see TextMask.
VALUES: Final = tuple(
    map(re.compile, (rb"""-p(?<![\w-]-p)[ \t"'\\=]""", rb"basic(?<!\wbasic)[\s\\]", rb"trd_(?=[a-z0-9_-]{20})"))
)
BEFORE_AT: Final = re.compile(rb"""://(?:(?!://)[^\s"'<>@]){0,256}+@""")
SHORTEST: Final = 4  # characters of a text that may have a secret: "-p x"
TEXT: Final = 4  # units of Effort to look at a text
NUMBER: Final = 300  # digits of a number that is decoded: 35 ns a digit
KEY: Final = 6  # those to compare a key

Place = Literal["nowhere", "keys", "texts"]
"""Where JSON may have something to hide."""

_decode = msgspec.json.Decoder(float_hook=Raw).decode  # numbers stay as they are written, and cost 0.1 us
_encode = msgspec.json.Encoder().encode
_NAMED: Final = Raw(b'"***"')
_NUMBERS: Final[frozenset[type]] = frozenset({int, Raw, bool, NoneType})
_SCALARS: Final[frozenset[type]] = _NUMBERS | {str}


class Rows(Protocol):
    """Hides what only the row of a job tells."""

    def row(self, row: Record) -> Record: ...
    def hiding(self, row: Record) -> Callable[[str], str]: ...


class Look:
    """One look at a value: what it may cost, whether its texts are looked at, which keys are hidden, the secrets, and
    whether anything was hidden. Raises TooMuch for JSON with more values than its size allows."""

    __slots__ = ("effort", "has_hidden", "hides", "secrets", "texts")

    def __init__(self, text: bytes, place: Place, effort: Effort) -> None:
        if has_digits(text, NUMBER):
            raise TooMuch
        effort.spend(2 * (text.count(b"[") + text.count(b"{")) + text.count(b",") * 3 // 4)
        self.effort, self.texts = effort, place == "texts"
        self.secrets, self.has_hidden, self.hides = list[Any](), False, dict[str, bool]()


class Redaction:
    """The names whose values are hidden from people.

    extra   more names that are hidden, whole; compared without case. `card.number` hides `number` directly below `card`
    reveal  names that are shown although they contain one of WORDS, whole; compared without case
    shapes  whether only the shape of each payload is shown: for tokens without a right to payloads
    rows    hides what only the row of a job tells: values by the names of its task, and its secrets in texts
    done    whether everything is hidden already, in rows that `row` returned
    """

    __slots__ = ("_done", "_extra", "_foreign", "_paths", "_reveal", "_text", "_words", "rows", "shapes")

    def __init__(
        self,
        extra: Iterable[str] = (),
        reveal: Iterable[str] = (),
        shapes: bool = False,
        rows: Rows | None = None,
        done: bool = False,
    ) -> None:
        extra = tuple(extra)
        folded = frozenset(name.casefold() for name in extra)
        self._paths = frozenset(tuple(path.split(".")) for path in folded if "." in path)
        self._extra = folded
        self._reveal = frozenset(name.casefold() for name in reveal)
        self.shapes, self.rows, self._done = shapes, rows, done
        names = {*self._extra, *(path[-1] for path in self._paths)}
        self._words = tuple(word.encode() for word in (*WORDS, *names))
        self._foreign = not all(map(str.isascii, extra))  # JSON may escape the letters of such a key
        self._text = TextMask([*WORDS, *sorted(self._extra)])

    def as_shapes(self) -> Redaction:
        """The same for a token without a right to payloads."""
        return Redaction(self._extra, self._reveal, True)

    def row(self, row: Record) -> Record:
        """The row without what `rows` hides, of which `rest` has nothing more to hide; for a token without a right to
        payloads, as it is."""
        return row if self.rows is None else self.rows.row(row)

    @property
    def rest(self) -> Redaction:
        """Hides the rest in a row that `row` returned: a second look would cost as much as the first."""
        return self if self.rows is None else _DONE

    def about(self, row: Record, text: str | None) -> str | None:
        """A text about the job of this row, such as a line of its log."""
        return self.text(text) if self.rows is None or text is None else self.rows.hiding(row)(text)

    def grouped(self, row: Record) -> Record:
        """The row as failures are grouped by it: for a token without a right to payloads, with the class of its
        error."""
        return replace(row, error=self.error(row.error)) if self.shapes else row

    def failure(self, row: Record, *texts: str) -> list[str]:
        """Texts of an error of the job of this row."""
        hide = self.error if self.shapes or self.rows is None else self.rows.hiding(row)
        return [hide(text) or "" for text in texts]

    def hides(self, key: str) -> bool:
        """Whether the values of this key are hidden."""
        if self._done:
            return False
        folded = key.casefold()
        if folded in self._reveal:
            return False
        for word in WORDS:  # a generator takes twice as long
            if word in folded:
                return True
        return folded in self._extra

    # --- JSON

    def json(self, value: Any, above: tuple[str, ...] = ()) -> Raw:
        """A value of an answer as JSON, without secrets; or its shape. `value` is anything that msgspec encodes, also
        JSON text in a Raw. `above`: the names above it, without case."""
        raw = value if isinstance(value, Raw) else Raw(_encode(value))
        text = bytes(raw)
        if self.shapes:
            return Raw(_encode(self._shape_of(text)))
        if self._done or (place := self._place(text)) == "nowhere":
            return raw
        if len(text) > LARGEST:
            return Raw(_encode(_whole(text)))
        try:
            look = Look(text, place, Effort(len(text)))
            return Raw(_encode(self._without(_decode(text), above, look)))
        except TooMuch:
            return Raw(_encode(_whole(text)))
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return _NAMED

    def size_of(self, text: str) -> str | None:
        """Instead of a shape: the size of a JSON text too large to decode (8 MB of brackets take 90 ms to read)."""
        return f"JSON({len(text)})" if self.shapes and len(text) > LARGEST else None

    def stored(self, text: str) -> str:
        """The stored text of a value that cannot be shown as JSON."""
        return f"text({len(text)})" if self.shapes else bytes(self.json(Raw(text.encode(errors="replace")))).decode()

    def args(self, values: Any) -> Any:
        """The arguments by position. `values`: a sequence, or its JSON."""
        if _is_large(values) or (self._done and isinstance(values, Raw)):
            shown = self.json(values)
            return shown if bytes(shown)[:1] == b"[" else [shown]
        return [self.json(value) for value in _items(values, list[Raw])]

    def kwargs(self, values: Any) -> Any:
        """The arguments by name. `values`: a mapping, or its JSON."""
        if _is_large(values) or (self._done and isinstance(values, Raw)):
            shown = self.json(values)
            return shown if bytes(shown)[:1] == b"{" else {"(all)": shown}
        return {
            key_shape(name) if self.shapes else name: self.named(name, value)
            for name, value in _items(values, dict[str, Raw]).items()
        }

    def named(self, name: str, value: Any) -> Raw:
        """The value of a step, a signal or another thing with a name."""
        return _NAMED if not self.shapes and self.hides(name) else self.json(value, (name.casefold(),))

    def headers(self, headers: Mapping[str, str] | Iterable[tuple[str, str]]) -> dict[str, str]:
        """The headers of a job."""
        return {
            key_shape(name) if self.shapes else name: HIDDEN if self.hides(name) else self.text(value) or ""
            for name, value in dict(headers).items()
        }

    def _place(self, text: bytes, effort: Effort | None = None) -> Place:
        """Where JSON may have something to hide: a look for its letters, 20 times as fast as decoding. `effort`: if
        nothing of it is left, the text is hidden anyway."""
        if ESCAPED.search(text) is not None:
            return "texts"
        folded = text.lower()
        if not text.isascii():
            if self._foreign:
                folded = text.decode(errors="replace").casefold().encode()
            for letter, plain in LETTERS:
                folded = folded.replace(letter, plain)
        if any(form.search(folded) for form in VALUES) or (b"@" in folded and BEFORE_AT.search(folded) is not None):
            return "texts"
        if self._foreign and b"\\u" in text:
            return "texts"
        signs = [word for word in self._words if word in folded]
        if not signs or (len(text) > LARGEST and not _as_key(signs, folded)):
            return "nowhere"
        if effort is not None and effort.room < 0:
            return "texts"
        return "texts" if len(text) > LARGEST or b"\\u" in text or _in_text(signs, folded) else "keys"

    def _without(self, value: Any, path: tuple[str, ...], look: Look) -> Any:
        """The value without secrets. `path`: the keys above it. Raises TooMuch."""
        if isinstance(value, str):
            if not look.texts or len(value) < SHORTEST:
                return value
            look.effort.spend(TEXT)
            shown = self._text.hidden(value, look.effort)
            look.has_hidden |= shown is not value
            return shown
        if isinstance(value, dict):
            return self._mapping(value, path, look)
        if not isinstance(value, list):
            return value
        if len(value) == 2 and isinstance(value[0], str):
            look.effort.spend(KEY)
            name, below = value  # an item of a mapping that JSON cannot represent
            return [self._without(name, path, look), self._value(name, below, path, look, self.hides(name))]
        return self._items(value, look, path)

    def _items(self, values: list[Any], look: Look, path: tuple[str, ...] = ()) -> list[Any]:
        plain = self._plain(values, look)
        return [value if type(value) in plain else self._without(value, path, look) for value in values]

    def _mapping(self, value: dict[str, Any], path: tuple[str, ...], look: Look) -> dict[str, Any]:
        plain, hides = self._plain(value.values(), look), look.hides
        shown = {}
        for name, part in value.items():
            if (is_hidden := hides.get(name)) is None:  # records have the same keys
                look.effort.spend(KEY)
                is_hidden = hides[name] = self.hides(name)
            if not is_hidden and not self._paths and type(part) in plain:
                shown[name] = part
            else:
                shown[name] = self._value(name, part, path, look, is_hidden)
        return shown

    def _plain(self, values: Collection[Any], look: Look) -> frozenset[type]:
        """The types of the values that have no secret. All texts are checked together."""
        if look.texts and (texts := [value for value in values if type(value) is str]):
            look.effort.spend(TEXT)
            if self._text.may_have("\0".join(texts)):
                return _NUMBERS
        return _SCALARS

    def _value(self, key: str, value: Any, path: tuple[str, ...], look: Look, is_hidden: bool) -> Any:
        below = path
        if self._paths and key not in ("v", "$t"):  # in tagged JSON the fields of an object are below "v"
            below = (*path, key.casefold())
        if value is None or not (is_hidden or (self._paths and self._is_below(below))):
            return self._without(value, below, look)
        look.secrets.append(value)
        look.has_hidden = True
        return HIDDEN

    def _is_below(self, path: tuple[str, ...]) -> bool:
        return any(path[-len(tail) :] == tail for tail in self._paths)

    def split(self, text: str, effort: Effort, names: Sequence[str] = ()) -> tuple[str, list[Any]] | None:
        """JSON text without secrets, and the secrets; None if it has none. `names`: of the positional arguments, for
        the payload of a call."""
        by_place = any(self.hides(name) or self._is_below((name.casefold(),)) for name in names)
        raw = text.encode(errors="replace")
        place = self._place(raw, effort)
        if not by_place and place == "nowhere":
            return None
        if len(raw) > LARGEST:
            return _encode([_whole(raw)]).decode(), []
        try:
            look = Look(raw, place, effort)
            tree = _decode(raw)
            places = tree if isinstance(tree, list) else tree.get("args") if isinstance(tree, dict) else None
            if names and isinstance(places, list):
                places[:] = [
                    self._value(name, part, (), look, self.hides(name)) if name else self._without(part, (), look)
                    for name, part in zip_longest(names[: len(places)], places, fillvalue="")
                ]
            elif isinstance(tree, list):  # not as an item of a mapping, even if it has two values
                tree = self._items(tree, look)
            if not isinstance(tree, list):
                tree = self._without(tree, (), look)
            return (_encode(tree).decode(), look.secrets) if look.has_hidden else None
        except TooMuch:
            return _encode([_whole(raw)]).decode(), []
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return f'"{HIDDEN}"', []

    def _shape_of(self, text: bytes) -> Any:
        """`{"to": "text(17)"}`; of a value too large to decode, its size."""
        try:
            if len(text) > LARGEST:
                raise TooMuch
            if text[:1] != b'"':
                Look(text, "keys", Effort(len(text) // 2)).effort.spend(4 * text.count(b":"))
            return shape_of(_decode(text))
        except TooMuch:
            return f"JSON({len(text)})"
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return f"text({len(text)})"

    # --- texts

    def text(self, text: str | None, effort: Effort | None = None) -> str | None:
        """A line of a log, the text of a progress, or another text of a job."""
        if text is None or (plain := readable(text)) is not text:
            return None if text is None else plain
        if self.shapes:
            return f"text({len(text)})"
        try:
            return text if self._done else self._text.hidden(text, effort or Effort(len(text)))
        except TooMuch:
            return HIDDEN

    def error(self, text: str | None) -> str | None:
        """An error with its traceback; of a token without a right to payloads, the class of the error."""
        if text is None or not self.shapes:
            return self.text(text)
        kind = re.match(r"[A-Za-z_][\w.]{0,200}(?=:|\Z)", error_line(text), re.ASCII)
        return kind[0] if kind else "error"

    def within(self, sentence: str, error: str | None) -> str:
        """A sentence of ours that may quote the last line of this error."""
        line = error_line(error)
        hidden = self.error(error) if self.shapes else self.text(line)
        return sentence.replace(line, hidden or "") if line else sentence


def _whole(text: bytes) -> str:
    return f"{HIDDEN} ({len(text):,} bytes of JSON with a hidden key)"


def _as_key(signs: Sequence[bytes], folded: bytes) -> bool:
    """Whether one of these words occurs in a key of this JSON, or names a value in a text; also True after HITS other
    places."""
    hits = 0
    for word in signs:
        place = folded.find(word)
        while place >= 0:
            hits += 1
            end = place + len(word)
            if hits > HITS or AS_KEY.match(folded, end) is not None or AS_NAME.match(folded, end) is not None:
                return True
            place = folded.find(word, end)
    return False


def _in_text(signs: Sequence[bytes], folded: bytes) -> bool:
    """Whether one of these words may name a value within a text of this JSON; also True if they are at too many places.
    A key ends with a quote that is not escaped."""
    hits, most = 0, 64 + len(folded) // 64
    for word in signs:
        place = folded.find(word)
        while place >= 0:
            hits += 1
            run = LETTERS_BEHIND.match(folded, place + len(word))
            end = place if run is None else run.end()
            if hits > most or folded[end : end + 1] in SIGNS_BEHIND:
                return True
            # Before the same sign it would be the same again; a word may go beyond it.
            place = folded.find(word, max(place + len(word), end - len(word) + 1))
    return False


def _is_large(values: Any) -> bool:
    """Whether this is JSON whose parts are not decoded one by one: a part costs 1 us."""
    return isinstance(values, Raw) and (len(text := bytes(values)) > SMALL or text.count(b",") > PARTS)


def _items(values: Any, kind: Any) -> Any:
    """The parts of a list or a mapping that is given as such, or as JSON."""
    return msgspec.json.decode(values, type=kind) if isinstance(values, Raw) else values


_DONE: Final = Redaction(done=True)
