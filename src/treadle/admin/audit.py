"""`app.audit`: records which operator did what, in rows of the storage itself.

An entry is stored before the act, and completed by the call that changes the job, or else after the act. So an act
without an entry does not happen, and the entry of an act that died half-way stays open.
"""

from __future__ import annotations

import asyncio
import getpass
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Final, Literal

import msgspec
from msgspec import Struct, structs
from msgspec.structs import replace

from treadle.admin.moved_looks import Moved
from treadle.core import defaults
from treadle.core.awaiting import async_block
from treadle.core.errors import UNREADABLE, BadOption, StorageError
from treadle.core.ids import UuidV7
from treadle.core.model import NewJob, Outcome, Record, Settled, State
from treadle.core.open_entry import open_entry
from treadle.core.query_model import Page, Query
from treadle.core.redaction import in_line, without_secrets
from treadle.storage.contract import Storage

log = logging.getLogger("treadle.audit")

TASK: Final = "treadle.audit"  # no worker names this task, so no worker claims it
PREFIX: Final = "treadle:audit:"
KEEP: Final = 90 * 86_400.0  # s
IDS: Final = 20  # ids that an entry names
LONGEST: Final = 500  # characters of each text
LONGEST_ENTRY: Final = 16_384  # characters of an entry's payload, and of its result
REASONS: Final = 20  # reasons why jobs were passed over
ENDING: Final = "treadle:audit:ending"  # the checkpoint of an ended entry with its corrected ending

Source = Literal["api", "cli", "python", "mcp", "server"]
"""The origin of an act. "server": the worker protocol, or the API of another server, whose storage is this one; that
server knows the token."""


class Act(Struct, frozen=True, omit_defaults=True):
    """The payload of an entry: what is known before the act."""

    by: str
    source: Source
    act: str
    target: str = ""
    filter: str | None = None


class Ending(Struct, frozen=True, omit_defaults=True):
    """The result of an entry: what is known after the act."""

    done: int | None = None
    passed_over: dict[str, int] | None = None
    error: str | None = None
    ids: tuple[str, ...] = ()


class Begun(Struct, frozen=True):
    """An entry that is open."""

    row: Record
    act: Act

    def completed(self, ending: Ending) -> Outcome:
        return Outcome(id=self.row.id, version=self.row.version, state=State.SUCCEEDED, result=_json(ending))

    def corrected(self, ending: Ending) -> Outcome:
        """An outcome that replaces the ending which the call of the act has stored in the entry."""
        return replace(
            self.completed(ending), version=self.row.version + 1, keep=KEEP, checkpoints=((ENDING, _json(ending)),)
        )


class AuditEntry(Struct, frozen=True, kw_only=True, rename={"source": "from"}):
    """One act.

    at           when it began; ended_at: when it ended; None: it is under way, or its process died
    by           the name of a token, or user@host
    act          such as "job.cancel"
    target       the job, queue, limit or schedule; "" for an act on many jobs
    filter       the filter in words, or the details of a change
    done         how many jobs it changed; None: it is not about jobs
    passed_over  how many jobs it left as they were, by reason
    ids          the first 20 jobs that it changed
    """

    id: str
    at: float
    ended_at: float | None
    by: str
    source: Source
    act: str
    target: str
    filter: str | None
    done: int | None
    passed_over: Mapping[str, int] | None
    error: str | None
    ids: Sequence[str]


class AuditPage(Struct, frozen=True):
    """One page of entries, the newest first. `cursor` reads the next page; None: this was the last one."""

    entries: Sequence[AuditEntry]
    cursor: str | None


class Receipt:
    """The report of an act. All fields may be set until its end."""

    def __init__(self, entry: Begun | None = None) -> None:
        self.done: int | None = None
        self.passed_over: dict[str, int] = {}
        self.error: str | None = None
        self.ids: list[str] = []
        self._entry = entry
        self.stored: Ending | None = None  # the ending with which `settle` has completed the entry

    async def settle(self, storage: Storage, outcomes: Sequence[Outcome]) -> Sequence[Settled]:
        """Settle the outcomes of the act. If it changes one job, the same call completes the entry."""
        if self._entry is None or self.stored is not None or len(outcomes) != 1 or storage.capabilities.remote:
            return await storage.settle(outcomes)
        ending = Ending(done=1, ids=(outcomes[0].id,))
        answer, completed = await storage.settle([*outcomes, self._entry.completed(ending)])
        if completed.status == "applied":
            self.stored = ending
        return [answer]

    def ending(self) -> Ending:
        reasons = sorted(self.passed_over.items(), key=lambda pair: -pair[1])[:REASONS]
        return Ending(
            done=self.done,
            passed_over={_text(reason): count for reason, count in reasons} or None,
            error=None if self.error is None else _text(self.error),
            ids=tuple(self.ids[:IDS]),
        )


@async_block("write `async with app.audit.record(...) as receipt:` in a coroutine")
class _Recording(AbstractAsyncContextManager[Receipt]):
    """The block of `Audit.record`."""

    def __init__(self, audit: Audit, act: Act) -> None:
        self._audit, self._act = audit, act

    async def __aenter__(self) -> Receipt:
        self._begun = await self._audit.begin(self._act)
        self._receipt, self._before = Receipt(self._begun), open_entry.get()
        open_entry.set(self._begun.row.id)
        return self._receipt

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        open_entry.set(self._before)
        if isinstance(error, asyncio.CancelledError):
            return  # whether the act was carried out is unknown, so its entry stays open
        if error is not None:
            self._receipt.error = f"{type(error).__name__}: {error}"
        await self._audit.end(self._begun, self._receipt)


