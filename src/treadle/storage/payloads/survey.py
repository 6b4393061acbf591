"""Answers an operator's questions about texts: which objects are needed, which are missing, which keys are in use.

It reads everything in pages while programs write, so a count may miss what has changed meanwhile. A missing object is
reported only after its row was read again.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Final

from msgspec import Struct

from treadle.blobs import ObjectEntry, Objects, digest_of
from treadle.core.model import NewJob, Record
from treadle.core.query_model import Query
from treadle.core.stored_text import FORMS, Offloaded, offloaded, sealed
from treadle.storage.contract import Storage
from treadle.storage.paging import pages
from treadle.storage.payloads.collector import STEP, ObjectUse, uses_of
from treadle.storage.payloads.texts import AT_ONCE, is_own_id, is_own_job, name_of, texts_of

OLDER: Final = "over 30 d"
ENDS: Final = {"under 1 h": 3_600.0, "1 h to 1 d": 86_400.0, "1 d to 7 d": 604_800.0, "7 d to 30 d": 2_592_000.0}
AGES: Final = (*ENDS, OLDER)
PLAIN: Final = "(plain text)"
UNREAD: Final = "(in the blob store, not read)"
KINDS: Final = {"payload": "arguments", "result": "results", "value": "results", "error": "errors", "note": "notes"}


class AgeGroup(Struct):
    """Objects of one age: their number and bytes, in all and by use (`collector.Use`)."""

    age: str
    texts: int = 0
    bytes: int = 0
    needed: int = 0
    unfinished: int = 0
    unused: int = 0
    unused_bytes: int = 0

    def add(self, item: ObjectUse) -> None:
        self.texts += 1
        self.bytes += item.entry.size
        self.needed += item.use == "needed"
        self.unfinished += item.use == "unfinished"
        self.unused += item.use == "unused"
        self.unused_bytes += item.entry.size if item.use == "unused" else 0


class Missing(Struct, frozen=True, kw_only=True):
    """A text to which a row refers and that the blob store does not have (`damaged`: has with another content)."""

    id: str
    task: str
    queue: str
    state: str
    field: str
    bytes: int
    sha256: str
    damaged: bool


class KeyUse(Struct):
    """The use of one key: the number of jobs with texts that it encrypts, how many of these have not ended, and the
    number of texts by kind."""

    key: str
    jobs: int = 0
    unfinished: int = 0
    outbox: int = 0
    kinds: dict[str, int] = {}


async def by_age(
    storage: Storage, objects: Objects, progress: Callable[[int], None]
) -> AsyncIterator[tuple[str, ObjectUse]]:
    """Every object of the blob store, with the name of its age group. `progress` gets the number of objects so far."""
    count = 0
    async for entries in _pages(objects):
        count += len(entries)
        for item in await uses_of(storage, entries):
            if item.use != "foreign":
                yield age_of(item.entry), item
        progress(count)


def age_of(entry: ObjectEntry) -> str:
    return next((name for name, end in ENDS.items() if entry.age < end), OLDER)


async def missing(
    storage: Storage, objects: Objects, read: bool, progress: Callable[[int], None]
) -> AsyncIterator[Missing]:
    """The texts to which rows refer and that are not in the blob store. `read`: also read every text, and report those
    that are damaged. `progress` gets the number of rows so far."""
    there = set[int]() if read else await _names(objects)
    count = 0
    async for rows in _rows(storage):
        count += len(rows)
        progress(count)
        suspects = [
            (row, field, form)
            for row in rows
            for field, form in _references(row)
            if read or _number(name_of(row.job.id, form.sha256)) not in there
        ]
        for gap in await _checked(storage, objects, suspects):
            yield gap


async def key_use(
    storage: Storage, objects: Objects | None, waiting: Iterable[NewJob], progress: Callable[[int], None]
) -> list[KeyUse]:
    """How many stored texts each key has encrypted, by the id of the key. Texts in the blob store are read. `waiting`:
    jobs of an outbox. Rows of Treadle itself, which are never encrypted, do not count."""
    uses: dict[str, KeyUse] = {}

    def of(key: str) -> KeyUse:
        return uses.setdefault(key, KeyUse(key, kinds={}))

    for job in waiting:
        if not is_own_job(job):
            of(_key(job.payload)).outbox += 1
    count = 0
    async for rows in _rows(storage):
        for row, keys in zip(rows, await _keys(objects, rows), strict=True):
            for (key, kind), number in keys.items():
                of(key).kinds[kind] = of(key).kinds.get(kind, 0) + number
            for key in {key for key, _ in keys}:
                of(key).jobs += 1
                of(key).unfinished += not row.state.final
        count += len(rows)
        progress(count)
    return sorted(uses.values(), key=lambda use: use.key)


async def _keys(objects: Objects | None, rows: Sequence[Record]) -> list[Counter[tuple[str, str]]]:
    """For each row, the number of its texts by key and kind."""
    turn = asyncio.Semaphore(AT_ONCE)

    async def one(id: str, field: str, text: str) -> tuple[str, str]:
        form, kind = offloaded(text), KINDS.get(field, "steps")
        if form is None:
            return _key(text), kind
        if objects is None:
            return UNREAD, kind
        async with turn:
            content = await objects.get(name_of(id, form.sha256))
        return (UNREAD if content is None else _key(content.decode(errors="replace"))), kind

    async def all_of(row: Record) -> Counter[tuple[str, str]]:
        if is_own_job(row.job) and is_own_id(row.job.id):
            return Counter()
        return Counter(await asyncio.gather(*[one(row.job.id, *pair) for pair in texts_of(row) if _counts(row, pair)]))

    return list(await asyncio.gather(*map(all_of, rows)))


def _counts(row: Record, pair: tuple[str, str]) -> bool:
    """Whether an app with keys would encrypt this text; one that is encrypted, or may be, counts in any case."""
    field, text = pair
    if text.startswith(FORMS):
        return True
    return field == "payload" and not is_own_job(row.job)


def _key(text: str) -> str:
    closed = sealed(text)
    return PLAIN if closed is None else closed.key


async def _rows(storage: Storage) -> AsyncIterator[Sequence[Record]]:
    """All rows, the oldest first."""
    async for page in pages(storage, Query(order="oldest", limit=STEP, whole=True)):
        yield page.records


def _references(row: Record) -> list[tuple[str, Offloaded]]:
    return [(field, form) for field, text in texts_of(row) if (form := offloaded(text)) is not None]


async def _names(objects: Objects) -> set[int]:
    """The names of all objects, as numbers of 8 bytes: a million of them take 60 MB."""
    return {_number(entry.name) async for entries in _pages(objects) for entry in entries}


async def _pages(objects: Objects) -> AsyncIterator[Sequence[ObjectEntry]]:
    """All objects, by name."""
    after = ""
    while entries := await objects.page(after, STEP):
        after = entries[-1].name
        yield entries


def _number(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big")


async def _checked(
    storage: Storage, objects: Objects, suspects: Sequence[tuple[Record, str, Offloaded]]
) -> list[Missing]:
    """The objects that are missing or damaged and to which their row still refers."""
    turn = asyncio.Semaphore(AT_ONCE)

    async def one(row: Record, field: str, form: Offloaded) -> Missing | None:
        async with turn:
            content = await objects.get(name_of(row.job.id, form.sha256))
            if content is not None and len(content) == form.bytes and digest_of(content) == form.sha256:
                return None
            [now] = await storage.get([row.job.id])
        if now is None or (field, form) not in _references(now):
            return None
        job = now.job
        return Missing(
            id=job.id,
            task=job.task,
            queue=job.queue,
            state=now.state.value,
            field=field,
            bytes=form.bytes,
            sha256=form.sha256,
            damaged=content is not None,
        )

    return [each for each in await asyncio.gather(*[one(*each) for each in suspects]) if each is not None]
