"""Groups failed jobs by task, queue and error signature.

A call looks at the newest failed jobs only, so its cost does not grow with their number; it says how far it looked.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec
from msgspec import Struct

from treadle.admin.error_signature import signature
from treadle.core.errors import UNREADABLE, BadOption, error_line
from treadle.core.model import Record, State
from treadle.core.query_model import Query
from treadle.storage.contract import Storage

SCAN: Final = 1_000  # failed jobs that one call looks at by default
MOST: Final = 10_000  # failed jobs that one call may look at
STEP: Final = 100  # rows between two turns of the event loop: 3 ms
BUCKETS: Final = 24
COUNTED: Final = 10_000  # failed jobs that are counted for the total

Shown = Callable[[Record], Record]
"""Returns a row as the caller may see it. Keys are digests of the error there, or they would confirm a guess of it."""


class GroupKey(Struct, frozen=True, array_like=True):
    """The parts of a key. To callers it is opaque."""

    queue: str
    task: str
    digest: str

    @property
    def text(self) -> str:
        return base64.urlsafe_b64encode(msgspec.json.encode(self)).decode().rstrip("=")


class FailureGroup(Struct, frozen=True, kw_only=True):
    """Failed jobs of one task and queue whose errors have the same signature.

    key        names the group in an operation; opaque
    signature  the first line of the error, with what differs from job to job replaced
    jobs       those among the jobs looked at
    first      the earliest ending of these jobs; last: the latest
    sample     the id of the job that failed last
    error      the first line of its error
    spark      endings in 24 equal parts of the time from `since` to `until` of all groups
    """

    key: str
    task: str
    queue: str
    signature: str
    jobs: int
    first: float
    last: float
    sample: str
    error: str
    spark: Sequence[int]


class FailureGroups(Struct, frozen=True, kw_only=True):
    """The groups of the newest failed jobs, the largest first.

    total       failed jobs in the storage, of this queue if one is given; capped: there are at least so many.
                With a task it counts the jobs looked at
    scanned     failed jobs that the call looked at
    scanned_to  the earliest ending among them; None: it looked at all
    cursor      continues with earlier failures; None: there are none
    since       the earliest ending that the call looked at; until: the latest
    """

    groups: Sequence[FailureGroup] = ()
    total: int = 0
    capped: bool = False
    scanned: int = 0
    scanned_to: float | None = None
    cursor: str | None = None
    since: float | None = None
    until: float | None = None


def key_of(row: Record) -> GroupKey:
    """The key of the group that a failed job belongs to."""
    digest = hashlib.blake2b(signature(row.error).encode(errors="backslashreplace"), digest_size=9).digest()
    return GroupKey(row.job.queue, row.job.task, base64.urlsafe_b64encode(digest).decode())


def read_key(text: str) -> GroupKey:
    """The parts of a key. Raises BadOption if the text is no key."""
    try:
        decoded = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        return msgspec.json.decode(decoded, type=GroupKey)
    except UNREADABLE:
        raise BadOption("group", f"expected the key of a group of failures, found {text!r:.80}") from None


def grouped(rows: Iterable[Record], signed: dict[str, str] | None = None) -> list[FailureGroup]:
    """The groups of these failed jobs, the largest first, then the latest. `signed`: known signatures by error line."""
    signed = {} if signed is None else signed
    groups_of: dict[tuple[str, str, str], list[Record]] = {}
    for row in rows:
        line = error_line(row.error)
        if line not in signed:
            signed[line] = signature(row.error)
        groups_of.setdefault((row.job.queue, row.job.task, signed[line]), []).append(row)
    times = [_ended(row) for group in groups_of.values() for row in group]
    since, until = min(times, default=0.0), max(times, default=0.0)
    groups = [_group(rows, text, since, until) for (_, _, text), rows in groups_of.items()]
    return sorted(groups, key=lambda group: (-group.jobs, -group.last, group.key))


def _group(rows: Sequence[Record], text: str, since: float, until: float) -> FailureGroup:
    newest = max(rows, key=lambda row: (_ended(row), row.id))
    spark = [0] * BUCKETS
    for row in rows:
        share = (_ended(row) - since) / (until - since) if until > since else 1.0
        spark[min(BUCKETS - 1, int(share * BUCKETS))] += 1
    return FailureGroup(
        key=key_of(newest).text,
        task=newest.job.task,
        queue=newest.job.queue,
        signature=text,
        jobs=len(rows),
        first=min(map(_ended, rows)),
        last=_ended(newest),
        sample=newest.id,
        error=error_line(newest.error),
        spark=spark,
    )


def _ended(row: Record) -> float:
    return row.ended_at or 0.0


def as_stored(row: Record) -> Record:
    """The row to a caller who may see all of it."""
    return row


async def read_groups(
    storage: Storage,
    *,
    scan: int,
    queue: str | None,
    task: str | None,
    cursor: str | None,
    queues: Sequence[str] = (),
    shown: Shown = as_stored,
) -> FailureGroups:
    """The groups of the newest failed jobs; with `queues`, only jobs of these count. Raises BadOption."""
    given: object = scan
    if isinstance(given, bool) or not isinstance(given, int) or not 0 < given <= MOST:
        raise BadOption("scan", f"expected 1 to {MOST:,} jobs, found {scan!r}")
    rows: list[Record] = []
    signed: dict[str, str] = {}
    read, is_first = 0, cursor is None
    while read < scan:
        query = Query(
            state=(State.FAILED,), queue=queue, task=task, cursor=cursor, order="ended", limit=min(STEP, scan - read)
        )
        page = await storage.find(query)
        read += len(page.records)
        seen = [shown(row) for row in page.records if row.job.task and (not queues or row.job.queue in queues)]
        rows += seen
        signed.update((line, signature(line)) for line in {error_line(row.error) for row in seen} - signed.keys())
        cursor = page.cursor
        if cursor is None:
            break
        await asyncio.sleep(0)
    ends = [_ended(row) for row in rows]
    total, capped = (
        await _total(storage, queue, queues) if task is None and is_first else (len(rows), cursor is not None)
    )
    return FailureGroups(
        groups=grouped(rows, signed),
        total=max(total, len(rows)),
        capped=capped,
        scanned=len(rows) if queues else read,  # no hint at the failures of other queues
        scanned_to=min(ends, default=None) if cursor is not None else None,
        cursor=cursor,
        since=min(ends, default=None),
        until=max(ends, default=None),
    )


async def _total(storage: Storage, queue: str | None, queues: Sequence[str]) -> tuple[int, bool]:
    glance = await storage.glance(COUNTED)
    wanted = {queue} if queue is not None else set(queues)
    jobs = sum(counts.failed for counts in glance.queues if not wanted or counts.name in wanted)
    return jobs, "failed" in glance.capped
