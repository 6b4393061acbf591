"""Changes the texts of jobs, outcomes and rows: encrypts and offloads what is stored, and undoes both for what is read.

A text is encrypted before it is offloaded, so the blob store never sees it. The name of an object is made of the job's
id and the digest of its content: so a reference works only in its own job, and no two jobs share an object.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Collection, Iterator, Sequence
from typing import Final
from urllib.parse import quote, unquote

import msgspec
from msgspec.structs import replace

from treadle.blobs import Objects, digest_of
from treadle.core import ids
from treadle.core.errors import UNREADABLE
from treadle.core.long_numbers import has_long_number
from treadle.core.model import ACT, MAILBOX, ROUND, STREAM, LeaseRenewal, NewJob, Outcome, Pairs, Record
from treadle.core.ranges import OWN
from treadle.core.stored_text import BLOB, FORMS, SEALED, Offloaded, as_text, offloaded, sealed
from treadle.serialization import Keys, UnknownKey
from treadle.storage.row_rules import OWN_ID

OFFLOAD: Final = 64 * 2**10  # bytes; a row of this size costs each storage less than a request to a blob store
AT_ONCE: Final = 8  # objects of one call that are read or written concurrently
SIGNAL, ANSWER = f"{OWN_ID}signal:", f"{OWN_ID}answer:"
APPROVAL, PAGE = f"{OWN_ID}approval:", f"{OWN_ID}page:"
# checkpoints that all processes read, with or without keys
_NAMES: Final = ("plan", "of", "unread", "misfit", "lost", "death", "pause", "fork", "version", "turn")
PLAIN: Final = frozenset({ACT, ROUND, *(f"{OWN_ID}{name}" for name in _NAMES)})


def name_of(id: str, digest: str) -> str:
    """The name of the object with this digest of this job."""
    raw = id.encode("utf-8", "surrogatepass")
    named = id.replace(".", "%2E") if id in (".", "..") else quote(raw, safe="~:@")
    return f"{hashlib.sha256(raw).hexdigest()[:2]}/{named}/{digest}"


def owner_of(name: str) -> tuple[str, str] | None:
    """The job and the digest of an object's name; None for the name of another object."""
    parts = name.split("/")
    if len(parts) != 3:
        return None
    id, digest = unquote(parts[1]), parts[2]
    return (id, digest) if name == name_of(id, digest) and len(digest) == 64 else None


def is_own_job(job: NewJob) -> bool:
    """Whether this is one of Treadle's own rows, whose payload servers read: schedules, flows, once-locks. That of a
    message is the user's, and what a request for approval shows."""
    return job.task.startswith(OWN) or (not job.task and not job.id.startswith((SIGNAL, APPROVAL)))


def is_own_id(id: str) -> bool:
    """Whether the outcome of this row is Treadle's own; messages, answers and pages of streams are the user's."""
    return ids.is_derived(id) and ids.stem(id) is None and not id.startswith((SIGNAL, ANSWER, PAGE))


