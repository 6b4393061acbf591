"""The options `blobs=` and `keys=` of an app in a test: texts are encrypted and offloaded as in production.

Large texts are offloaded into memory: the app's own folder or bucket is never read or written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from treadle.blobs import ObjectEntry
from treadle.core.clock import Clock
from treadle.core.model import Record
from treadle.storage import PayloadStorage, Wrapping
from treadle.storage.contract import Storage

ALL: Final = ("payload", "result", "value", "checkpoints")  # fields whose texts may be in the blob store


class MemoryObjects:
    """A store of named objects in memory. Their ages follow a clock of the test. Any thread may use it."""

    def __init__(self, now: Clock) -> None:
        self._now = now
        self._kept: dict[str, tuple[bytes, float]] = {}  # content, and the time of the last put

    def __str__(self) -> str:
        return "the blob store of the test"

    def fresh(self) -> MemoryObjects:
        return self

    async def close(self) -> None:
        """Do nothing: the objects exist as long as the test."""

    async def put(self, name: str, content: bytes) -> None:
        self._kept[name] = content, self._now()

    async def get(self, name: str) -> bytes | None:
        entry = self._kept.get(name)
        return None if entry is None else entry[0]

    async def delete(self, names: Sequence[str], age: float = 0.0) -> None:
        for name in names:
            if name in self._kept and self._now() - self._kept[name][1] >= age:
                del self._kept[name]

    async def page(self, after: str, limit: int) -> Sequence[ObjectEntry]:
        now, names = self._now(), sorted(name for name in self._kept if name > after)
        return [ObjectEntry(name, len(self._kept[name][0]), now - self._kept[name][1]) for name in names[:limit]]


class TextsInTest(Wrapping):
    """Makes the storage of a test one that offloads into memory and encrypts, by the rules of the app."""

    def __init__(self, wrap: Wrapping, now: Clock) -> None:
        super().__init__(wrap.with_objects(MemoryObjects(now)).texts)

    def storage(self, storage: Storage) -> Storage:
        return _Wrapped(storage, self.texts.elsewhere())

    async def readable(self, rows: Sequence[Record]) -> list[Record]:
        """The rows with all their texts as the program gave them."""
        texts = await self.texts.whole(rows, ALL)
        return [row for row in texts if row is not None]


class _Wrapped(PayloadStorage):
    async def check_owner(self) -> None:
        """Do nothing: the blob store belongs to this test, so no row has to name its owner."""


def in_test(wrap: Wrapping | None, now: Clock) -> TextsInTest | None:
    """The wrapping of the app for a test with this clock; None: the app has none."""
    return None if wrap is None else TextsInTest(wrap, now)
