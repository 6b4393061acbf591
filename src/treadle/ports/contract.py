"""The contract of the three ports, which a user implements to run Treadle on other systems.

`treadle_testkit.ports` tests it. Methods may be coroutines or plain functions; plain ones are called in a thread. All
values are texts. A method that fails raises. After any error it is unknown whether the call was carried out, and the
call is repeated.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, runtime_checkable

from msgspec import Struct

from treadle.core.errors import BadOption, TreadleError

Listener = Callable[[str], None]
"""Called with each published text, on the event loop; must not block. A port logs its exceptions."""


class Pulled(Struct, frozen=True):
    """One leased message: `handle` names the lease; `attempt` is the number of its leases so far, from 1.

    A release takes its attempt back, unless the system itself counts deliveries.
    """

    body: str
    handle: str
    attempt: int = 1


class Queue(Protocol):
    """A durable log of messages, each leased to one reader at a time.

    A pushed message is kept until it is acked or dead-lettered. When its lease expires, it becomes visible again.
    Optional: `DeadLetters` and `Sized`; `max_delay` and `max_lease`, in seconds (None or missing: no bound), above
    which the system shortens delays and leases; and `close()`, after which the next call connects again.
    """

    async def push(self, body: str, *, delay: float = 0.0, dedupe_key: str | None = None) -> None:
        """Add a message, visible in `delay` seconds; durable when it returns.

        dedupe_key  while a message with this key is stored, no other one is added. A system without this feature may
                    ignore it: callers must accept duplicates.
        """
        ...

    async def pop(self, limit: int, lease: float) -> list[Pulled]:
        """Up to `limit` messages, leased for `lease` seconds; those whose lease expired come before new ones. Fewer, or
        none, do not mean that the queue is empty."""
        ...

    async def extend(self, handle: str, lease: float) -> bool:
        """Let the lease end `lease` seconds from now. False: this reader no longer held it; nothing has changed."""
        ...

    async def ack(self, handle: str) -> bool:
        """Delete the message. False: this reader no longer held the lease; nothing has changed."""
        ...

    async def release(self, handle: str, delay: float = 0.0) -> bool:
        """Return the message to the queue, visible in `delay` seconds. False: as for `ack`."""
        ...


@runtime_checkable
class DeadLetters(Protocol):
    """A queue that keeps what its readers cannot read. In other queues, Treadle logs such a message and deletes it."""

    async def dead_letter(self, handle: str, reason: str) -> bool:
        """Move the message to the dead letters, with the reason. False: as for `Queue.ack`."""
        ...


@runtime_checkable
class Sized(Protocol):
    """A queue that counts its messages. Treadle itself does not use it; a scaler may."""

    async def size(self) -> int:
        """The number of visible, delayed and leased messages. May be an estimate."""
        ...


class PubSub(Protocol):
    """Publish and subscribe, best effort: messages may be lost, and nothing may depend on them."""

    async def publish(self, channel: str, text: str) -> None:
        """Send a text to all listeners of the channel, in this process and in others."""
        ...

    async def subscribe(self, channel: str, listener: Listener) -> Callable[[], Awaitable[None] | None]:
        """Call the listener for each text published from now on. Returns a function that ends this. After a lost
        connection it subscribes again by itself.

        An exception of the listener is logged. It does not reach the publisher or other listeners, and the listener
        still receives the next text.
        """
        ...


class Store(Protocol):
    """Texts under keys. Each key is linearizable: every later call, of any process, sees the effect of a call.

    Keys have up to 400 characters of `A-Za-z0-9._:@-` in addition to the namespace. Optional: `increment`, `now`,
    `alone`, and `close()`, after which the next call connects again.
    """

    async def get(self, key: str) -> str | None: ...

    async def set(self, key: str, value: str, ttl: float | None = None) -> None:
        """Store the value; durable when it returns. ttl: s after which the key is deleted."""
        ...

    async def delete(self, key: str) -> None:
        """Delete the key. A missing key is not an error."""
        ...

    async def set_if_absent(self, key: str, value: str, ttl: float | None = None) -> bool:
        """Store the value unless the key exists. Of concurrent callers, only one gets True."""
        ...


@runtime_checkable
class Counting(Protocol):
    """A store that can count. Treadle's storage does not use it, because repeating a call counts twice."""

    async def increment(self, key: str, by: int = 1, ttl: float | None = None) -> int:
        """Add to an integer (0 if the key is missing) and set its ttl, in one step. Returns the sum."""
        ...


@runtime_checkable
class Timed(Protocol):
    """A store with a clock. Without one, the clocks of all machines must agree to much less than a lease."""

    async def now(self) -> float:
        """Seconds since 1970, by the store's clock."""
        ...


@runtime_checkable
class Sole(Protocol):
    """A store of which one process at a time runs the jobs."""

    async def alone(self, user: str) -> bool:
        """Reserve the jobs of this namespace for this process until it ends or closes the store. Raises while another
        process has them. True: what other processes ran has stopped; False: this process has reserved them before."""
        ...


class CorruptQueue(TreadleError):
    """The file of a queue has content that no crash explains. `where` names the file; nothing was changed."""

    def __init__(self, where: str, problem: str) -> None:
        self.where, self.problem = where, problem
        super().__init__(f"{where}: {problem}; restore a copy, or open the queue with corrupt='aside' to start empty")


class Ports(Struct, frozen=True):
    """A queue, a pub/sub and a store."""

    queue: Any
    pubsub: Any
    store: Any


METHODS = {
    "queue": ("push", "pop", "extend", "ack", "release"),
    "pubsub": ("publish", "subscribe"),
    "store": ("get", "set", "delete", "set_if_absent"),
}


def three(ports: Any) -> Ports:
    """The three ports, each with its required methods. Raises BadOption, which names what is missing."""
    if isinstance(ports, Ports):
        ports = (ports.queue, ports.pubsub, ports.store)
    if not isinstance(ports, tuple | list) or len(ports) != 3:
        shown = f"{len(ports)} of them" if isinstance(ports, tuple | list) else repr(ports)
        raise BadOption(
            "ports",
            f"expected (queue, pubsub, store), found {shown}; give all three: a missing one would be private to "
            "this process, and each job would be split between two places",
        )
    for (name, methods), port in zip(METHODS.items(), ports, strict=True):
        missing = [method for method in methods if not callable(getattr(port, method, None))]
        if missing:
            raise BadOption("ports", f"expected a {name} with {', '.join(missing)}, found {port!r}")
    queue, _, store = ports
    if getattr(queue, "outlives", False) and getattr(store, "forgets", False):
        raise BadOption(
            "ports",
            f"the queue {type(queue).__name__} survives this process, but the store {type(store).__name__} does not: "
            "acknowledged jobs would be lost at the next start; use file_store(path), or file_backend(folder)",
        )
    return Ports(*ports)


def name_of_space(namespace: str | None, ports: Any) -> str | None:
    """The namespace, if it is valid and there are ports to apply it to. Raises BadOption."""
    if namespace is None:
        return None
    if ports is None:
        raise BadOption("namespace", "needs ports=; in a URL, give ?ns=name (Redis) or ?schema=name (PostgreSQL)")
    if not re.fullmatch(r"[A-Za-z0-9._@:-]{1,100}", str(namespace)):
        raise BadOption("namespace", f"expected up to 100 characters of A-Z a-z 0-9 . _ @ : -, found {namespace!r}")
    return namespace