class Texts:
    """The rules of one app.

    objects  the blob store; None: nothing is offloaded
    above    bytes; longer texts are offloaded
    keys     encrypt the texts; None: they are stored as they are
    """

    def __init__(self, objects: Objects | None, above: int, keys: Keys | None) -> None:
        self.objects, self.above, self.keys = objects, above, keys

    def elsewhere(self) -> Texts:
        """The same for another event loop; its `objects` must be closed."""
        return Texts(None if self.objects is None else self.objects.fresh(), self.above, self.keys)

    # --- storing

    def leaves(self, job: NewJob) -> bool:
        """Whether this job is stored as it is. Without keys, this is the length of a text."""
        text = job.payload
        return is_own_job(job) or (self.keys is None and (self.objects is None or not self._is_large(text)))

    async def job(self, job: NewJob) -> NewJob:
        if self.leaves(job):
            return job
        payload = await self._stored(job.payload, job.id, "payload")
        return job if payload is job.payload else replace(job, payload=payload)

    async def jobs(self, jobs: Sequence[NewJob]) -> list[NewJob]:
        if all(map(self.leaves, jobs)):
            return list(jobs)
        if self.objects is None:
            return [await self.job(job) for job in jobs]
        turn = asyncio.Semaphore(AT_ONCE)

        async def one(job: NewJob) -> NewJob:
            async with turn:
                return await self.job(job)

        return list(await asyncio.gather(*map(one, jobs)))

    async def outcome(self, out: Outcome) -> Outcome:
        if is_own_id(out.id):
            return replace(out, followups=tuple(await self.jobs(out.followups))) if out.followups else out
        changed = {
            field: text
            for field in ("result", "value")
            if (old := getattr(out, field)) is not None and (text := await self._stored(old, out.id, field)) is not old
        }
        changed |= {
            field: self._sealed(old, out.id, field)
            for field in ("error", "note")
            if self.keys is not None and (old := getattr(out, field)) is not None
        }
        checkpoints = await self.checkpoints(out.checkpoints, out.id)
        followups = tuple(await self.jobs(out.followups)) if out.followups else ()
        return replace(out, checkpoints=checkpoints, followups=followups, **changed)

    async def renewal(self, renewal: LeaseRenewal) -> LeaseRenewal:
        if is_own_id(renewal.id) or (renewal.note is None and not renewal.checkpoints):
            return renewal
        note = None if renewal.note is None else self._sealed(renewal.note, renewal.id, "note")
        return replace(renewal, note=note, checkpoints=await self.checkpoints(renewal.checkpoints, renewal.id))

    async def checkpoints(self, pairs: Pairs, id: str) -> Pairs:
        if not pairs or (self.keys is None and not any(self._is_large(text) for _, text in pairs)):
            return pairs
        return tuple(
            [
                (
                    name,
                    text
                    if name in PLAIN or name.startswith((MAILBOX, STREAM))
                    else await self._stored(text, id, f"checkpoint:{name}"),
                )
                for name, text in pairs
            ]
        )

    def _is_large(self, text: str) -> bool:
        if len(text) * 4 <= self.above:
            return False
        return len(text) > self.above or len(text.encode(errors="replace")) > self.above

    async def _stored(self, text: str, id: str, field: str) -> str:
        """The text to store in the row. A text that is already in a stored form stays as it is, and so does a text that
        the storage will refuse."""
        text = self._sealed(text, id, field)
        if self.objects is None or text.startswith(BLOB) or not self._is_large(text) or not _is_storable(text):
            return text
        content = text.encode()
        digest = digest_of(content)
        await self.objects.put(name_of(id, digest), content)
        return as_text(Offloaded(digest, len(content)))

    def _sealed(self, text: str, id: str, field: str) -> str:
        if self.keys is None or text.startswith(FORMS) or not _is_storable(text):
            return text
        return self.keys.seal(text, id, field)

    # --- reading

    def opened(self, row: Record) -> Record:
        """The row with every text decrypted that these keys can decrypt. Reads nothing."""
        if self.keys is None:
            return row
        texts = {field: self._open(text, row, field) for field, text in texts_of(row) if text.startswith(SEALED)}
        return changed(row, texts)

    def as_given(self, jobs: Sequence[NewJob], stored: Sequence[NewJob], rows: Sequence[Record]) -> list[Record]:
        """The rows of an enqueue: each new one with the job as the caller gave it."""
        return [
            replace(row, job=new) if row.job is sent and sent is not new else self.opened(row)
            for new, sent, row in zip(jobs, stored, rows, strict=True)
        ]

    def _open(self, text: str, row: Record, field: str) -> str:
        closed = sealed(text)
        if closed is None or self.keys is None:
            return text
        try:
            plain = self.keys.open(closed, row.job.id, field)
        except UnknownKey:
            return text
        return text if plain is None else plain

    async def whole(self, rows: Sequence[Record | None], fields: Collection[str]) -> list[Record | None]:
        """The rows with these fields as they were given. A text that is missing, damaged or encrypted with another key
        stays in its stored form. Raises StorageUnavailable."""
        turn = asyncio.Semaphore(AT_ONCE)
        fetched: list[dict[str, str]] = [{} for _ in rows]

        async def fetch(index: int, row: Record, field: str, form: Offloaded) -> None:
            async with turn:
                content = None if self.objects is None else await self.objects.get(name_of(row.job.id, form.sha256))
            if content is not None and len(content) == form.bytes and digest_of(content) == form.sha256:
                fetched[index][field] = self._open(content.decode("utf-8", "replace"), row, field)

        work = [
            fetch(index, row, field, form)
            for index, row in enumerate(rows)
            if row is not None
            for field, text in texts_of(row)
            if field.partition(":")[0].replace("checkpoint", "checkpoints") in fields
            and (form := offloaded(text)) is not None
        ]
        await asyncio.gather(*work)
        return [
            None if row is None else changed(self.opened(row), texts) for row, texts in zip(rows, fetched, strict=True)
        ]


def _is_storable(text: str) -> bool:
    """Whether no storage refuses the text for its characters or a number."""
    if has_long_number(text):
        return False
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def texts_of(row: Record) -> Iterator[tuple[str, str]]:
    """The texts of a row that may be in a stored form, with their fields."""
    for field, text in (
        ("payload", row.job.payload),
        ("result", row.result),
        ("value", row.value),
        ("error", row.error),
        ("note", row.note),
    ):
        if text is not None:
            yield field, text
    for name, text in row.checkpoints:
        yield f"checkpoint:{name}", text


def changed(row: Record, texts: dict[str, str]) -> Record:
    """The row with these texts in place of its own."""
    if not texts:
        return row
    fields = {field: text for field, text in texts.items() if field in ("result", "value", "error", "note")}
    job = row.job if "payload" not in texts else replace(row.job, payload=texts["payload"])
    pairs = tuple((name, texts.get(f"checkpoint:{name}", text)) for name, text in row.checkpoints)
    return replace(row, job=job, checkpoints=pairs, **fields)


def references(row: Record) -> set[str]:
    """The digests of the objects to which a row refers."""
    return {form.sha256 for _, text in texts_of(row) if (form := offloaded(text)) is not None}


def identity(text: str) -> str | None:
    """The identity of a storage, from the payload of its row or from the object that names the owner."""
    try:
        return msgspec.json.decode(text, type=str)
    except UNREADABLE:
        return None
