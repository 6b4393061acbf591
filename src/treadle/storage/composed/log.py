"""The log in the store: entry n is the key `log:<n>`, and whoever sets it first has made the n-th step.

Without it three systems that cannot commit together would have no commit. `set_if_absent` is the commit: one of all who
try for a place wins it, the others read what he wrote and try for the next. Nothing is ever changed in place.

Entries are deleted once a base, all rows as of a place, makes them superfluous, and here is the one danger: a process
that slept through that could win a place that was deleted, and nobody would ever read what it wrote there. So the
pointers to bases, `base:<k>`, are never deleted; base k + 1 lets the entries up to base k go, no others; and after each
win, and each time the log seems to have ended, the next pointers are looked at (`overtaken`).

A store may also break its promise and forget what it acknowledged, as one does behind a fail-over. So each entry names
the one before it: one that names another than stands there is void for everybody, and whoever wrote or read what was
forgotten finds that out at his next step, and begins anew with what is there.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec

from treadle.errors import UNREADABLE, NotADatabase, SchemaTooNew, StorageUnavailable
from treadle.storage.composed import log_entries
from treadle.storage.composed.log_entries import Base, Entry
from treadle.storage.composed.port_calls import Port, soon

TRIES: Final = 4  # at learning whether a place was won
PAUSE: Final = 0.02  # s before the second of them, doubled before each further one
AHEAD: Final = 32  # entries read at once by one who is far behind


class Log:
    """The log and its bases, under one prefix of keys."""

    def __init__(self, store: Port, prefix: str) -> None:
        self._store, self._prefix = store, prefix
        self.number = 0  # of the base this process stands on; 0: the beginning
        self.base = Base(0, "", 0)

    def key(self, *parts: object) -> str:
        return ":".join((self._prefix, *map(str, parts)))

    async def get(self, key: str) -> str | None:
        found: str | None = await self._store(self._store.port.get, key)
        return found

    async def put(self, key: str, value: str) -> None:
        await self._store(self._store.port.set, key, value)

    async def delete(self, keys: list[str]) -> None:
        for at in range(0, len(keys), AHEAD):
            await asyncio.gather(*(self._store(self._store.port.delete, key) for key in keys[at : at + AHEAD]))

    # --- entries

    async def read(self, position: int) -> Entry | None:
        """The entry at this place. Raises SchemaTooNew, NotADatabase, StorageUnavailable."""
        text = await self.get(self.key("log", position))
        if text is None:
            return None
        try:
            head = log_entries.decode_head(text)
            if head.rules > log_entries.RULES:
                raise SchemaTooNew(head.rules, log_entries.RULES)
            entry = log_entries.decode_entry(text)
            if entry.parts is None:
                return entry
            whole = await self.read_parts(*entry.parts)
            if whole is None:
                return None  # deleted, as only an entry is that a base has overtaken
            return msgspec.structs.replace(entry, ops=log_entries.decode_ops(whole))
        except UNREADABLE as error:
            raise NotADatabase(f"{self.key('log', position)} holds no entry of a log: {error}") from error

    async def id_at(self, position: int) -> str:
        """Of the entry at this place; "" if there is none."""
        text = await self.get(self.key("log", position)) if position > 0 else None
        return "" if text is None else log_entries.decode_head(text).id

    async def read_on(self, position: int, count: int) -> list[Entry]:
        """Up to `count` entries behind this place; fewer: the log ends there, or ended a moment ago."""
        found = await asyncio.gather(*(self.read(position + 1 + n) for n in range(count)))
        whole = next((n for n, entry in enumerate(found) if entry is None), count)
        return [entry for entry in found[:whole] if entry is not None]

    async def append(self, position: int, text: str, id: str) -> bool:
        """Try for this place; answers whether it was won. Raises StorageUnavailable if that cannot be learned."""
        for trial in range(TRIES):
            try:
                won = await self._store(self._store.port.set_if_absent, self.key("log", position), text)
                if won or not trial:
                    return bool(won)
                found = await self.get(self.key("log", position))  # a try before this one may have won it
                return found is not None and log_entries.decode_head(found).id == id
            except StorageUnavailable:
                if trial == TRIES - 1:
                    raise
                await asyncio.sleep(PAUSE * 2**trial)
        raise AssertionError("the last try answers or raises")

    # --- parts: what is too long for one value

    async def write_parts(self, name: str, parts: list[str]) -> None:
        for at in range(0, len(parts), AHEAD):
            await asyncio.gather(
                *(self.put(self.key("part", name, at + n), part) for n, part in enumerate(parts[at : at + AHEAD]))
            )

    async def read_parts(self, name: str, count: int) -> str | None:
        """The whole text; None if any part of it is gone."""
        parts: list[str] = []
        for at in range(0, count, AHEAD):
            keys = [self.key("part", name, n) for n in range(at, min(count, at + AHEAD))]
            for part in await asyncio.gather(*map(self.get, keys)):
                if part is None:
                    return None
                parts.append(part)
        return "".join(parts)

    async def delete_parts(self, name: str, count: int) -> None:
        await self.delete([self.key("part", name, n) for n in range(count)])

    # --- bases

    async def overtaken(self, position: int) -> bool:
        """Whether entries behind this place may have been deleted. Steps on to the bases this process has reached."""
        while True:
            number = self.number  # a rebase of this process may raise it during each wait
            newer = await self.pointer(number + 1)
            if newer is None:
                return False
            if position < newer.position:
                return await self.pointer(number + 2) is not None
            self.stand_on(number + 1, newer)

    def stand_on(self, number: int, base: Base) -> None:
        """The one place that steps on: to a base this process has reached, never back and never past one."""
        if number > self.number:
            self.number, self.base = number, base

    async def find_base(self) -> tuple[int, Base]:
        """The newest base. Pointers are never deleted, so leaps and then halves find the last."""
        hint = await self.get(self.key("base"))
        low = int(hint) if hint is not None and hint.isdigit() else 0
        if await self.pointer(low) is None:
            low = 0  # the store has forgotten the base that the hint names
        step = 1
        while await self.pointer(low + step) is not None:
            low, step = low + step, step * 2
        while step > 1:
            step //= 2
            if await self.pointer(low + step) is not None:
                low += step
        return low, (await self.pointer(low)) or Base(0, "", 0)

    async def set_base(self, number: int, base: Base, before: Base) -> bool:
        """Make it the newest; False: somebody else's is. Raises StorageUnavailable if that cannot be learned. `before`
        is the base in front of it: its pointer is stored again in case the store has forgotten it, so that the numbers
        have no gap, on which `overtaken` and `find_base` rely."""
        if number > 1:
            await self._store(
                self._store.port.set_if_absent, self.key("base", number - 1), log_entries.encode(before).decode()
            )
        key, text = self.key("base", number), log_entries.encode(base).decode()
        won = await self._store(self._store.port.set_if_absent, key, text)
        if not won:
            return await self.get(key) == text
        await soon(self.put(self.key("base"), str(number)))
        return True

    async def pointer(self, number: int) -> Base | None:
        """Where the base of this number is; None: there is none yet, or it is the beginning."""
        text = await self.get(self.key("base", number)) if number > 0 else None
        return None if text is None else log_entries.decode_base(text)


def pieces(text: str, size: int) -> list[str]:
    """A long text in values that every store takes."""
    return [text[at : at + size] for at in range(0, len(text), size)] or [""]


def as_text(entry: Any) -> str:
    return log_entries.encode(entry).decode()
