"""Keeps answers small: an assistant reads every character, and a job may have megabytes of arguments. Pure."""

from __future__ import annotations

from typing import Any, Final

import msgspec

LONGEST: Final = 2_000  # characters of one text
MOST: Final = 60_000  # bytes of one answer; beyond it texts and lists are cut shorter
STEPS: Final = ((2_000, 1_000), (300, 100), (80, 20))  # characters of a text, items of a list
NAMED: Final = 20  # places that the answer names
DEEPEST: Final = 60  # levels; what is deeper becomes a text


def bounded(answer: dict[str, Any]) -> dict[str, Any]:
    """The answer with long texts and lists cut. `truncated` then names the places."""
    found, places = answer, list[str]()
    for longest, most in STEPS:
        places = []
        found = _cut(answer, "", longest, most, places, 0)
        if len(msgspec.json.encode(found)) <= MOST:
            break
    if places:
        more = len(places) - NAMED
        found["truncated"] = places[:NAMED] + ([f"and {more:,} more"] if more > 0 else [])
    return found


def _cut(value: Any, place: str, longest: int, most: int, places: list[str], depth: int) -> Any:
    if isinstance(value, str) and len(value) > longest:
        places.append(f"{place}: {len(value):,} characters")
        return f"{value[:longest]}... ({len(value):,} characters)"
    if isinstance(value, dict | list) and depth > DEEPEST:
        places.append(f"{place}: too deep")
        return "..."
    if isinstance(value, dict):
        return {
            name: _cut(each, f"{place}.{name}".lstrip("."), longest, most, places, depth + 1)
            for name, each in value.items()
        }
    if isinstance(value, list):
        if len(value) > most:
            places.append(f"{place}: {len(value):,} items")
        return [_cut(each, f"{place}[{at}]", longest, most, places, depth + 1) for at, each in enumerate(value[:most])]
    return value
