"""`async with current().once(key)`: only one job gets True, until its mark expires.

The last keys that a job got are kept among its checkpoints, for its history. The mark itself is a row of its own.
"""

from __future__ import annotations

from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import Any, Final, Protocol, TypeVar

import msgspec
from msgspec import Struct

from treadle.core.model import Pairs
from treadle.errors import UNREADABLE

T = TypeVar("T")

ONCE: Final = "treadle:once:"  # prefix of the checkpoints; the number of the key modulo KEPT follows
KEPT: Final = 10  # keys of a job


class KeptMark(Struct, frozen=True, omit_defaults=True):
    """A key that the job got. `until`: when its mark expires, by the storage's clock."""

    key: str
    number: int
    until: float | None = None
    given_back: bool = False


_read = msgspec.json.Decoder(KeptMark).decode


def marks_of(checkpoints: Pairs) -> list[KeptMark]:
    """The last keys that a job got, in order. Entries that cannot be read are left out."""
    found = []
    for name, text in checkpoints:
        if name.startswith(ONCE):
            try:
                found.append(_read(text))
            except UNREADABLE:  # another program has stored it
                continue
    return sorted(found, key=lambda mark: mark.number)


class KeptMarks:
    """The keys that a job got, as its checkpoints keep them."""

    def __init__(self, checkpoints: Pairs) -> None:
        self._marks = {mark.key: mark for mark in marks_of(checkpoints)}

    def won(self, key: str, until: float | None) -> tuple[str, str]:
        """The checkpoint for a key that the job got."""
        known = self._marks.get(key)
        number = known.number if known is not None else 1 + max((m.number for m in self._marks.values()), default=0)
        return self._keep(KeptMark(key, number, until))

    def given_back(self, key: str) -> tuple[str, str]:
        """The checkpoint for a key that the job gave back."""
        known = self._marks.get(key) or KeptMark(key, 1 + max((m.number for m in self._marks.values()), default=0))
        return self._keep(KeptMark(key, known.number, known.until, given_back=True))

    def _keep(self, mark: KeptMark) -> tuple[str, str]:
        self._marks = {key: m for key, m in self._marks.items() if m.number % KEPT != mark.number % KEPT}
        self._marks[mark.key] = mark
        return f"{ONCE}{mark.number % KEPT}", msgspec.json.encode(mark).decode()


class Marks(Protocol):
    """The methods of a run's durable code that `Once` uses."""

    async def win(self, key: str, keep: float | timedelta) -> bool: ...
    async def give_back(self, key: str) -> None: ...
    def wait_here(self, work: Coroutine[Any, Any, T]) -> T: ...


class Once(AbstractAsyncContextManager[bool]):
    """`async with current().once(key) as first`, or `with` in threads."""

    def __init__(self, durable: Marks, key: str, keep: float | timedelta) -> None:
        self._durable, self._key, self._keep = durable, key, keep

    async def __aenter__(self) -> bool:
        return await self._durable.win(self._key, self._keep)

    async def __aexit__(self, kind: Any, error: BaseException | None, tb: Any) -> None:
        if isinstance(error, Exception):
            await self._durable.give_back(self._key)

    def __enter__(self) -> bool:
        found: bool = self._durable.wait_here(self._durable.win(self._key, self._keep))
        return found

    def __exit__(self, kind: Any, error: BaseException | None, tb: Any) -> None:
        if isinstance(error, Exception):
            self._durable.wait_here(self._durable.give_back(self._key))
