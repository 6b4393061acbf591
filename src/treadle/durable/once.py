"""`async with current().once(key)`: only one job gets True, until its lock expires.

The last keys that a job got are kept among its checkpoints, for its history. The lock itself is a row of its own.
"""

from __future__ import annotations

from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import Any, Final, Protocol, TypeVar

import msgspec
from msgspec import Struct

from treadle.core.errors import UNREADABLE
from treadle.core.model import Pairs

T = TypeVar("T")

ONCE: Final = "treadle:once:"  # prefix of the checkpoints; the number of the key modulo KEPT follows
KEPT: Final = 10  # keys of a job


class KeptLock(Struct, frozen=True, omit_defaults=True):
    """A key that the job got. `until`: when its lock expires, by the storage's clock."""

    key: str
    number: int
    until: float | None = None
    given_back: bool = False


_read = msgspec.json.Decoder(KeptLock).decode


def locks_of(checkpoints: Pairs) -> list[KeptLock]:
    """The last keys that a job got, in order. Entries that cannot be read are left out."""
    locks = []
    for name, text in checkpoints:
        if name.startswith(ONCE):
            try:
                locks.append(_read(text))
            except UNREADABLE:  # another program has stored it
                continue
    return sorted(locks, key=lambda lock: lock.number)


class KeptLocks:
    """The keys that a job got, as its checkpoints keep them."""

    def __init__(self, checkpoints: Pairs) -> None:
        self._locks = {lock.key: lock for lock in locks_of(checkpoints)}

    def won(self, key: str, until: float | None) -> tuple[str, str]:
        """The checkpoint for a key that the job got."""
        known = self._locks.get(key)
        number = known.number if known is not None else 1 + max((m.number for m in self._locks.values()), default=0)
        return self._keep(KeptLock(key, number, until))

    def given_back(self, key: str) -> tuple[str, str]:
        """The checkpoint for a key that the job gave back."""
        known = self._locks.get(key) or KeptLock(key, 1 + max((m.number for m in self._locks.values()), default=0))
        return self._keep(KeptLock(key, known.number, known.until, given_back=True))

    def _keep(self, lock: KeptLock) -> tuple[str, str]:
        self._locks = {key: m for key, m in self._locks.items() if m.number % KEPT != lock.number % KEPT}
        self._locks[lock.key] = lock
        return f"{ONCE}{lock.number % KEPT}", msgspec.json.encode(lock).decode()


class OnceLocks(Protocol):
    """The methods of a run's durable code that `Once` uses."""

    async def win(self, key: str, keep: float | timedelta) -> bool: ...
    async def give_back(self, key: str) -> None: ...
    def wait_here(self, work: Coroutine[Any, Any, T]) -> T: ...


class Once(AbstractAsyncContextManager[bool]):
    """`async with current().once(key) as first`, or `with` in threads."""

    def __init__(self, durable: OnceLocks, key: str, keep: float | timedelta) -> None:
        self._durable, self._key, self._keep = durable, key, keep

    async def __aenter__(self) -> bool:
        return await self._durable.win(self._key, self._keep)

    async def __aexit__(self, kind: Any, error: BaseException | None, tb: Any) -> None:
        if isinstance(error, Exception):
            await self._durable.give_back(self._key)

    def __enter__(self) -> bool:
        is_first: bool = self._durable.wait_here(self._durable.win(self._key, self._keep))
        return is_first

    def __exit__(self, kind: Any, error: BaseException | None, tb: Any) -> None:
        if isinstance(error, Exception):
            self._durable.wait_here(self._durable.give_back(self._key))
