"""The three ports in this process: for tests and experiments, and as a reference implementation of their contract."""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

from treadle.core import clock as clocks
from treadle.ports.contract import Listener, Pulled
from treadle.ports.leases import Held, Item, handle_of
from treadle.ports.listeners import call_listeners


class Dead(NamedTuple):
    """A dead-lettered message, and the reason."""

    body: str
    reason: str


class MemoryQueue:
    """A queue in this process. `dead` lists dead-lettered messages; `size()` counts the others.

    max_batch, max_delay, max_lease  bounds like those of real systems, for tests
    """

    def __init__(
        self,
        clock: clocks.Clock = clocks.wall,
        *,
        max_batch: int | None = None,
        max_delay: float | None = None,
        max_lease: float | None = None,
    ) -> None:
        self._now, self._held = clock, Held()
        self.max_batch, self.max_delay, self.max_lease = max_batch, max_delay, max_lease

    @property
    def dead(self) -> list[Dead]:
        return [Dead(item.body, item.dead or "") for item in self._held.dead.values()]

    async def push(self, body: str, *, delay: float = 0.0, dedupe_key: str | None = None) -> None:
        if not self._held.has_key(dedupe_key):
            self._held.put(Item(self._held.next_number(), body, self._visible_at(delay), dedupe_key))

    async def pop(self, limit: int, lease: float) -> list[Pulled]:
        most = limit if self.max_batch is None else min(limit, self.max_batch)
        taken = self._held.take(most, _within(lease, self.max_lease), self._now(), "m")
        return [Pulled(item.body, handle_of(item), item.attempt) for item in taken]

    async def extend(self, handle: str, lease: float) -> bool:
        until = self._now() + _within(lease, self.max_lease)
        return self._of(handle, lambda item: self._held.put(item.extended(until)))

    async def ack(self, handle: str) -> bool:
        return self._of(handle, lambda item: self._held.drop(item.number))

    async def release(self, handle: str, delay: float = 0.0) -> bool:
        return self._of(handle, lambda item: self._held.put(item.released(self._visible_at(delay))))

    async def dead_letter(self, handle: str, reason: str) -> bool:
        return self._of(handle, lambda item: self._held.put(item.buried(reason)))

    def _of(self, handle: str, change: Callable[[Item], None]) -> bool:
        item = self._held.of(handle)
        if item is not None:
            change(item)
        return item is not None

    def _visible_at(self, delay: float) -> float:
        return self._now() + _within(delay, self.max_delay) if delay > 0 else 0.0

    async def size(self) -> int:
        return len(self._held)


class MemoryPubSub:
    """Listeners in this process."""

    def __init__(self) -> None:
        self._listeners: dict[str, dict[int, Listener]] = defaultdict(dict)
        self._numbers = itertools.count()

    async def publish(self, channel: str, text: str) -> None:
        call_listeners(self._listeners.get(channel, {}).values(), channel, text)

    async def subscribe(self, channel: str, listener: Listener) -> Callable[[], None]:
        number = next(self._numbers)
        self._listeners[channel][number] = listener

        def end() -> None:
            self._listeners[channel].pop(number, None)

        return end


class MemoryStore:
    """Keys in this process; `len()` is their number."""

    forgets = True  # its values end with the process; see `ports.contract.three`

    def __init__(self, clock: clocks.Clock = clocks.wall) -> None:
        self._now = clock
        self._values: dict[str, tuple[str, float | None]] = {}
        self._ends: list[tuple[float, str]] = []

    def __len__(self) -> int:
        self._expire()
        return len(self._values)

    async def get(self, key: str) -> str | None:
        return self._read(key)

    async def set(self, key: str, value: str, ttl: float | None = None) -> None:
        end = None if ttl is None else self._now() + ttl
        self._values[key] = value, end
        if end is not None:
            heapq.heappush(self._ends, (end, key))

    async def delete(self, key: str) -> None:
        self._values.pop(key, None)

    async def set_if_absent(self, key: str, value: str, ttl: float | None = None) -> bool:
        if self._read(key) is not None:
            return False
        await self.set(key, value, ttl)
        return True

    async def increment(self, key: str, by: int = 1, ttl: float | None = None) -> int:
        total = int(self._read(key) or 0) + by
        await self.set(key, str(total), ttl)
        return total

    async def now(self) -> float:
        return self._now()

    def _read(self, key: str) -> str | None:
        self._expire()
        entry = self._values.get(key)
        return entry[0] if entry is not None else None

    def _expire(self) -> None:
        now = self._now()
        while self._ends and self._ends[0][0] <= now:
            end, key = heapq.heappop(self._ends)
            if self._values.get(key, ("", None))[1] == end:
                del self._values[key]


class MemoryBackend(NamedTuple):
    """All three ports on one clock: pass it to `App(ports=...)`, and to as many apps as the fleet has."""

    queue: MemoryQueue
    pubsub: MemoryPubSub
    store: MemoryStore


def memory_queue(clock: clocks.Clock = clocks.wall) -> MemoryQueue:
    """A queue in this process, for inspection by `dead` and `size()`."""
    return MemoryQueue(clock)


def memory_pubsub() -> MemoryPubSub:
    """A pub/sub in this process."""
    return MemoryPubSub()


def memory_store(clock: clocks.Clock = clocks.wall) -> MemoryStore:
    """A store in this process, whose keys expire by `clock`."""
    return MemoryStore(clock)


def memory_backend(clock: clocks.Clock = clocks.wall) -> MemoryBackend:
    """All three ports on one clock, which a test can move: `memory_backend(HandClock())`."""
    return MemoryBackend(MemoryQueue(clock), MemoryPubSub(), MemoryStore(clock))


def _within(seconds: float, most: float | None) -> float:
    return seconds if most is None else min(seconds, most)