class Audit:
    """The audit log of a storage. Entries are kept for 90 days."""

    def __init__(self, storage: Callable[[], Awaitable[Storage]], moved: Moved) -> None:
        self._storage, self._moved, self._new_id = storage, moved, UuidV7()

    def record(
        self,
        act: str,
        target: str = "",
        *,
        filter: str | None = None,
        by: str | None = None,
        source: Source = "python",
    ) -> AbstractAsyncContextManager[Receipt]:
        """`async with app.audit.record("customer.delete", "42") as receipt:` records the act in the block.

        by      who acts; None: this user on this machine
        filter  details of the act, or the filter in words

        Set `receipt.done`, `.ids` and `.passed_over` inside the block. An exception is recorded and raised. Values
        after names such as `password=` are hidden, and each text is cut after 500 characters.

        Raises StorageError if the entry cannot be stored; the block does not run then. If the entry cannot be completed
        after the block, a warning is logged and the entry stays open.
        """
        return _Recording(self, Act(by or whoami(), source, act, target, filter))

    async def begin(self, act: Act) -> Begun:
        """Store the entry of an act that begins now. Raises StorageError."""
        details = None if act.filter is None else _text(act.filter)
        cut = replace(act, by=_text(act.by), act=_text(act.act), target=_text(act.target), filter=details)
        storage = await self._storage()
        if cut.source == "api" and storage.capabilities.remote:
            cut = replace(cut, source="server")  # the other server has not seen the token
        [row] = await storage.enqueue([new_entry(f"{PREFIX}{self._new_id()}", msgspec.json.encode(cut).decode())])
        return Begun(row, cut)

    async def end(self, begun: Begun, receipt: Receipt) -> None:
        """Complete an entry, and log its line. Never raises StorageError."""
        ending, act, row = receipt.ending(), begun.act, begun.row
        line = f"{act.by} from {act.source}: {act.act} {act.target or '-'}"
        if act.filter is not None:
            line += f" ({act.filter})"
        if ending.done is not None:
            line += f", {ending.done} done"
        if ending.error is not None:
            line += f", {ending.error}"
        log.info("%s", in_line(line))
        if receipt.stored == ending:
            return
        outcome = begun.completed(ending) if receipt.stored is None else begun.corrected(ending)
        try:
            [answer] = await (await self._storage()).settle([outcome])
        except StorageError as error:
            log.warning("the entry %s stays as it was: %s", row.id, error)
        else:
            if answer.status != "applied":
                log.warning("the entry %s stays as it was: %s", row.id, answer.reason or answer.status)

    async def list(self, /, *, cursor: str | None = None, limit: int = 50) -> AuditPage:
        """One page of entries, the newest first. Raises BadOption."""
        if not 1 <= limit <= 1_000:
            raise BadOption("limit", f"expected 1 to 1,000, found {limit!r}")
        page = await (await self._storage()).find(Query(task=TASK, cursor=cursor, limit=limit, whole=True))
        await self._moved.looked("app.audit.list")
        return AuditPage([entry_of(row) for row in page.records], page.cursor)


def new_entry(id: str, payload: str) -> NewJob:
    """The row of an act that begins. It is never queued, and if it stays open, its deadline ends and deletes it."""
    return NewJob(
        id=id,
        task=TASK,
        queue=defaults.SYSTEM_QUEUE,
        payload=payload,
        delay=defaults.MAX_DELAY,
        deadline=KEEP,
        keep=KEEP,
        keep_failed=0.0,
    )


def is_id(id: str) -> bool:
    """Whether this is the id of an entry."""
    return id.startswith(PREFIX)


def is_entry(row: Record) -> bool:
    """Whether this row is an entry of the audit log, which no act on jobs may change."""
    return row.job.task == TASK


async def without_entries(storage: Storage, query: Query, page: Page) -> Page:
    """The page without the entries of the audit log. They stay if the query names their task, a queue or ids."""
    if query.task == TASK or query.queue is not None or query.ids:
        return page
    total = page.total
    if total is not None and query.task is None:
        entries = await storage.find(replace(query, task=TASK, limit=0, cursor=None))
        total -= entries.total or 0
    return replace(page, records=tuple(row for row in page.records if not is_entry(row)), total=total)


def entry_of(row: Record) -> AuditEntry:
    """The entry that a row stores. One that cannot be read is shown with its text."""
    act, ending = read_act(row.job.payload), Ending()
    try:
        ending = msgspec.json.decode(dict(row.checkpoints).get(ENDING) or row.result or "{}", type=Ending)
    except UNREADABLE:
        ending = Ending(error=row.result)
    return AuditEntry(
        id=row.id,
        at=row.created_at,
        ended_at=row.ended_at if row.state is State.SUCCEEDED else None,
        **structs.asdict(act),
        **structs.asdict(ending),
    )


def read_act(payload: str) -> Act:
    try:
        return msgspec.json.decode(payload, type=Act)
    except UNREADABLE:
        return Act("", "python", payload[:LONGEST])


def _json(ending: Ending) -> str:
    return msgspec.json.encode(ending).decode()


def whoami() -> str:
    """user@host of this process."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container whose user has no name
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


def _text(text: str) -> str:
    """A text of an entry: on one line, without secrets, and not too long."""
    line = in_line(without_secrets(text[: 4 * LONGEST]))
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 3]}..."
