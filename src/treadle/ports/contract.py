"""The three small interfaces somebody brings along to run Treadle on systems of their own.

Without it every broker would be written against guesses. What each method must do is said here, and tested by
`treadle.testing.ports`. Methods may be coroutines or plain functions; plain ones are run in a thread. All of them are
texts. A method that cannot do what it is asked raises: whatever it raises counts as "not known whether it was done",
and is asked again.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, runtime_checkable

from msgspec import Struct

from treadle.errors import BadOption, TreadleError

Listener = Callable[[str], None]
"""Is handed what was published; called on the event loop, must not wait."""


class Pulled(Struct, frozen=True):
    """One message, leased: `handle` names this lease; `attempt` counts the leases it has been given, 1 is the first.

    A release gives the attempt back where the system can: where it counts deliveries itself, it does not.
    """

    body: str
    handle: str
    attempt: int = 1


class Queue(Protocol):
    """A durable log of messages, each leased to one reader at a time.

    What was pushed is there until it is acked or set aside. A lease that ran out makes the message visible again.
    Optional, read if they are there (None or missing: no bound): `max_delay` and `max_lease`, in seconds, beyond which
    the system shortens what it is asked; and `close()`, after which the next call connects again.
    """

    async def push(self, body: str, *, delay: float = 0.0, dedupe_key: str | None = None) -> None:
        """Add a message, visible in `delay` seconds; durable when it returns.

        dedupe_key  while a message of that key is there, another one is not added. A system that has no such thing
                    may ignore it: who pushes must bear a message twice.
        """
        ...

    async def pop(self, limit: int, lease: float) -> list[Pulled]:
        """Up to `limit` messages, leased for so many seconds; those whose lease ran out come before fresh ones.
        Fewer, or none, mean nothing more than that."""
        ...

    async def extend(self, handle: str, lease: float) -> bool:
        """The lease ends so many seconds from now. False: it was not this reader's any more; nothing has changed."""
        ...

    async def ack(self, handle: str) -> bool:
        """The message is done with. False: the lease was not this reader's any more; nothing has changed."""
        ...

    async def release(self, handle: str, delay: float = 0.0) -> bool:
        """Give the message back, visible in `delay` seconds. False: as for `ack`."""
        ...

    async def dead_letter(self, handle: str, reason: str) -> bool:
        """Set the message aside for a person, with the reason. False: as for `ack`."""
        ...

    async def size(self) -> int:
        """How many messages there are: visible, delayed and leased ones. May be an estimate."""
        ...


class PubSub(Protocol):
    """Tells everybody who listens now. Best effort: what is lost is lost, and nothing may depend on it."""

    async def publish(self, channel: str, text: str) -> None:
        """Tell it to all who listen to the channel, in this process and others."""
        ...

    async def subscribe(self, channel: str, listener: Listener) -> Callable[[], Awaitable[None] | None]:
        """Hand on what is published from now on; answers what ends that. Listens by itself again once the
        connection is back."""
        ...


class Store(Protocol):
    """Texts under keys. Each key by itself is linearizable: what one call did, every later call of anybody sees.

    Keys are up to 400 characters of `A-Za-z0-9._:@-` and what the namespace brings. Optional: `increment`, `now`, and
    `close()`, after which the next call connects again.
    """

    async def get(self, key: str) -> str | None: ...

    async def set(self, key: str, value: str, ttl: float | None = None) -> None:
        """Durable when it returns. ttl: s after which the key is gone."""
        ...

    async def delete(self, key: str) -> None:
        """A key that is not there is not an error."""
        ...

    async def set_if_absent(self, key: str, value: str, ttl: float | None = None) -> bool:
        """Set it unless the key is there. Of all who try, one is told True."""
        ...


@runtime_checkable
class Counting(Protocol):
    """A store that can count. Treadle's storage does not need it: who asks again after a lost answer counts twice."""

    async def increment(self, key: str, by: int = 1, ttl: float | None = None) -> int:
        """Add to a whole number (0 if the key is not there), as one step with setting its ttl; answers the sum."""
        ...


@runtime_checkable
class Timed(Protocol):
    """A store that has a clock. Without one, the clocks of all machines must agree, to much less than a lease."""

    async def now(self) -> float:
        """Seconds since 1970 by the store's own clock."""
        ...


class CorruptQueue(TreadleError):
    """The file of a queue holds what no crash could have left there. `where` names it; nothing was changed."""

    def __init__(self, where: str, problem: str) -> None:
        self.where, self.problem = where, problem
        super().__init__(f"{where}: {problem}; put a copy back, or open the queue with corrupt='aside' to begin anew")


class Ports(Struct, frozen=True):
    """The three of them."""

    queue: Any
    pubsub: Any
    store: Any


METHODS = {
    "queue": ("push", "pop", "extend", "ack", "release", "dead_letter", "size"),
    "pubsub": ("publish", "subscribe"),
    "store": ("get", "set", "delete", "set_if_absent"),
}


def three(given: Any) -> Ports:
    """(queue, pubsub, store), each with its methods. Raises BadOption, naming what is missing and why it is needed."""
    if isinstance(given, Ports):
        given = (given.queue, given.pubsub, given.store)
    if not isinstance(given, tuple | list) or len(given) != 3:
        found = f"{len(given)} of them" if isinstance(given, tuple | list) else repr(given)
        raise BadOption(
            "ports",
            f"expected (queue, pubsub, store), found {found}; all three are needed: one that is left out would have to "
            "be a private one of this process, and jobs would be half here and half there",
        )
    for (name, methods), port in zip(METHODS.items(), given, strict=True):
        missing = [method for method in methods if not callable(getattr(port, method, None))]
        if missing:
            raise BadOption("ports", f"expected a {name} with {', '.join(missing)}, found {port!r}")
    queue, _, store = given
    if getattr(queue, "outlives", False) and getattr(store, "forgets", False):
        raise BadOption(
            "ports",
            f"the queue {type(queue).__name__} survives this process and the store {type(store).__name__} does not: "
            "acknowledged jobs would be forgotten at the next start; use file_store(path), or file_backend(folder)",
        )
    return Ports(*given)


def name_of_space(namespace: str | None, ports: Any) -> str | None:
    """The namespace, if it can be one and there are ports it could apply to. Raises BadOption."""
    if namespace is None:
        return None
    if ports is None:
        raise BadOption("namespace", "goes with ports=; in a URL it is ?ns=name (Redis) or ?schema=name (PostgreSQL)")
    if not re.fullmatch(r"[A-Za-z0-9._@:-]{1,100}", str(namespace)):
        raise BadOption("namespace", f"expected up to 100 characters of A-Z a-z 0-9 . _ @ : -, found {namespace!r}")
    return namespace
