"""Keeps answers small: an assistant reads every character, and a job may have megabytes of arguments. Pure."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from treadle.core.plain_json import read_json

MOST: Final = 60_000  # characters of one answer; beyond it texts and lists are cut shorter
STEPS: Final = ((2_000, 1_000), (300, 100), (80, 20))  # characters of a text, items of a list
NAMED: Final = 20  # places that the answer names
DEEPEST: Final = 60  # levels; deeper values become a text
FIELDS: Final = 2  # levels of an answer with the fields of rows
NESTED: Final = 50  # characters that a nested list or mapping counts as: decoding it takes as long
PLAIN: Final = 20  # lists and mappings that cost nothing, as a row has them
SMALL: Final = 2_000  # bytes of JSON that are decoded whole
SPLIT: Final = 6  # levels of larger JSON that are decoded one by one
DECODED: Final = MOST  # bytes of lists and mappings that are decoded; then only the fields of rows
KEYS: Final = 100  # most keys of a row
ITEMS: Final = 1_000  # most items of a list that are decoded

# The first items of a list; msgspec passes over the others without making values of them.
_First: Final = msgspec.defstruct(
    "_First", [(f"item{number}", Raw | UnsetType, UNSET) for number in range(ITEMS + 1)], array_like=True
)
_first = msgspec.json.Decoder(_First).decode
_fields = msgspec.json.Decoder(dict[str, Raw]).decode


def decoded(answer: bytes) -> Any:
    """The JSON of an answer as far as `bounded` may keep it: to decode 8 MB of small values takes half a second."""
    room = DECODED

    def part(raw: bytes, depth: int) -> Any:
        nonlocal room
        is_list = raw[:1] == b"["
        if not is_list and raw[:1] != b"{":
            return read_json(raw)
        if len(raw) <= SMALL and room >= 0:
            room -= len(raw) + NESTED * max(0, raw.count(b"[") + raw.count(b"{") - PLAIN)
            return read_json(raw)
        size = f"({len(raw):,} bytes of JSON)"
        if depth > SPLIT or (room < 0 and depth + is_list > FIELDS) or (depth > FIELDS and _is_nested(raw)):
            return [size] if is_list else {"(all)": size}
        if is_list:
            items = [item for item in msgspec.structs.astuple(_first(raw)) if item is not UNSET]
            return [part(bytes(item), depth + 1) for item in items]
        if depth and raw.count(b'":') > max(1_000 * KEYS, len(raw) // 16):  # 0.1 us a key
            return {"(all)": size}
        fields = _fields(raw)
        if len(fields) > (ITEMS if room >= 0 else KEYS):
            return {"(all)": size}
        return {name: part(bytes(field), depth + 1) for name, field in fields.items()}

    return part(answer, 0)


def _is_nested(raw: bytes) -> bool:
    """Whether JSON is large and a quarter of it begins lists and mappings: each level takes 11 ns a bracket."""
    return len(raw) > DECODED and 4 * (raw.count(b"[") + raw.count(b"{")) > len(raw)


def bounded(answer: dict[str, Any]) -> dict[str, Any]:
    """The answer with long texts and lists cut. `truncated` then names the places."""
    for longest, most in STEPS:
        cut = _Cut(longest, most)
        kept: dict[str, Any] = cut.of(answer, "", 0)
        if cut.room >= 0:
            break
    if cut.places:
        more = len(cut.places) - NAMED
        kept["truncated"] = cut.places[:NAMED] + ([f"and {more:,} more"] if more > 0 else [])
    return kept


class _Cut:
    """Cuts the texts and lists of one answer.

    room  characters that are left. Below 0, lists and nested values become empty; the fields of rows stay.
    """

    def __init__(self, longest: int, most: int) -> None:
        self._longest, self._most = longest, most
        self.places, self.room = list[str](), MOST

    def of(self, value: Any, place: str, depth: int) -> Any:
        if isinstance(value, str):
            return self._text(value, place)
        self.room -= 2
        if not isinstance(value, dict | list):
            return value
        if depth > DEEPEST:
            self.places.append(f"{place}: too deep")
            return "..."
        if self.room < 0 and value and (isinstance(value, list) or depth > FIELDS):
            self.places.append(f"{place}: {len(value)} items")
            return type(value)()
        if depth > FIELDS:
            self.room -= NESTED
        if isinstance(value, dict):
            self.room -= sum(map(len, value))
            return {name: self.of(field, f"{place}.{name}".lstrip("."), depth + 1) for name, field in value.items()}
        if len(value) > self._most:
            self.places.append(f"{place}: {'more than 1,000' if len(value) > ITEMS else len(value)} items")
        return [self.of(item, f"{place}[{number}]", depth + 1) for number, item in enumerate(value[: self._most])]

    def _text(self, value: str, place: str) -> str:
        if len(value) > self._longest:
            self.places.append(f"{place}: {len(value):,} characters")
            value = f"{value[: self._longest]}... ({len(value):,} characters)"
        self.room -= len(value) + 2
        return value
