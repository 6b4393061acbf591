"""Groups failed jobs by task, queue and the signature of their errors.

A call looks at the newest failed jobs only, so its cost does not grow with their number; it says how far it looked.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec
from msgspec import Struct

from treadle.admin.job_filters import check_count
from treadle.core.errors import UNREADABLE, BadOption, error_line
from treadle.core.model import Record, State
from treadle.core.query_model import Query
from treadle.storage.contract import Storage

LONGEST: Final = 500  # characters of an error that are read
SHOWN: Final = 200  # characters of a signature

# Kept, because they tell causes apart: names with a number in them, status codes, error numbers, and the names in
# errors about code and schemas.
_KEPT: Final = re.compile(
    r"\b(?:utf-(?:8|16|32)|iso-8859-\d{1,2}|sha\d{1,3}|md5|HTTP/\d(?:\.\d)?|TLSv\d(?:\.\d)?|IPv[46])\b"
    r"|\[(?:Errno|WinError) -?\d{1,5}\]"
    r"|^[\w.]{1,100}Error: \d{3}\b"
    r"|\b(?:HTTP|status|status code|exit code|code|errno)[ :=]{1,2}-?\d{1,5}\b"
    r"|\b(?:attribute|name|named|argument:|argument|constraint|column|relation|table|index|module) "
    r"""(?:'[A-Za-z_.]{1,60}'|"[A-Za-z_.]{1,60}")"""
    r"|'[A-Za-z_.]{1,60}'(?= (?:object has|codec can't))",
    re.IGNORECASE,
)
_DIGITS: Final = re.compile(r"\d")
_HEX: Final = "[0-9A-Fa-f]"
# (a character without which the pattern cannot match, the pattern, the replacement), in order: a pattern sees what
# those before it have left.
NOISE: Final[tuple[tuple[str, re.Pattern[str], str], ...]] = (
    ("://", re.compile(r"\b[a-z][a-z0-9+.-]{1,20}://[^\s'\"<>)\]]{1,400}"), "<url>"),
    ("@", re.compile(r"[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}"), "<email>"),
    ("-", re.compile(rf"\b{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}\b"), "<id>"),
    (
        "-",
        re.compile(r"\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d{1,9})?)?(?:Z|[+-]\d\d:?\d\d)?)?"),
        "<time>",
    ),
    ("0x", re.compile(rf"\b0x{_HEX}{{1,32}}\b"), "<address>"),
    ("'", re.compile(r"(?<!\w)'(?:[^'\\]|\\.){0,400}'(?!\w)"), "<text>"),
    ('"', re.compile(r'"(?:[^"\\]|\\.){0,400}"'), "<text>"),
    ("`", re.compile(r"`[^`]{0,400}`"), "<text>"),
    (".", re.compile(r"\b\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}(?::\d{1,5})?\b"), "<host>"),
    ("[", re.compile(rf"\[{_HEX}{{0,4}}(?::{_HEX}{{0,4}}){{2,7}}\](?::\d{{1,5}})?"), "<host>"),
    (":", re.compile(r"\b((?:[\w-]{1,63}\.){1,8}[A-Za-z]{2,24}|localhost):\d{1,5}\b"), r"\1:<port>"),
    ("/", re.compile(r"(?<![\w<])(?:[A-Za-z]:)?(?:/[\w.@%~+-]{1,255}){2,40}/?(?:\?[^\s)'\"]{0,400})?"), "<path>"),
    ("\\", re.compile(r"(?<![\w<])(?:[A-Za-z]:)?(?:\\[\w.@%~+-]{1,255}){2,40}"), "<path>"),
    ("", re.compile(rf"\b(?=[0-9a-f]{{0,63}}\d){_HEX}{{12,64}}\b"), "<id>"),
    ("", re.compile(r"(?<![\w.])[-+]?\d[\d_,]{0,40}(?:\.\d{1,40})?(?:[eE][-+]?\d{1,4})?%?"), "<n>"),
    ("", re.compile(r"(?<=[A-Za-z_])\d{3,40}"), "<n>"),
)


def signature(error: str | None) -> str:
    """The first line of an error, with everything replaced that differs from job to job, so that errors of one cause
    have one signature: at most 200 characters; "" for no error. The time is bounded: 500 characters are read, and every
    repetition in a pattern has a maximum."""
    line = " ".join(error_line(error)[:LONGEST].split()).replace("\x00", "")
    kept: list[str] = []

    def keep(match: re.Match[str]) -> str:
        kept.append(match[0])
        return f"\x00{chr(0xE000 + len(kept) - 1)}\x00"

    line = _KEPT.sub(keep, line)
    for sign, pattern, word in NOISE:
        if sign in line if sign else _DIGITS.search(line) is not None:
            line = pattern.sub(word, line)
    for number, text in enumerate(kept):
        line = line.replace(f"\x00{chr(0xE000 + number)}\x00", text)
    return line if len(line) <= SHOWN else f"{line[: SHOWN - 3]}..."


SCAN: Final = 1_000  # failed jobs that one call looks at by default
MOST: Final = 10_000  # failed jobs that one call may look at
STEP: Final = 100  # rows between two turns of the event loop: 3 ms
BUCKETS: Final = 24
COUNTED: Final = 10_000  # failed jobs that are counted for the total

Shown = Callable[[Record], Record]
"""Returns a row as the caller may see it. Keys are digests of that row's error: a digest of the stored one would
confirm a guess of what is hidden."""


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
    jobs       how many of the jobs that the call looked at belong to it
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

    total       failed jobs in the storage, of this queue if one is given; capped: there are at least this many.
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
    """The row as a caller with all rights sees it."""
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
    check_count("scan", scan, MOST, "jobs")
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
