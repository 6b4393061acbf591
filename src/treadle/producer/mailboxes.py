"""The messages of this process on their way: those to one mailbox that come while others are being sent go together.

Senders that took turns one by one would read the mailbox again for each message of the others.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

from treadle.core.model import Record
from treadle.producer.batching import Batcher
from treadle.storage.contract import Storage
from treadle.workflow.mailbox import Message, send

MOST: Final = 200  # messages of one call

Key = tuple[asyncio.AbstractEventLoop, str, str, tuple[str, ...]]


class Sent(NamedTuple):
    """A message, and the row of its job as the caller has read it."""

    storage: Storage
    job: Record
    message: Message
    reach: tuple[str, ...]


async def _send(group: list[Sent]) -> Sequence[bool | Exception]:
    last = group[-1]
    return await send(last.storage, last.job, [one.message for one in group], last.reach)


class Mailboxes:
    """Those of all jobs to which this process sends now."""

    def __init__(self) -> None:
        self._senders: dict[Key, Batcher[Sent, bool | Exception]] = {}
        self._callers: Counter[Key] = Counter()

    async def send(self, sent: Sent) -> bool:
        """Whether this call has put the message in its mailbox; False: one with its key was sent before. Raises what
        `workflow.mailbox.send` returns."""
        if sent.message.is_signal:
            [result] = await _send([sent])
        else:
            key = asyncio.get_running_loop(), sent.job.id, sent.message.name, sent.reach
            sender = self._senders.setdefault(key, Batcher(_send, MOST, at_once=True))
            self._callers[key] += 1
            try:
                [result] = await sender([sent])
            finally:
                self._callers[key] -= 1
                if not self._callers[key]:
                    del self._callers[key], self._senders[key]
        if isinstance(result, Exception):
            raise result
        return result
