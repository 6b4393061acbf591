"""Stores message bodies that are too large for a queue as blobs; the message carries the blob's address."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

from treadle.blobs import Blobs, Corrupt, NoBlob
from treadle.core.errors import BadOption, Unsupported
from treadle.ports.contract import DeadLetters, Pulled, Queue, Sized

LIMIT: Final = 200 * 1024  # bytes; SQS accepts 256 KiB, including the envelope
MARK: Final = "treadle-blob:"


class LargeMessages:
    """A queue that stores large bodies as blobs; see `with_blobs`."""

    def __init__(self, queue: Queue, blobs: Blobs, limit: int = LIMIT) -> None:
        if not isinstance(queue, DeadLetters):
            raise BadOption("queue", f"expected a queue with dead_letter, for messages without a blob, found {queue!r}")
        self._queue, self._blobs, self._limit, self._dead = queue, blobs, limit, queue
        self.max_delay: float | None = getattr(queue, "max_delay", None)
        self.max_lease: float | None = getattr(queue, "max_lease", None)

    async def push(self, body: str, *, delay: float = 0.0, dedupe_key: str | None = None) -> None:
        data = body.encode()
        if len(data) > self._limit or body.startswith(MARK):
            address, _ = await self._blobs.put(_pieces(data))  # the blob is durable before a message names it
            body = MARK + address
        await self._queue.push(body, delay=delay, dedupe_key=dedupe_key)

    async def pop(self, limit: int, lease: float) -> list[Pulled]:
        """As `Queue.pop`. A message whose blob is missing or corrupt is dead-lettered with the reason, and not
        returned."""
        messages: list[Pulled] = []
        for pulled in await self._queue.pop(limit, lease):
            if not pulled.body.startswith(MARK):
                messages.append(pulled)
                continue
            try:
                async with self._blobs.read(pulled.body.removeprefix(MARK)) as blob:
                    data = b"".join([piece async for piece in blob])
            except (NoBlob, Corrupt) as error:
                await self._dead.dead_letter(pulled.handle, f"its body: {error}")
            else:
                messages.append(Pulled(data.decode(), pulled.handle, pulled.attempt))
        return messages

    async def extend(self, handle: str, lease: float) -> bool:
        return await self._queue.extend(handle, lease)

    async def ack(self, handle: str) -> bool:
        return await self._queue.ack(handle)

    async def release(self, handle: str, delay: float = 0.0) -> bool:
        return await self._queue.release(handle, delay)

    async def dead_letter(self, handle: str, reason: str) -> bool:
        return await self._dead.dead_letter(handle, reason)

    async def size(self) -> int:
        if not isinstance(self._queue, Sized):
            raise Unsupported(f"the queue {type(self._queue).__name__}", "size", "ask its system for the length")
        return await self._queue.size()

    async def close(self) -> None:
        closing: Any = getattr(self._queue, "close", None)
        if closing is not None:
            await closing()


def with_blobs(queue: Queue, blobs: Blobs, limit: int = LIMIT) -> LargeMessages:
    """The queue, with bodies of more than `limit` bytes stored in `blobs`. Equal bodies are stored once. Blobs are not
    deleted with their message, because other messages may have the same body."""
    return LargeMessages(queue, blobs, limit)


async def _pieces(data: bytes) -> AsyncIterator[bytes]:
    yield data
