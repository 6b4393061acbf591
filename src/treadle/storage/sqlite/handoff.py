"""Direct hand-off: an enqueue claims the job for a waiting worker in the same transaction.

So a new job needs one commit, not one to store it and one to claim it, each with a sync. The row makes the job the
worker's, not the datagram: repeating the claim under its claim id returns the job.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Sequence
from itertools import count
from typing import Final

import msgspec
from msgspec.structs import replace

from treadle.concurrency.spawn import mark_retrieved
from treadle.core.errors import StorageError
from treadle.core.model import Claim, Claimed, NewJob, Record, State
from treadle.storage.sqlite import queries
from treadle.storage.sqlite.claim import claim
from treadle.storage.sqlite.connection import OpenFile
from treadle.storage.sqlite.notifier import Notifier
from treadle.storage.sqlite.rows import encode, to_json
from treadle.storage.sqlite.shared_transaction import SharedTransactions
from treadle.storage.sqlite.unit_of_work import UnitOfWork
from treadle.storage.sqlite.waiting_workers import WaitingWorker

WHOLE: Final = 16_384  # bytes of a row that are sent whole; of a larger one only the id

_read = msgspec.json.Decoder(Record | str).decode

Take = Callable[[str, Record], None]


class Mailbox:
    """An address of this storage object; see `treadle.storage.optional_parts.Post`. `has_claim`: a claim of it may be
    noted as open."""

    def __init__(self, address: str, take: Take, closed: Callable[[Mailbox], None]) -> None:
        self.address, self.take, self._closed = address, take, closed
        self.has_claim = False

    def close(self) -> None:
        self._closed(self)


class Inbox:
    """The open addresses of this storage object, and the jobs that arrive for them."""

    def __init__(self, file: OpenFile) -> None:
        self._file = file
        self.mailboxes: dict[str, Mailbox] = {}

    def deliver(self, word: str) -> None:
        """Read the datagram of a hand-off to one of our addresses. The row says under which claim id."""
        address, _, content = word.partition(" ")
        mailbox = self.mailboxes.get(address)
        if mailbox is None:
            return
        row: Record | str | None
        try:
            self._file.check_process()  # a thread may be closing the file
            row = _read(content)
            if isinstance(row, str):
                [row] = queries.by_ids(self._file.look, [row])
        except Exception:
            return  # the worker's next claim will return the job, or raise the error
        if row is not None and row.state is State.RUNNING and row.worker is not None:
            mailbox.take(row.worker, row)


class Mailboxes:
    """The addresses of this storage object, and the hand-off to every worker at the file."""

    def __init__(self, file: OpenFile, calls: SharedTransactions, notifier: Notifier, inbox: Inbox) -> None:
        self._file, self._calls, self._notifier, self._mailboxes = file, calls, notifier, inbox.mailboxes
        self._numbers = count()

    def open(self, take: Take) -> Mailbox | None:
        """Open a new address. None where a process cannot tell whether the receiver of a datagram still lives."""
        if not self._notifier.can_probe or not self._notifier.register():
            return None
        mailbox = Mailbox(self._notifier.address(next(self._numbers)), take, self._leave)
        self._mailboxes[mailbox.address] = mailbox
        return mailbox

    def _leave(self, mailbox: Mailbox) -> None:
        if self._mailboxes.pop(mailbox.address, None) is not None and mailbox.has_claim:
            # If this fails, the open claim expires by itself. The error here: the storage is closed, and with it every
            # address of this process.
            with contextlib.suppress(StorageError):
                self._calls.submit(lambda unit: self._withdrawn(mailbox)).add_done_callback(
                    mark_retrieved
                )  # it expires by itself

    def _withdrawn(self, mailbox: Mailbox) -> Generator[None, None, None]:
        yield from ()
        self._withdraw(mailbox)

    def _withdraw(self, mailbox: Mailbox) -> None:
        mailbox.has_claim = False
        self._file.waiting_workers.drop(mailbox.address)

    # --- open claims

    def claim(self, unit: UnitOfWork, ask: Claim) -> Generator[None, None, Claimed | None]:
        """One step of a claim, as `claim.claim`. It ends the open claim noted for its address; if it finds no job, it
        is noted as the new one. It ends even if the transaction is rolled back: the claim is then repeated, and returns
        the job of a hand-off."""
        mailbox = self._mailboxes.get(ask.hand_off[0]) if ask.hand_off is not None else None
        if mailbox is None or ask.hand_off is None:
            return (yield from claim(unit, ask))
        if mailbox.has_claim:
            self._withdraw(mailbox)
        claimed = yield from claim(unit, ask)
        wait = ask.hand_off[1]
        if claimed is not None and not claimed.records and wait > 0:
            mailbox.has_claim = True
            # Only one job, not all that it had room for: a burst is faster by hint and claim, and a frozen process
            # holds back only one.
            claim_text = encode(replace(ask, limit=1, hand_off=None))
            queues = tuple(queue for queue, _ in ask.queues)
            self._file.waiting_workers.add(
                WaitingWorker(mailbox.address, unit.now + wait, queues, claim_text), unit.now
            )
        return claimed

    # --- hand-off

    def insert_and_hand_over(
        self,
        unit: UnitOfWork,
        insert: Callable[[UnitOfWork], Generator[None, None, list[Record]]],
        waiting: Sequence[WaitingWorker],
    ) -> Generator[None, None, list[Record]]:
        """Insert one job, and claim it for one of these workers."""
        published = set(unit.topics)
        rows = yield from insert(unit)
        [row] = rows
        if row.queue_position is not None and self._notifier.can_probe:
            handed_over = yield from self._hand_over(waiting, unit, row.job)
            topic = f"queue:{row.job.queue}"
            if handed_over == row.job.id and topic not in published:
                unit.topics.discard(topic)
        return rows

    def _hand_over(
        self, workers: Sequence[WaitingWorker], unit: UnitOfWork, job: NewJob
    ) -> Generator[None, None, str | None]:
        """Make the latest open claim that would take this job. Return the id of the job that it claims: the first of
        the queue, which need not be the new one. There is no hand-off if there are rules or due rows, because enqueue
        must stay cheap."""
        for ask in reversed(workers):
            wanted = ask.claim_for(job) if ask.until > unit.now else None
            if wanted is None or not self._is_alive(ask.address):
                continue
            claimed = yield from claim(unit.quiet(), wanted, quickly=True)
            if claimed is None or not claimed.records:
                return None
            self._file.waiting_workers.keep([other for other in workers if other is not ask])
            [row] = claimed.records
            unit.topics.add(f"{ask.address} {self._content(row)}")
            return row.job.id
        return None

    def _is_alive(self, address: str) -> bool:
        return address in self._mailboxes if self._notifier.is_here(address) else self._notifier.is_alive(address)

    def _content(self, row: Record) -> str:
        """The content of the datagram: the row, because a cold read of it takes 0.27 ms; but only the id if the row is
        large, or if a process without access to the file could receive it."""
        whole = to_json(row) if self._notifier.beside else b""
        return (whole if 0 < len(whole) <= WHOLE else to_json(row.job.id)).decode()
