"""Messages, who has leased them, and until when: what a queue in memory and one in a file have in common.

Without it the two would differ in what a lapsed lease means. Plain data and a moment go in; no clock, no waiting.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from msgspec import Struct


class Item(Struct, omit_defaults=True):
    """A message as it is kept. `until`: the end of its lease, by `token`; `dead`: why it was set aside."""

    number: int  # rises with every push; the order of the queue
    body: str
    at: float = 0.0  # visible from then on
    key: str | None = None
    attempt: int = 0  # leases it has been given
    token: str | None = None
    until: float = 0.0
    dead: str | None = None


class Held:
    """The messages of one queue. Each method says what became of them; every order is that of the pushes."""

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
        """Add a message, or put one in place of what is known of it."""
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
        """Those whose lease ran out, the earliest first; each is to be leased anew before the next is asked for."""
        while self._leases and self._leases[0][0] <= now:
            until, number = heapq.heappop(self._leases)
            item = self.items.get(number)
            if item is not None and item.token is not None and item.until == until:
                yield item

    def visible(self, now: float) -> Iterator[Item]:
        """Those nobody has leased and that are due, in the order of the pushes."""
        while self._later and self._later[0][0] <= now:
            at, number = heapq.heappop(self._later)
            item = self.items.get(number)
            if item is not None and item.token is None and item.at == at:
                heapq.heappush(self._ready, number)
        while self._ready:
            item = self.items.get(heapq.heappop(self._ready))
            if item is not None and item.token is None and item.at <= now:
                yield item

    def take(self, limit: int, lease: float, now: float, name: str) -> list[Item]:
        """Lease up to `limit` of them: what lapsed first, then what is visible."""
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
        """The message whose lease this handle still is. One that ran out is its reader's until somebody takes it."""
        number, _, token = handle.partition("/")
        item = self.items.get(int(number)) if number.isdigit() else None
        return item if item is not None and item.token == token else None


def handle_of(item: Item) -> str:
    return f"{item.number}/{item.token}"
