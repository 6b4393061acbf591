"""Reads rows from one storage in steps: by id, along sorted sets, and the running ones. Changes nothing.

Each step is one short script, so that other calls do not wait long.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, Final, Protocol

from treadle.core.model import Record
from treadle.storage.redis.rows import pairs, record

STEP: Final = 200  # rows of one trip: some 2 ms of the server's time
DUE_STEP: Final = 1_000  # due times that one trip reads, and for most of them 120 bytes of the row


class Reader(Protocol):
    """The methods of a storage that queries need."""

    async def call(self, verb: str, *arguments: Any) -> Any:
        """Run a script."""
        ...

    async def read(self, verb: str, key: str, *arguments: Any) -> Any:
        """Run a command that changes nothing; `key` is without the namespace."""
        ...


def _flag(value: bool) -> str:
    return "1" if value else ""


async def by_ids(db: Reader, ids: Sequence[str | bytes], whole: bool = True) -> dict[str, Record]:
    """`whole`: see `Query`."""
    rows: dict[str, Record] = {}
    for start in range(0, len(ids), STEP):
        answer = await db.call("read_rows", _flag(whole), *ids[start : start + STEP])
        present = (record(answer[k], answer[k + 1]) for k in range(0, len(answer), 2) if answer[k])
        rows.update((row.job.id, row) for row in present)
    return rows


async def walk(
    db: Reader, lists: Sequence[str], backwards: bool, spot: tuple[float, str] | None, most: int | None, whole: bool
) -> AsyncIterator[tuple[Record, float]]:
    """Yield the rows of these sorted sets as if they were one set, with their scores, after a spot. The set `ended`
    includes the jobs in packs.

    most   the number of rows that the caller will probably need
    """
    still_wanted = STEP if most is None else most
    while True:
        size = min(STEP, still_wanted) if still_wanted > 0 else STEP
        score, id = ("", "") if spot is None else (repr(spot[0]), spot[1])
        if lists == ("ended",):
            answer = await db.call("read_ended", size, score, id, _flag(whole))
        else:
            answer = await db.call("read_page", _flag(backwards), size, score, id, _flag(whole), *lists)
        for n in range(0, len(answer), 4):
            if answer[n + 2]:
                still_wanted -= most is not None
                yield record(answer[n + 2], answer[n + 3]), float(answer[n + 1])
        if len(answer) < 4 * size:
            return
        spot = float(answer[-3]), answer[-4].decode()


async def running(db: Reader, queue: str | None, jobs: int, whole: bool) -> AsyncIterator[Record]:
    """The running rows in the order in which their leases end, until there were as many as `jobs`."""
    due_at, id, count = b"", b"", 0
    while count < jobs:
        due_at, id, *answer = await db.call("running", DUE_STEP, due_at, id, queue or "", _flag(whole))
        for row in pairs(answer):
            count += 1
            yield row
        if not due_at:
            return
