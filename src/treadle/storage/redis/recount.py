"""Counts the rows again, step by step, and compares them with the kept counts.

The state of a recount is in the server (`lua/recount.lua`), so that its counts follow the changes of other calls.
"""

from __future__ import annotations

import asyncio
from typing import Final, TypeAlias
from uuid import uuid4

from treadle.storage.queries import Group
from treadle.storage.redis.counts import group_of
from treadle.storage.redis.reading import Reader

PAGE: Final = 200  # rows counted in one step: 0.6 ms of the server's time
COMPARED: Final = 500  # counts compared in one step: 1 ms
WAIT: Final = 0.05  # seconds between two checks whether another recount is over

Numbers: TypeAlias = dict[Group, int]


async def recount(db: Reader, repair: bool) -> tuple[Numbers, Numbers]:
    """The kept counts and the numbers of rows, of all groups. `repair`: correct the kept counts."""
    run = uuid4().hex
    while True:
        while (progress := await db.call("recount", run, PAGE)) != b"1":
            if not progress:
                await asyncio.sleep(WAIT)
        numbers = await _compared(db, run, repair)
        if numbers is not None:
            await db.call("compare", run)
            return numbers


async def _compared(db: Reader, run: str, repair: bool) -> tuple[Numbers, Numbers] | None:
    """None: this process was suspended for so long that the recount has expired."""
    fields = sorted({*await _fields(db, "counts"), *await _fields(db, "recount")})
    kept, counted = Numbers(), Numbers()
    for start in range(0, len(fields), COMPARED):
        batch = fields[start : start + COMPARED]
        answer = await db.call("compare", run, "1" if repair else "", *batch)
        if not answer:
            return None
        for number, field in enumerate(batch):
            queue, task, kind = group_of(field)
            kept[queue, task, kind, ""], counted[queue, task, kind, ""] = answer[2 * number], answer[2 * number + 1]
    return kept, counted


async def _fields(db: Reader, key: str) -> list[bytes]:
    fields, cursor = list[bytes](), b"0"
    while True:
        cursor, page = await db.read("HSCAN", key, cursor, "COUNT", COMPARED)
        fields += (field for field in page[::2] if b":" in field)
        if cursor == b"0":
            return fields
