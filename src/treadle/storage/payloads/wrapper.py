"""The storage that an app with `blobs=` or `keys=` uses: it changes the texts of every call on the way.

A large text is written to the blob store before the row that refers to it. A crash in between leaves an object without
a row, which the collector deletes.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, cast

import msgspec
from msgspec.structs import replace

from treadle.core import defaults
from treadle.core.errors import BadOption, StorageError, StorageUnavailable
from treadle.core.model import Claim, Claimed, HeartbeatResult, LeaseRenewal, NewJob, Outcome, Presence, Record, Settled
from treadle.core.query_model import Page, Query
from treadle.storage.contract import Capabilities, Storage
from treadle.storage.optional_parts import Bound, Collected, HandOffs, Post, Transaction, Transactional
from treadle.storage.payloads.bound import PayloadBound
from treadle.storage.payloads.collector import collect
from treadle.storage.payloads.texts import Texts, identity
from treadle.storage.proxy import StorageProxy

log = logging.getLogger("treadle")

IDENTITY: Final = "treadle:blobs"  # id of the row with the identity of this storage
IDENTITY_TASK: Final = "treadle.blobs"
PATIENCE: Final = 0.2  # part of a lease for large steps in a heartbeat: two more heartbeats follow before it expires
OWNER: Final = "owner"  # the object with the identity of the storage whose texts these are


class PayloadStorage(StorageProxy):
    """A storage whose large texts are in a blob store, and whose texts are encrypted."""

    def __init__(self, storage: Storage, texts: Texts) -> None:
        super().__init__(storage)
        self.texts = texts

    @property
    def capabilities(self) -> Capabilities:
        keys = () if self.texts.keys is None else self.texts.keys.names
        has_blobs = self.texts.objects is not None
        offload = self.texts.above if has_blobs else 0
        return replace(self.storage.capabilities, payloads=has_blobs, offload=offload, keys=keys)

    async def open(self, look: bool = False) -> None:
        """Open the storage. Raises BadOption if the blob store has the texts of another storage."""
        await super().open(look)
        if look:
            return
        try:
            await self.check_owner()
        except StorageError as error:  # small jobs need no blob store; a token may lack the right
            log.debug("could not check whose texts the blob store has: %s", error)

    async def close(self) -> None:
        try:
            if self.texts.objects is not None:
                await self.texts.objects.close()
        finally:
            await super().close()

    async def check_owner(self) -> None:
        """Mark the blob store as this storage's. Raises BadOption if it belongs to another storage: one collector would
        delete the texts of the other. Raises StorageError."""
        objects = self.texts.objects
        if objects is None or self.capabilities.queues:
            return
        [row] = await self.storage.get([IDENTITY])
        known, content = None if row is None else identity(row.job.payload), await objects.get(OWNER)
        owner = None if content is None else identity(content.decode(errors="replace"))
        if content is not None and (known is None or owner != known):
            raise BadOption(
                "blobs",
                f"{objects} has the texts of another storage; give each storage a folder or a prefix of its own. If "
                f"that storage is gone for good, delete the object {OWNER!r} there",
            )
        if known is None:
            payload = msgspec.json.encode(os.urandom(16).hex()).decode()
            new = NewJob(
                id=IDENTITY,
                task=IDENTITY_TASK,
                queue=defaults.SYSTEM_QUEUE,
                payload=payload,
                delay=defaults.MAX_DELAY,
                keep=defaults.MAX_DELAY,
            )
            [row] = await self.storage.enqueue([new])
            known = identity(row.job.payload)
        if content is None:
            await objects.put(OWNER, msgspec.json.encode(known))

    # --- the life of a job

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Record]:
        stored = await self.texts.jobs(jobs)
        return self.texts.as_given(jobs, stored, await super().enqueue(stored))

    async def claim(self, ask: Claim) -> Claimed:
        return self._claimed(await super().claim(ask))

    async def settle(self, outcomes: Sequence[Outcome]) -> list[Settled]:
        return await super().settle([await self._stored(out) for out in outcomes])

    async def settle_claim(self, outcomes: Sequence[Outcome], ask: Claim) -> tuple[list[Settled], Claimed]:
        stored = [await self._stored(out) for out in outcomes]
        settled, claimed = await super().settle_claim(stored, ask)
        return settled, self._claimed(claimed)

    async def _stored(self, out: Outcome) -> Outcome:
        """The outcome with its large texts stored. A refusal by the blob store, for example because of expired
        credentials, says nothing about the outcome: the worker must keep the outcome and try again, as if the store
        were unavailable."""
        try:
            return await self.texts.outcome(out)
        except StorageUnavailable:
            raise
        except StorageError as error:
            raise StorageUnavailable(f"a large text of job {out.id} cannot be stored: {error}") from error

    def _claimed(self, claimed: Claimed) -> Claimed:
        if self.texts.keys is None:
            return claimed
        return replace(claimed, records=tuple([self.texts.opened(row) for row in claimed.records]))

    async def heartbeat(self, worker: Presence, renewals: Sequence[LeaseRenewal], lease: float) -> HeartbeatResult:
        """Renew leases. If the blob store is away, full, slow or refuses, the leases are renewed all the same, and the
        checkpoints count as unsaved."""
        unsaved = set[str]()

        async def one(renewal: LeaseRenewal) -> LeaseRenewal:
            try:
                async with asyncio.timeout(lease * PATIENCE):
                    return await self.texts.renewal(renewal)
            except (StorageError, TimeoutError) as error:
                why = str(error) or "the blob store does not answer"
                log.warning("the steps of job %s cannot be stored now: %s", renewal.id, why)
                unsaved.add(renewal.id)
                return replace(renewal, checkpoints=(), note=None)

        stored = await asyncio.gather(*map(one, renewals))
        beat = await super().heartbeat(worker, stored, lease)
        return replace(beat, unsaved=beat.unsaved | (unsaved - beat.lost)) if unsaved else beat

    # --- reading

    async def get(self, ids: Sequence[str]) -> list[Record | None]:
        return [None if row is None else self.texts.opened(row) for row in await super().get(ids)]

    async def find(self, query: Query) -> Page:
        page = await super().find(query)
        if self.texts.keys is None:
            return page
        return replace(page, records=tuple([self.texts.opened(row) for row in page.records]))

    async def whole(self, rows: Sequence[Record | None], fields: Collection[str]) -> list[Record | None]:
        """See `treadle.storage.optional_parts.Payloads`."""
        return await self.texts.whole(rows, fields)

    async def collect(
        self, age: float, dry: bool = False, progress: Callable[[Collected], None] | None = None
    ) -> Collected:
        """See `treadle.storage.optional_parts.Payloads`."""
        if self.texts.objects is None:
            return Collected()
        self.check_sees_all()
        await self.check_owner()
        return await collect(self.storage, self.texts.objects, age, dry, progress)

    def check_sees_all(self) -> None:
        """Raise BadOption if the rows do not show all references to the blob store."""
        able = self.storage.capabilities
        if able.reads_texts or able.queues:
            why = f"a token that is bound to {', '.join(able.queues)}" if able.queues else "a server that reads them"
            raise BadOption(
                "blobs",
                f"the references to {self.texts.objects} cannot be seen through {why}; use an app with the URL of the "
                "storage itself, and the same blobs= and keys=",
            )

    # --- hand-off and transactions

    def post(self, take: Callable[[str, Record], None]) -> Post | None:
        return cast("HandOffs", self.storage).post(lambda claim, row: take(claim, self.texts.opened(row)))

    def within(self, session: Any) -> Bound:
        return PayloadBound(cast("Transactional", self.storage).within(session), self.texts)

    async def begin(self, sync: bool) -> Transaction:
        transaction = await super().begin(sync)
        transaction.bound = PayloadBound(transaction.bound, self.texts)
        return transaction
