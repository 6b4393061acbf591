"""A storage that forwards every call to another one: the base of wrappers that count, delay, fail or move calls."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Coroutine
from operator import methodcaller
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from treadle.core.model import Record
from treadle.storage.contract import Capabilities, Storage
from treadle.storage.optional_parts import Bound, Fused, HandOffs, Movable, Payloads, Post, Surroundings, Transactional

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


def kind_of(storage: Storage) -> str:
    """The name of a storage's class, behind all proxies."""
    while isinstance(storage, StorageProxy):
        storage = storage.storage
    return type(storage).__name__


def _forwarded(
    verb: Callable[Concatenate[S, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[StorageProxy, P], Coroutine[Any, Any, T]]:
    """A method that calls the method of the same name of the storage behind a proxy."""
    name = verb.__name__

    @functools.wraps(verb)
    async def forward(self: StorageProxy, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.around(name, methodcaller(name, *args, **kwargs))

    return forward


class StorageProxy:
    """Forwards the methods of a storage, its capabilities, and the methods that belong to them.

    Override `around` to act on every call, `capabilities` to hide a capability, or a single method.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    @property
    def storage(self) -> Storage:
        """The storage that the calls go to."""
        return self._storage

    @property
    def capabilities(self) -> Capabilities:
        return self.storage.capabilities

    async def around(self, verb: str, call: Callable[[Storage], Awaitable[T]]) -> T:
        """Make one call to the storage; `verb` is the name of its method. `post` and `within` do not come through here,
        because they only make an object."""
        return await call(self.storage)

    async def open(self, look: bool = False) -> None:
        await self.around("open", lambda storage: storage.open(look) if look else storage.open())

    close = _forwarded(Storage.close)
    enqueue = _forwarded(Storage.enqueue)
    claim = _forwarded(Storage.claim)
    heartbeat = _forwarded(Storage.heartbeat)
    settle = _forwarded(Storage.settle)
    get = _forwarded(Storage.get)
    find = _forwarded(Storage.find)
    stats = _forwarded(Storage.stats)
    recount = _forwarded(Storage.recount)
    glance = _forwarded(Storage.glance)
    limits = _forwarded(Storage.limits)
    set_limits = _forwarded(Storage.set_limits)
    prune = _forwarded(Storage.prune)
    store_metrics = _forwarded(Storage.store_metrics)
    read_metrics = _forwarded(Storage.read_metrics)
    watch = _forwarded(Storage.watch)

    # the methods of capabilities

    settle_claim = _forwarded(Fused.settle_claim)
    begin = _forwarded(Transactional.begin)
    oldest_open = _forwarded(Transactional.oldest_open)
    whole = _forwarded(Payloads.whole)
    collect = _forwarded(Payloads.collect)
    risks = _forwarded(Surroundings.risks)
    read_mark = _forwarded(Movable.read_mark)
    set_mark = _forwarded(Movable.set_mark)
    unload = _forwarded(Movable.unload)
    load = _forwarded(Movable.load)

    def post(self, take: Callable[[str, Record], None]) -> Post | None:
        return cast("HandOffs", self.storage).post(take)

    def within(self, session: Any) -> Bound:
        return cast("Transactional", self.storage).within(session)
