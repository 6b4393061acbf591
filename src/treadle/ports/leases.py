"""The messages of a queue and their leases, shared by the queue in memory and the queue in files. It reads no clock."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from msgspec import Struct


class Item(Struct, omit_defaults=True):
    """A stored message. `until`: the end of its lease, whose name is `token`; `dead`: why it was dead-lettered."""

    number: int  # rises with every push; the order of the queue
    body: str
    at: float = 0.0  # the time from which it is visible
    key: str | None = None
    attempt: int = 0  # number of its leases so far
    token: str | None = None
    until: float = 0.0
    dead: str | None = None

    def extended(self, until: float) -> Item:
        self.until = until
        return self

    def released(self, visible_at: float) -> Item:
        self.token, self.attempt, self.at = None, self.attempt - 1, visible_at
        return self

    def buried(self, reason: str) -> Item:
        self.token, self.dead = None, reason
        return self


class Held:
    """The messages of one queue. All orders are the order of the pushes."""

    def __init__(self) -> None:
        self.items: dict[int, Item] = {}
        self.dead: dict[int, Item] = {}
        self._keys: dict[str, int] = {}
        self._ready: list[int] = []
        self._later: list[tuple[float, int]] = []
        self._leases: list[tuple[float, int]] = []
        self._last = 0
        self._tokens = 0

    def __len__(self) -> int:
        return len(self.items)

    def next_number(self) -> int:
        return self._last + 1

    def has_key(self, key: str | None) -> bool:
        return key is not None and key in self._keys

    def put(self, item: Item) -> None:
        """Add a message, or replace the stored one with the same number."""
        self._last = max(self._last, item.number)
        if item.dead is not None:
            self.drop(item.number)
            self.dead[item.number] = item
            return
        self.items[item.number] = item
        if item.key is not None:
            self._keys[item.key] = item.number
        if item.token is not None:
            heapq.heappush(self._leases, (item.until, item.number))
        elif item.at > 0.0:
            heapq.heappush(self._later, (item.at, item.number))
        else:
            heapq.heappush(self._ready, item.number)

    def drop(self, number: int) -> None:
        item = self.items.pop(number, None)
        if item is not None and item.key is not None and self._keys.get(item.key) == number:
            del self._keys[item.key]

    def lapsed(self, now: float) -> Iterator[Item]:
        """The messages whose lease expired, the earliest first. Lease each one before reading the next."""
        while self._leases and self._leases[0][0] <= now:
            until, number = heapq.heappop(self._leases)
            item = self.items.get(number)
            if item is not None and item.token is not None and item.until == until:
                yield item

    def visible(self, now: float) -> Iterator[Item]:
        """The messages that are due and not leased, in the order of the pushes."""
        while self._later and self._later[0][0] <= now:
            visible_at, number = heapq.heappop(self._later)
            item = self.items.get(number)
            if item is not None and item.token is None and item.at == visible_at:
                heapq.heappush(self._ready, number)
        while self._ready:
            item = self.items.get(heapq.heappop(self._ready))
            if item is not None and item.token is None and item.at <= now:
                yield item

    def take(self, limit: int, lease: float, now: float, name: str) -> list[Item]:
        """Lease up to `limit` messages: first those with an expired lease, then the visible ones."""
        taken: list[Item] = []
        for source in (self.lapsed(now), self.visible(now)):
            while len(taken) < limit:
                item = next(source, None)
                if item is None:
                    break
                self._tokens += 1
                item.attempt, item.token, item.until = item.attempt + 1, f"{name}.{self._tokens}", now + lease
                heapq.heappush(self._leases, (item.until, item.number))
                taken.append(item)
        return taken

    def of(self, handle: str) -> Item | None:
        """The message of this lease; None if another reader has leased it. An expired lease stays valid until then."""
        number, _, token = handle.partition("/")
        item = self.items.get(int(number)) if number.isdecimal() else None
        return item if item is not None and item.token == token else None


def handle_of(item: Item) -> str:
    return f"{item.number}/{item.token}"
