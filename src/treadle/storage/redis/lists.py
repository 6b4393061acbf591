"""Checks the lists of few jobs (`lua/kinds.lua`) against the rows, and corrects them."""

from __future__ import annotations

from collections import Counter
from typing import Final

from treadle.storage.redis.reading import Reader

CHECKED: Final = 1_000  # entries that one script checks: 2-3 ms of the server's time


async def relist(db: Reader, correct: bool) -> list[tuple[str, int, int]]:
    """Compare all rows with the lists. For each list that differs, return its name, how many entries it had, and how
    many it should have; `correct`: add and drop entries."""
    added = Counter[str](await _differing(db, "", correct))
    dropped = Counter[str]()
    names = [entry.decode() for entry in await db.read("SMEMBERS", "of")]
    for name in (*sorted(names), "system"):
        dropped.update(await _differing(db, name, correct))
    differing = []
    for name in sorted({*added, *dropped}):
        size = await db.read("ZCARD", name if name == "system" else f"of:{name}")
        before = size - added[name] + dropped[name] if correct else size
        differing.append((name, before, before + added[name] - dropped[name]))
    return differing


async def _differing(db: Reader, name: str, correct: bool) -> list[str]:
    """For each entry that is missing, or that should no longer be there, the name of its list. `name`: the list; "":
    the rows."""
    names, score, id = list[str](), b"", b""
    while True:
        score, id, *answer = await db.call("relist", "" if correct else "1", CHECKED, score, id, name)
        names += [word.decode() for word in answer]
        if not score:
            return names
