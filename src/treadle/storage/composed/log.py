"""Reads and appends the log in the store: entry n is the key `log:<n>`, written once and never changed.

`set_if_absent` is the commit. Of all processes that try for a position one wins it. The others read its entry and try
for the next position.

Entries are deleted once a base (all rows as of a position) makes them obsolete. This has one danger: a process that was
suspended meanwhile could win a deleted position, and no process would ever read its entry. So the pointers to bases,
`base:<k>`, are never deleted, and base k + 1 allows deleting the entries up to base k only. The next pointers are read
after each win, and each time the log seems to have ended (`overtaken`).

A store may also lose values that it acknowledged, for example in a fail-over. So each entry names the entry before it.
An entry that names another one is void in every process. A process that wrote or read a lost entry notices that at its
next step and reloads.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec

from treadle.core import clock
from treadle.core.errors import UNREADABLE, NotADatabase, SchemaTooNew, StorageUnavailable
from treadle.storage.composed import log_entries
from treadle.storage.composed.log_entries import Base, LogEntry
from treadle.storage.composed.port_calls import Port, soon

TRIES: Final = 4  # tries to learn whether a position was won
PAUSE: Final = 0.02  # seconds before the second try, doubled before each further one
AHEAD: Final = 32  # calls of the store at once, and the most entries read at once
SKEW: Final = 5.0  # seconds by which the clocks of processes may differ before the time of the log goes back
SYNC: Final = 30.0  # seconds between readings of the store's clock; meanwhile our own clock continues it


class Log:
    """The log and its bases, under one prefix of keys."""

    def __init__(self, store: Port, prefix: str) -> None:
        self._store, self._prefix = store, prefix
        self.number = 0  # the number of the last base that this process has reached; 0: the start of the log
        self.base = Base(0, "", 0)

    def key(self, *parts: object) -> str:
        return ":".join((self._prefix, *map(str, parts)))

    async def get(self, key: str) -> str | None:
        value: str | None = await self._store(self._store.port.get, key)
        return value

    async def put(self, key: str, value: str) -> None:
        await self._store(self._store.port.set, key, value)

    async def delete(self, keys: list[str]) -> None:
        for start in range(0, len(keys), AHEAD):
            await asyncio.gather(*(self._store(self._store.port.delete, key) for key in keys[start : start + AHEAD]))

    # --- entries

    async def read(self, position: int) -> LogEntry | None:
        """The entry at this position. Raises SchemaTooNew, NotADatabase, StorageUnavailable."""
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
                return None  # its parts are deleted, so a base has made the entry obsolete
            return msgspec.structs.replace(entry, ops=log_entries.decode_ops(whole))
        except UNREADABLE as error:
            raise NotADatabase(f"{self.key('log', position)} is not an entry of the log: {error}") from error

    async def id_at(self, position: int) -> str:
        """The id of the entry at this position; "" if there is none."""
        text = await self.get(self.key("log", position)) if position > 0 else None
        return "" if text is None else log_entries.decode_head(text).id

    async def read_on(self, position: int, count: int) -> list[LogEntry]:
        """Up to `count` entries after this position. If there are fewer, the log ended there when it was read."""
        entries = await asyncio.gather(*(self.read(position + 1 + n) for n in range(count)))
        whole = next((n for n, entry in enumerate(entries) if entry is None), count)
        return [entry for entry in entries[:whole] if entry is not None]

    async def append(self, position: int, text: str, id: str) -> bool:
        """Try for this position; return whether it was won. Raises StorageUnavailable if that remains unknown."""
        for trial in range(TRIES):
            try:
                won = await self._store(self._store.port.set_if_absent, self.key("log", position), text)
                if won or not trial:
                    return bool(won)
                stored = await self.get(self.key("log", position))  # an earlier try may have won it
                return stored is not None and log_entries.decode_head(stored).id == id
            except StorageUnavailable:
                if trial == TRIES - 1:
                    raise
                await asyncio.sleep(PAUSE * 2**trial)
        raise AssertionError("the last attempt returns or raises")

    # --- parts: texts that are too long for one value

    async def write_parts(self, name: str, parts: list[str]) -> None:
        for start in range(0, len(parts), AHEAD):
            await asyncio.gather(
                *(
                    self.put(self.key("part", name, start + n), part)
                    for n, part in enumerate(parts[start : start + AHEAD])
                )
            )

    async def read_parts(self, name: str, count: int) -> str | None:
        """The whole text; None if a part of it is missing."""
        parts: list[str] = []
        for start in range(0, count, AHEAD):
            keys = [self.key("part", name, n) for n in range(start, min(count, start + AHEAD))]
            for part in await asyncio.gather(*map(self.get, keys)):
                if part is None:
                    return None
                parts.append(part)
        return "".join(parts)

    async def delete_parts(self, name: str, count: int) -> None:
        await self.delete([self.key("part", name, n) for n in range(count)])

    # --- bases

    async def overtaken(self, position: int) -> bool:
        """Whether entries after this position may have been deleted. Moves on to the bases that it has reached."""
        while True:
            number = self.number  # a concurrent rebase of this process may raise it during each await
            newer = await self.pointer(number + 1)
            if newer is None:
                return False
            if position < newer.position:
                return await self.pointer(number + 2) is not None
            self.stand_on(number + 1, newer)

    def stand_on(self, number: int, base: Base) -> None:
        """Move on to a base that this process has reached; never moves back."""
        if number > self.number:
            self.number, self.base = number, base

    async def find_base(self) -> tuple[int, Base]:
        """The newest base with its number. Pointers are never deleted, so an exponential search finds the last one."""
        hint = await self.get(self.key("base"))
        low = int(hint) if hint is not None and hint.isdecimal() else 0
        if await self.pointer(low) is None:
            low = 0  # the store has lost the base that the hint names
        step = 1
        while await self.pointer(low + step) is not None:
            low, step = low + step, step * 2
        while step > 1:
            step //= 2
            if await self.pointer(low + step) is not None:
                low += step
        return low, (await self.pointer(low)) or Base(0, "", 0)

    async def set_base(self, number: int, base: Base, before: Base) -> bool:
        """Make this base the newest. False: another process has set one. Raises StorageUnavailable if that remains
        unknown. `before` is the previous base. Its pointer is stored again in case the store has lost it, because
        `overtaken` and `find_base` rely on numbers without a gap."""
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
        """The base of this number; None if it is not set, and for 0."""
        text = await self.get(self.key("base", number)) if number > 0 else None
        return None if text is None else log_entries.decode_base(text)


class LogClock:
    """The time of the log, which all processes share and which does not go back from one entry to the next.

    Reads `given` if there is one, otherwise the store's clock, and without that this machine's.
    """

    def __init__(self, own: clock.Clock | None, store: Port) -> None:
        self._own, self._store = own, store
        self._read_at: tuple[float, float] | None = None  # our monotonic clock and the store's clock at the same moment

    async def now(self, last: float) -> float:
        """The current time, or the time of the last entry if that is up to `SKEW` seconds ahead."""
        now = self._own() if self._own is not None else await self._store_time()
        return last if now < last <= now + SKEW else now

    async def _store_time(self) -> float:
        if not self._store.has("now"):
            return clock.wall()
        here = clock.monotonic()
        if self._read_at is None or here - self._read_at[0] > SYNC:
            there = float(await self._store(self._store.port.now))
            self._read_at = (here + clock.monotonic()) / 2, there
        return self._read_at[1] + clock.monotonic() - self._read_at[0]


def pieces(text: str, size: int) -> list[str]:
    """Split a long text into values that every store accepts."""
    return [text[start : start + size] for start in range(0, len(text), size)] or [""]


def as_text(entry: Any) -> str:
    return log_entries.encode(entry).decode()
