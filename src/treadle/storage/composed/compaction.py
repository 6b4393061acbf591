"""Writing all rows down as a new base, and deleting what it makes superfluous. Without it the log would grow for ever.

Each step may be the last one of its process: parts are announced in the log before they are stored, the base counts
from the moment its pointer is set, and what was left lying is found by the next one who tidies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final
from uuid import uuid4

from treadle.storage.composed.log import Log, pieces
from treadle.storage.composed.log_entries import Announce, Base, Op, Tidied
from treadle.storage.composed.replica import Replica

STALE: Final = 86400.0  # s after which announced parts that came to nothing are deleted

Append = Callable[[Op], Awaitable[Any]]


async def rebase(log: Log, replica: Replica, append: Append, piece: int) -> bool:
    """Make the rows as they are now the new base; answers whether it became one. Raises StorageError."""
    position, number, old = replica.position, log.number, log.base
    text: list[str] = []
    for line in replica.write():
        text.append(line)
        await asyncio.sleep(0)  # a long snapshot lets others work
    parts = pieces("".join(text), piece)
    base = Base(position, uuid4().hex, len(parts))
    await append(Announce(base.name, base.parts))
    await log.write_parts(base.name, parts)
    won = await log.set_base(number + 1, base, old)
    if won:
        log.stand_on(number + 1, base)
        await _tidy(log, replica, append, number, old, base)
    else:
        await log.delete_parts(base.name, base.parts)
        await append(Tidied(replica.tidied, (base.name,)))
    return won


async def _tidy(log: Log, replica: Replica, append: Append, number: int, old: Base, new: Base) -> None:
    """Base `number` + 1 is there: what base `number` makes superfluous goes, and what came to nothing long ago."""
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
        await append(Tidied(upto, tuple(gone)))
