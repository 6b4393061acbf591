"""Deletes objects of the blob store to which no row refers: jobs whose rows are gone, and calls that crashed, leave
them behind.

An object is written before its row. So it is kept for a while in any case; as long as its job has not ended, because an
outcome that refers to it may still be on its way; and as long as a transaction is open that may have stored its job.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Literal, cast

from msgspec import Struct

from treadle.blobs import ObjectEntry, Objects
from treadle.storage.contract import Storage
from treadle.storage.move_marks import mark_of
from treadle.storage.optional_parts import Collected, Transactional
from treadle.storage.payloads.texts import owner_of, references
from treadle.storage.transfer import NOT_HERE

MOVING: Final = NOT_HERE | {"closing"}  # marks under which rows are, or may soon be, in another storage
STEP: Final = 500  # objects looked at by one step: bounds the rows that are read at once
GAP: Final = 60.0  # s between the beginning of a transaction and an object that was written for it before
Use = Literal["needed", "unfinished", "unused", "foreign"]


class ObjectUse(Struct, frozen=True):
    """An object, its job, and its use. `needed`: a row refers to it; `unfinished`: no row does, but its job has not
    ended; `unused`: it can be deleted; `foreign`: it belongs to another program."""

    entry: ObjectEntry
    job: str
    use: Use


async def is_moving(storage: Storage) -> bool:
    """Whether rows of this storage are, or may soon be, in another one."""
    mark = await mark_of(storage)
    return mark is not None and mark.role in MOVING


async def collect(
    storage: Storage, objects: Objects, age: float, dry: bool, progress: Callable[[Collected], None] | None = None
) -> Collected:
    """Look at every object once, and delete those without a row that are older than `age` seconds; `dry`: delete
    nothing. Does nothing while the jobs are being moved, or were moved away. Raises StorageError."""
    after, done = "", Collected()
    while True:
        if await is_moving(storage):
            return _plus(done, (), (), 0, moving=True)
        entries = await objects.page(after, STEP)
        if not entries:
            return done
        after = entries[-1].name
        open_for = await _open_for(storage)  # before the rows are read: a commit in between shows in them
        old = await uses_of(storage, [entry for entry in entries if entry.age >= age])
        useless = [item.entry for item in old if item.use == "unused"]
        free = [entry for entry in useless if not open_for or entry.age > open_for + GAP]
        if free and not dry:
            await objects.delete([entry.name for entry in free], age)
        done = _plus(done, entries, free, len(useless) - len(free))
        if progress is not None:
            progress(done)
        await asyncio.sleep(0)


def _plus(
    done: Collected, entries: Sequence[ObjectEntry], free: Sequence[ObjectEntry], held: int, moving: bool = False
) -> Collected:
    size, freed = sum(entry.size for entry in entries), sum(entry.size for entry in free)
    return Collected(
        done.kept + len(entries) - len(free),
        done.kept_bytes + size - freed,
        done.deleted + len(free),
        done.deleted_bytes + freed,
        done.held + held,
        moving,
    )


async def _open_for(storage: Storage) -> float:
    if not storage.capabilities.transactions:
        return 0.0
    return await cast("Transactional", storage).oldest_open()


async def uses_of(storage: Storage, entries: Sequence[ObjectEntry]) -> list[ObjectUse]:
    """These objects with the use of each. Reads the rows of their jobs, at most one for each object."""
    owners = [owner_of(entry.name) for entry in entries]
    ids = list(dict.fromkeys(own[0] for own in owners if own is not None))
    rows = {row.job.id: row for row in await storage.get(ids) if row is not None} if ids else {}
    uses = []
    for entry, own in zip(entries, owners, strict=True):
        if own is None:
            uses.append(ObjectUse(entry, "", "foreign"))
            continue
        row = rows.get(own[0])
        use: Use = "unused"
        if row is not None and own[1] in references(row):
            use = "needed"
        elif row is not None and not row.state.final:
            use = "unfinished"
        uses.append(ObjectUse(entry, own[0], use))
    return uses
