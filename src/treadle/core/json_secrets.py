"""Hides the values of secret names in JSON, with work bounded by the size of the text (`Effort`).

JSON with more places to look at than its size allows is hidden whole.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from itertools import zip_longest
from types import NoneType
from typing import Any, Final, Literal

import msgspec
from msgspec import Raw

from treadle.core.long_numbers import has_digits
from treadle.core.redaction import HIDDEN, WORDS, Effort, TextMask, TooMuch

LARGEST: Final = 256 * 2**10  # bytes of a value that are decoded to hide parts of it: 3 ms
HITS: Final = 1_000  # words in a larger value that are checked before the whole value is hidden
# An escaped letter, which no encoder writes: a key could be hidden by it. Some write the slashes of a URL like this.
ESCAPED: Final = re.compile(rb"\\(?:u00[4-7]|/)")
AS_KEY: Final = re.compile(rb'[^"\\]{0,300}"[ \t\r\n]{0,40}[:,]')  # the rest of a key, or of a pair's first item
AS_NAME: Final = re.compile(rb'[\w-]{0,40}\\{0,16}["\']?[ \t]{0,9}[=:]')  # after a word, in a text that names a value
# Behind a word that names a value in a text of JSON: more letters, also beyond ASCII, then one of these signs.
LETTERS_BEHIND: Final = re.compile(rb"[A-Za-z0-9_\-\x80-\xff]*+")
SIGNS_BEHIND: Final = frozenset(sign.encode() for sign in "\\' \t\n\r\f\v,:=")
LETTERS: Final = ((b"\xc5\xbf", b"s"), (b"\xe2\x84\xaa", b"k"), (b"\xc4\xb0", b"i"), (b"\xc4\xb1", b"i"))  # as `folded`
# Secrets without a name, see TextMask.
VALUES: Final = tuple(
    map(re.compile, (rb"""-p(?<![\w-]-p)[ \t"'\\=]""", rb"basic(?<!\wbasic)[\s\\]", rb"trd_(?=[a-z0-9_-]{20})"))
)
BEFORE_AT: Final = re.compile(rb"""://(?:(?!://)[^\s"'<>@]){0,256}+@""")
SHORTEST: Final = 4  # characters of a text that may have a secret: "-p x"
TEXT: Final = 4  # units of Effort to search a text
NUMBER: Final = 300  # digits of a number that is decoded: 35 ns a digit
KEY: Final = 6  # units to compare a key

Place = Literal["nowhere", "keys", "texts"]
"""Where JSON may have something to hide."""

_decode = msgspec.json.Decoder(float_hook=Raw).decode  # numbers stay as they are written, and cost 0.1 us
_encode = msgspec.json.Encoder().encode
_UNREADABLE: Final = _encode(HIDDEN)
_NUMBERS: Final[frozenset[type]] = frozenset({int, Raw, bool, NoneType})
_SCALARS: Final[frozenset[type]] = _NUMBERS | {str}


