"""Deletes objects of the blob store to which no row refers: of jobs whose rows are gone, and of calls that crashed.

An object is written before its row. So it is kept for a while in any case, and as long as its job has not ended: an
outcome that refers to it may still be on its way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from treadle.blobs.objects import Entry, Objects
from treadle.storage.contract import Storage
from treadle.storage.move_marks import mark_of
from treadle.storage.optional_parts import Collected
from treadle.storage.payloads.texts import owner_of, references
from treadle.storage.transfer import NOT_HERE

MOVING: Final = NOT_HERE | {"closing"}  # marks under which rows are, or may soon be, in another storage
STEP: Final = 500  # objects looked at by one step: bounds the rows that are read at once


async def collect(storage: Storage, objects: Objects, age: float, dry: bool) -> Collected:
    """Look at every object once, and delete those without a row that are older than `age` seconds; `dry`: delete
    nothing. Does nothing while the jobs are being moved, or were moved away. Raises StorageError."""
    after, done = "", Collected()
    while True:
        mark = await mark_of(storage)
        if mark is not None and mark.role in MOVING:
            return done
        entries = await objects.page(after, STEP)
        if not entries:
            return done
        after = entries[-1].name
        useless = await _useless(storage, entries, age)
        if useless and not dry:
            await objects.delete([entry.name for entry in useless])
        size, freed = sum(entry.size for entry in entries), sum(entry.size for entry in useless)
        done = Collected(
            done.kept + len(entries) - len(useless),
            done.kept_bytes + size - freed,
            done.deleted + len(useless),
            done.deleted_bytes + freed,
        )
        await asyncio.sleep(0)


async def _useless(storage: Storage, entries: Sequence[Entry], age: float) -> list[Entry]:
    old = [(entry, own) for entry in entries if entry.age >= age and (own := owner_of(entry.name)) is not None]
    ids = list(dict.fromkeys(id for _, (id, _) in old))
    rows = {row.job.id: row for row in await storage.get(ids) if row is not None} if ids else {}
    found = []
    for entry, (id, digest) in old:
        row = rows.get(id)
        if row is None or (row.state.final and digest not in references(row)):
            found.append(entry)
    return found
