"""Casts a storage to one of its optional parts, if its `capabilities` name that part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from treadle.core.errors import Unsupported
from treadle.core.model import Record
from treadle.core.stored_text import BLOB
from treadle.storage.contract import Storage
from treadle.storage.optional_parts import Fused, HandOffs, Movable, Payloads, Transactional
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


def with_blobs(storage: Storage) -> Payloads | None:
    """The storage, if the large texts of its rows are in a blob store."""
    return cast("Payloads", storage) if storage.capabilities.payloads else None


async def whole(storage: Storage, rows: Sequence[Record | None], *fields: str) -> Sequence[Record | None]:
    """The rows with the large texts of these fields (payload, result, value, checkpoints; none given: all of them), if
    a blob store has them. Texts that are missing there stay references. Raises StorageUnavailable."""
    chosen = fields or ("payload", "result", "value", "checkpoints")
    if not any(row is not None and _refers(row) for row in rows) or not storage.capabilities.payloads:
        return rows
    return await cast("Payloads", storage).whole(rows, chosen)


async def whole_row(storage: Storage, row: Record, *fields: str) -> Record:
    """The row with its large texts, as `whole`."""
    if not _refers(row):
        return row
    [full] = await whole(storage, [row], *fields)
    return row if full is None else full


def _refers(row: Record) -> bool:
    texts = (row.job.payload, row.result or "", row.value or "")
    return any(text.startswith(BLOB) for text in texts) or any(text.startswith(BLOB) for _, text in row.checkpoints)
