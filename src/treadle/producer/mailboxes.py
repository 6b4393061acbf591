"""The messages of this process on their way: those to one mailbox that come while others are being sent go together.

Senders that took turns one by one would read the mailbox again for each message of the others.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple
from weakref import ref

from treadle.core.model import Record
from treadle.producer.batching import Batcher
from treadle.storage.contract import Storage
from treadle.workflow.mailbox import Message, Seen, Sending
from treadle.workflow.signals import SEEN_AT_ONCE, signal_id

MOST: Final = 200  # messages of one call

KNOWN: Final = 1_000  # mailboxes of which the last row that is used is remembered

Key = tuple[asyncio.AbstractEventLoop, str, str, tuple[str, ...]]


class Next(NamedTuple):
    """The next rows of a mailbox, as far as this process knows.

    first    the turn behind the last row that is known to be used
    created  when the job of which this is known was created
    ids      of the rows from there on, which the caller reads together with the job; none of them if other messages are
             on their way, as the next group of these reads them
    """

    first: int
    created: float | None
    ids: Sequence[str]

    def seen(self, job: Record, rows: Sequence[Record | None]) -> Seen | None:
        """These rows as they were read; None: none were."""
        return Seen(self.first, rows, self.created == job.created_at) if rows else None


class Sent(NamedTuple):
    """A message, and the row of its job as the caller has read it; `seen`: with the next rows of the mailbox."""

    storage: Storage
    job: Record
    message: Message
    reach: tuple[str, ...]
    seen: Seen | None = None


class Mailboxes:
    """Those of all jobs to which this process sends now."""

    def __init__(self) -> None:
        self._senders: dict[Key, Batcher[Sent, bool | Exception]] = {}
        self._callers: Counter[Key] = Counter()
        # Of the storage that was used last, by job and name: when the job was created, and the last row that is used. A
        # test has a storage of its own, and the same ids and times as the one before it.
        self._storage: Callable[[], Storage | None] = lambda: None  # it must not live as long as the app
        self._used: dict[tuple[str, str], tuple[float, int]] = {}

    @contextmanager
    def sending(self, storage: Storage, job: str, name: str, reach: tuple[str, ...]) -> Iterator[Next]:
        """While a caller reads the job and sends one message to this mailbox."""
        key = asyncio.get_running_loop(), job, name, reach
        created, used = self._known_of(storage).get((job, name), (None, 0))
        turns = () if key in self._callers else range(used + 1, used + 1 + SEEN_AT_ONCE)
        self._callers[key] += 1
        try:
            yield Next(used + 1, created, [signal_id(job, name, turn) for turn in turns])
        finally:
            self._callers[key] -= 1
            if not self._callers[key]:
                del self._callers[key]
                self._senders.pop(key, None)

    async def send(self, sent: Sent) -> bool:
        """Whether this call has put the message in its mailbox; False: one with its key was sent before. Raises what
        `Sending` has as its result."""
        if sent.message.is_signal:
            [result] = await self._send([sent])
        else:
            key = asyncio.get_running_loop(), sent.job.id, sent.message.name, sent.reach
            # Not at once: messages of the same turn of the loop go together.
            [result] = await self._senders.setdefault(key, Batcher(self._send, MOST))([sent])
        if isinstance(result, Exception):
            raise result
        return result

    async def _send(self, group: list[Sent]) -> Sequence[bool | Exception]:
        last = group[-1]
        messages = [one.message for one in group]
        seen = next((one.seen for one in group if one.seen is not None), None)
        sending = Sending(last.storage, last.job, messages, last.reach, seen)
        await sending.run()
        known = self._known_of(last.storage)
        if len(known) >= KNOWN:
            known.clear()
        known[last.job.id, last.message.name] = last.job.created_at, sending.used
        return [sending.results[message.nonce] for message in messages]

    def _known_of(self, storage: Storage) -> dict[tuple[str, str], tuple[float, int]]:
        if storage is not self._storage():
            self._storage, self._used = ref(storage), {}
        return self._used
