"""A storage that is only read: it opens without migrating, and refuses every verb that could change something."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NoReturn, TypeVar

from msgspec.structs import replace

from treadle.core.errors import Unsupported
from treadle.core.model import Record
from treadle.core.query_model import CountDrift
from treadle.storage.contract import Capabilities, Storage
from treadle.storage.proxy import StorageProxy

T = TypeVar("T")

READS: Final = frozenset({"get", "find", "stats", "glance", "limits", "read_metrics", "read_mark", "unload", "risks"})
FREE: Final = READS | {"open", "close"}


class LookOnly(StorageProxy):
    """Reads of another storage, which `open` opens only to look at it, as `contract.Storage.open(look=True)` says."""

    @property
    def capabilities(self) -> Capabilities:
        return replace(self.storage.capabilities, settle_claim=False, hand_off=False, transactions=False)

    async def around(self, verb: str, call: Callable[[Storage], Awaitable[T]]) -> T:
        if verb not in FREE:
            _refuse(verb)
        return await call(self.storage)

    async def open(self, look: bool = True) -> None:
        await self.storage.open(look=True)

    async def recount(self, repair: bool = False) -> tuple[CountDrift, ...]:
        if repair:
            _refuse("recount(repair=True)")
        return await self.storage.recount()

    async def watch(self, topics: Sequence[str], timeout: float) -> set[str]:
        """Sleep: a listener of its own would be a file or a subscription."""
        await asyncio.sleep(timeout)
        return set()

    def post(self, take: Callable[[str, Record], None]) -> NoReturn:
        _refuse("post")

    def within(self, session: Any) -> NoReturn:
        _refuse("within")


def _refuse(verb: str) -> NoReturn:
    raise Unsupported(
        "a storage that was opened only to be read",
        verb if verb.endswith(")") else f"{verb}()",
        "open it without look=True",
    )
