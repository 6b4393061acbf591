"""Writes all rows as a new base and deletes what the base makes obsolete, so that the log stays bounded.

A process may die after any step. So parts are announced in the log before they are stored, a base takes effect when its
pointer is set, and the next process that tidies finds and deletes leftovers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final
from uuid import uuid4

from treadle.storage.composed.log import Log, pieces
from treadle.storage.composed.log_entries import AnnounceOp, Base, Op, TidiedOp
from treadle.storage.composed.replica import Replica

STALE: Final = 86400.0  # seconds after which announced parts that were never used are deleted

Append = Callable[[Op], Awaitable[Any]]


async def rebase(log: Log, replica: Replica, append: Append, piece: int) -> bool:
    """Write the current rows as the new base; return whether it became the newest. Raises StorageError."""
    position, number, old = replica.position, log.number, log.base
    text: list[str] = []
    for line in replica.write():
        text.append(line)
        await asyncio.sleep(0)  # other tasks run while a long snapshot is written
    parts = pieces("".join(text), piece)
    base = Base(position, uuid4().hex, len(parts))
    await append(AnnounceOp(base.name, base.parts))
    await log.write_parts(base.name, parts)
    won = await log.set_base(number + 1, base, old)
    if won:
        log.stand_on(number + 1, base)
        await _tidy(log, replica, append, number, old, base)
    else:
        await log.delete_parts(base.name, base.parts)
        await append(TidiedOp(replica.tidied, (base.name,)))
    return won


async def _tidy(log: Log, replica: Replica, append: Append, number: int, old: Base, new: Base) -> None:
    """Delete what base `number` makes obsolete, now that base `number` + 1 exists, and announced parts that were not
    used for `STALE` seconds."""
    upto = max(replica.tidied, old.position)
    beside = [parts for place, parts in replica.beside.items() if place <= upto]
    await log.delete([log.key("log", place) for place in range(replica.tidied + 1, upto + 1)])
    for parts in beside:
        await log.delete_parts(*parts)
    gone: list[str] = []
    before = await log.pointer(number - 1)
    if before is not None:
        await log.delete_parts(before.name, before.parts)
        gone.append(before.name)
    for name, (since, count) in list(replica.announced.items()):
        if replica.at - since > STALE and name not in (old.name, new.name, *gone):
            await log.delete_parts(name, count)
            gone.append(name)
    if gone or upto > replica.tidied:
        await append(TidiedOp(upto, tuple(gone)))
