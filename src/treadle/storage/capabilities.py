"""Casts a storage to one of its optional parts, if its `capabilities` name that part."""

from __future__ import annotations

from typing import cast

from treadle.errors import Unsupported
from treadle.storage.contract import Fused, HandOffs, Movable, Storage, Transactional
from treadle.storage.proxy import kind_of


def fused(storage: Storage) -> Fused | None:
    """The storage, if it has `settle_claim`."""
    return cast("Fused", storage) if storage.capabilities.settle_claim else None


def hand_offs(storage: Storage) -> HandOffs | None:
    """The storage, if it supports direct hand-off to idle workers."""
    return cast("HandOffs", storage) if storage.capabilities.hand_off else None


def transactional(storage: Storage, what: str, instead: str) -> Transactional:
    """The storage with its transactions. Raises Unsupported if it has none; the error says `what` it cannot do and what
    to do `instead`."""
    if not storage.capabilities.transactions:
        raise Unsupported(kind_of(storage), what, instead)
    return cast("Transactional", storage)


def movable(storage: Storage, name: str) -> Movable:
    """The storage with its methods for moves. Raises Unsupported with its `name` if it has none."""
    if not storage.capabilities.movable:
        raise Unsupported(name, "moving", "give the URL of the storage itself: SQLite, PostgreSQL, Redis or memory")
    return cast("Movable", storage)