class Search:
    """The search of one value: what it may cost, whether it reads texts, which keys are hidden, the secrets, and
    whether anything was hidden. Raises TooMuch for JSON with more values than its size allows."""

    __slots__ = ("effort", "has_hidden", "hides", "secrets", "texts")

    def __init__(self, text: bytes, place: Place, effort: Effort) -> None:
        if has_digits(text, NUMBER):
            raise TooMuch
        effort.spend(2 * (text.count(b"[") + text.count(b"{")) + text.count(b",") * 3 // 4)
        self.effort, self.texts = effort, place == "texts"
        self.secrets, self.has_hidden, self.hides = list[Any](), False, dict[str, bool]()


class JsonSecrets:
    """The names whose values are hidden. `Redaction` describes the arguments.

    mask  hides secrets in texts
    """

    __slots__ = ("_extra", "_foreign", "_paths", "_reveal", "_words", "mask")

    def __init__(self, extra: Iterable[str], reveal: Iterable[str]) -> None:
        extra = tuple(extra)
        self._extra = frozenset(name.casefold() for name in extra)
        self._paths = frozenset(tuple(name.split(".")) for name in self._extra if "." in name)
        self._reveal = frozenset(name.casefold() for name in reveal)
        names = {*self._extra, *(path[-1] for path in self._paths)}
        self._words = tuple(word.encode() for word in (*WORDS, *names))
        self._foreign = not all(map(str.isascii, extra))  # JSON may escape the letters of such a key
        self.mask = TextMask([*WORDS, *sorted(self._extra)])

    def hides(self, key: str) -> bool:
        """Whether the values of this key are hidden."""
        folded = key.casefold()
        if folded in self._reveal:
            return False
        for word in WORDS:  # a generator takes twice as long
            if word in folded:
                return True
        return folded in self._extra

    def hidden(self, text: bytes, path: tuple[str, ...] = ()) -> bytes | None:
        """The JSON without secrets; None if it has none. `path`: the names above it, without case."""
        if (place := self._place(text)) == "nowhere":
            return None
        if len(text) > LARGEST:
            return _whole(text)
        try:
            return _encode(self._without(_decode(text), path, Search(text, place, Effort(len(text)))))
        except TooMuch:
            return _whole(text)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return _UNREADABLE

    def _place(self, text: bytes, effort: Effort | None = None) -> Place:
        """Where JSON may have something to hide: a search for its letters, 20 times as fast as decoding. `effort`: if
        nothing of it is left, the text is hidden anyway."""
        if ESCAPED.search(text) is not None:
            return "texts"
        folded = text.lower()
        if not text.isascii():
            if self._foreign:
                folded = text.decode(errors="replace").casefold().encode()
            for letter, plain in LETTERS:
                folded = folded.replace(letter, plain)
        if any(value.search(folded) for value in VALUES) or (b"@" in folded and BEFORE_AT.search(folded) is not None):
            return "texts"
        if self._foreign and b"\\u" in text:
            return "texts"
        words = [word for word in self._words if word in folded]
        if not words or (len(text) > LARGEST and not _as_key(words, folded)):
            return "nowhere"
        if effort is not None and effort.room < 0:
            return "texts"
        return "texts" if len(text) > LARGEST or b"\\u" in text or _in_text(words, folded) else "keys"

    def _without(self, value: Any, path: tuple[str, ...], search: Search) -> Any:
        """The value without secrets. `path`: the keys above it. Raises TooMuch."""
        if isinstance(value, str):
            if not search.texts or len(value) < SHORTEST:
                return value
            search.effort.spend(TEXT)
            shown = self.mask.hidden(value, search.effort)
            search.has_hidden |= shown is not value
            return shown
        if isinstance(value, dict):
            return self._mapping(value, path, search)
        if not isinstance(value, list):
            return value
        if len(value) == 2 and isinstance(value[0], str):
            search.effort.spend(KEY)
            name, below = value  # an item of a mapping that JSON cannot represent
            return [self._without(name, path, search), self._value(name, below, path, search, self.hides(name))]
        return self._items(value, search, path)

    def _items(self, values: list[Any], search: Search, path: tuple[str, ...] = ()) -> list[Any]:
        plain = self._plain(values, search)
        return [one if type(one) in plain else self._without(one, path, search) for one in values]

    def _mapping(self, value: dict[str, Any], path: tuple[str, ...], search: Search) -> dict[str, Any]:
        plain, hides = self._plain(value.values(), search), search.hides
        shown = {}
        for name, field in value.items():
            if (is_hidden := hides.get(name)) is None:  # records have the same keys
                search.effort.spend(KEY)
                is_hidden = hides[name] = self.hides(name)
            if not is_hidden and not self._paths and type(field) in plain:
                shown[name] = field
            else:
                shown[name] = self._value(name, field, path, search, is_hidden)
        return shown

    def _plain(self, values: Collection[Any], search: Search) -> frozenset[type]:
        """The types of the values that have no secret. All texts are searched together."""
        if search.texts and (texts := [value for value in values if type(value) is str]):
            search.effort.spend(TEXT)
            if self.mask.may_have("\0".join(texts)):
                return _NUMBERS
        return _SCALARS

    def _value(self, key: str, value: Any, path: tuple[str, ...], search: Search, is_hidden: bool) -> Any:
        below = path
        if self._paths and key not in ("v", "$t"):  # in tagged JSON the fields of an object are below "v"
            below = (*path, key.casefold())
        if value is None or not (is_hidden or (self._paths and self._is_below(below))):
            return self._without(value, below, search)
        search.secrets.append(value)
        search.has_hidden = True
        return HIDDEN

    def _is_below(self, path: tuple[str, ...]) -> bool:
        return any(path[-len(hidden) :] == hidden for hidden in self._paths)

    def split(self, text: str, effort: Effort, names: Sequence[str] = ()) -> tuple[str, list[Any]] | None:
        """JSON text without secrets, and the secrets; None if it has none. `names`: the names of the positional
        arguments; only the payload of a call has some."""
        by_place = any(self.hides(name) or self._is_below((name.casefold(),)) for name in names)
        raw = text.encode(errors="replace")
        place = self._place(raw, effort)
        if not by_place and place == "nowhere":
            return None
        if len(raw) > LARGEST:
            return f"[{_whole(raw).decode()}]", []
        try:
            search = Search(raw, place, effort)
            tree = _decode(raw)
            values = tree if isinstance(tree, list) else tree.get("args") if isinstance(tree, dict) else None
            if names and isinstance(values, list):
                values[:] = [
                    self._value(name, value, (), search, self.hides(name)) if name else self._without(value, (), search)
                    for name, value in zip_longest(names[: len(values)], values, fillvalue="")
                ]
            elif isinstance(tree, list):  # not as an item of a mapping, even if it has two values
                tree = self._items(tree, search)
            if not isinstance(tree, list):
                tree = self._without(tree, (), search)
            return (_encode(tree).decode(), search.secrets) if search.has_hidden else None
        except TooMuch:
            return f"[{_whole(raw).decode()}]", []
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return _UNREADABLE.decode(), []


def _whole(text: bytes) -> bytes:
    return _encode(f"{HIDDEN} ({len(text):,} bytes of JSON with a hidden key)")


def _as_key(words: Sequence[bytes], folded: bytes) -> bool:
    """Whether one of these words occurs in a key of this JSON, or names a value in a text; also True once HITS other
    occurrences were checked."""
    hits = 0
    for word in words:
        start = folded.find(word)
        while start >= 0:
            hits += 1
            end = start + len(word)
            if hits > HITS or AS_KEY.match(folded, end) is not None or AS_NAME.match(folded, end) is not None:
                return True
            start = folded.find(word, end)
    return False


def _in_text(words: Sequence[bytes], folded: bytes) -> bool:
    """Whether one of these words may name a value within a text of this JSON; also True if the words occur too often.
    A key ends with a quote that is not escaped."""
    hits, most = 0, 64 + len(folded) // 64
    for word in words:
        start = folded.find(word)
        while start >= 0:
            hits += 1
            run = LETTERS_BEHIND.match(folded, start + len(word))
            end = start if run is None else run.end()
            if hits > most or folded[end : end + 1] in SIGNS_BEHIND:
                return True
            # Before the same sign it would be the same again; a word may go beyond it.
            start = folded.find(word, max(start + len(word), end - len(word) + 1))
    return False
