"""The optional parts of a storage, one protocol each; `contract.Capabilities` says which of them a storage has.

`storage/capabilities.py` returns the part of a storage, or None if it does not have it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal, Protocol

from msgspec import Struct

from treadle.core.model import Claim, Claimed, NewJob, Outcome, Record, Settled
from treadle.storage.transfer import Chunk, MoveState


class Fused(Protocol):
    """A storage that settles and claims in one round trip; worth 60 % on a hot loop. Returns what both calls return."""

    async def settle_claim(self, outcomes: Sequence[Outcome], ask: Claim) -> tuple[list[Settled], Claimed]: ...


class Post(Protocol):
    """A mailbox of a worker of this process, for direct hand-off."""

    address: str

    def close(self) -> None:
        """Accept no more jobs. A second call does nothing."""
        ...


class HandOffs(Protocol):
    """A storage with direct hand-off: the step that stores a job also claims it for an idle worker, saving a round
    trip.

    A claim with `hand_off` that finds nothing remains as a request for one job, under its claim id. An enqueue may then
    make that claim for the worker, in the same step, and notify the mailbox; the queue's topic is not published. It is
    a claim like any other: in queue order, subject to every limit, with a lease. The request ends with it, when its
    time is over, and with the next claim for the same mailbox. The notification may be lost: the claim repeated under
    its claim id returns the job. No job is claimed for a mailbox whose listener is known to be gone.
    """

    def post(self, take: Callable[[str, Record], None]) -> Post | None:
        """A new mailbox; `take` is called with claim id and job, in the event loop of this process. None: this server
        does not support hand-off."""
        ...


class Bound(Protocol):
    """The verbs that can be used inside a transaction. Their effects are committed or rolled back with it.

    They return what the storage's own verbs return, and see what the transaction has done already. A refusal (KeyHeld,
    UnknownUpstream, IdTaken, QueueFull, "refused", "stale") leaves nothing behind, and the transaction can still be
    used. Topics are published after the commit, as soon as the storage can know of it.
    """

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Record]: ...
    async def settle(self, outcomes: Sequence[Outcome]) -> list[Settled]: ...
    async def get(self, ids: Sequence[str]) -> list[Record | None]: ...


class Transaction(Protocol):
    """A transaction on the storage's own database for one run: the writes of the function, then its outcome.

    raw    the connection that the function writes with: of the storage's driver, used for nothing else
    bound  the verbs inside the transaction; created before the function gets `raw`, so nothing that the user does to
           the connection changes how they work
    alone  no other write to the storage can happen while it is open (SQLite), so nothing may wait for one
    """

    raw: Any
    bound: Bound
    alone: bool

    async def commit(self) -> None:
        """Commit. After StorageUnavailable it is unknown whether it was committed; after any other error it was not."""
        ...

    async def roll_back(self) -> None:
        """Roll back; `raw` then refuses every statement. Does nothing after `commit` or a second time."""
        ...

    async def close(self) -> None:
        """Release the connection, once `raw` is no longer in use; rolls back what is open. Never raises."""
        ...


class Transactional(Protocol):
    """A storage whose verbs work inside a transaction on its database: the user's own, or one begun for a run."""

    def within(self, session: Any) -> Bound:
        """The verbs inside a transaction of the user; `storage.user_session` lists the kinds of session. The storage
        need not be open. If it never was, the verbs raise StorageError unless its schema exists. The session is not
        used yet; each verb raises BadSession for a session that is closed, is in autocommit mode, or belongs to another
        database. The verbs never await a session that is not an asyncio one, so `at_once` can drive them in any plain
        thread."""
        ...

    async def begin(self, sync: bool) -> Transaction:
        """Begin a transaction for one run. `sync`: its connection is used in a thread, so it is not an asyncio one."""
        ...

    async def oldest_open(self) -> float:
        """The age in seconds of the oldest open transaction that may have stored jobs; 0.0 if there is none, or if this
        call has waited until all had ended. Infinity if its beginning is unknown."""
        ...


class Movable(Protocol):
    """A storage that `treadle storage move` can move jobs from or to.

    `unload` exports every row and `load` imports it unchanged: an empty storage that loads everything another one
    unloads then returns the same from every call. Marks (`storage.transfer`) control what is allowed during the move.
    """

    async def read_mark(self) -> MoveState | None:
        """The move that this storage takes part in, or None."""
        ...

    async def set_mark(self, mark: MoveState) -> None:
        """Replace the stored mark if `transfer.replaces` allows it; every later call of any process obeys the new one.

        Raises MoveFailed if it is not allowed, and `transfer.InTheWay` while a transaction is open that may have stored
        jobs: call again later. Nothing is changed then. A mark that opens the storage wakes the workers, and blocked
        jobs whose limit has room are queued again."""
        ...

    async def unload(self, cursor: str | None, limit: int) -> Chunk:
        """The next `limit` jobs after the cursor, in an order that is stable while nothing is written. The first chunk
        has the limits, the starts that rates remember, and the rows of metrics. Only reads, under any mark."""
        ...

    async def load(self, load: Chunk, mark: MoveState) -> None:
        """Store these rows unchanged, and the mark, in one step. Raises MoveFailed and stores nothing if the mark is
        refused (see `set_mark`). Known ids are left as they are, so a load can be repeated. Does no maintenance, counts
        no endings and wakes no worker."""
        ...


class Risk(Struct, frozen=True):
    """A name, what was found, and how to change it. `fail`: ordinary use loses jobs, or nothing works; `warn`: a crash
    does."""

    verdict: Literal["warn", "fail"]
    name: str
    text: str
    advice: str


class Surroundings(Protocol):
    """A storage that can look at the settings of its server, or at the file system of its file."""

    async def risks(self) -> Sequence[Risk]:
        """The settings by which confirmed jobs may be lost. One or two round trips that only read. Raises StorageError,
        for example if the server forbids reading them. `storage.risks.risks_of` calls it."""
        ...


class Collected(Struct, frozen=True):
    """The result of `Payloads.collect`: the objects that remain and those that were deleted, and their bytes.

    held    remaining ones to which no row refers, because a transaction that is open may have stored their jobs
    moving  whether the collection stopped because the jobs are being moved, or were moved away
    """

    kept: int = 0
    kept_bytes: int = 0
    deleted: int = 0
    deleted_bytes: int = 0
    held: int = 0
    moving: bool = False


class Payloads(Protocol):
    """A storage of an app whose large texts are in a blob store (`App(blobs=...)`). It encrypts and offloads what is
    stored. The rows that it returns are decrypted, and refer to the large texts."""

    async def whole(self, rows: Sequence[Record | None], fields: Collection[str]) -> list[Record | None]:
        """The rows with the large texts of these fields (payload, result, value, checkpoints). A text that is not in
        the blob store, or is damaged there, stays as it is stored. Raises StorageUnavailable."""
        ...

    async def collect(
        self, age: float, dry: bool = False, progress: Callable[[Collected], None] | None = None
    ) -> Collected:
        """Delete the objects that are older than `age` seconds and to which no row refers; `dry`: count them only. An
        object of a job that has not ended stays, and so does one that a transaction which is open now may refer to.
        Does nothing while a move is under way. `progress` is called with what was done so far, once per 500 objects.

        Raises StorageError, and BadOption if the blob store has the texts of another storage, or if the rows come from
        a server that reads the texts by itself."""
        ...
