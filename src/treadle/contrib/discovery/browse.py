"""Finds servers on the local network by the kind of service that they announce, and chooses a queue with its store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from msgspec import Struct

from treadle.contrib.discovery import packet as dns
from treadle.contrib.discovery.link import Link, Network, Receiver

FIRST_PAUSE: Final = 0.3  # s until the query is repeated; doubled each time
LONGEST_PAUSE: Final = 30.0  # s
# The original clients search for two names: with a colon, as documented, and without, as released.
QUEUES: Final = ("_serval:queue._tcp.local.", "_serval_queue._tcp.local.")
BLOBS: Final = ("_serval_storage._tcp.local.",)
A_STORE_MORE: Final = 1.0  # s to wait for a store after finding a queue without its own
MOST: Final = 5_000  # records kept at once; bounds the memory that a noisy network can take


class Found(Struct, frozen=True, kw_only=True):
    """An announced service.

    type       its kind, such as `_serval_queue._tcp.local.`
    instance   its name among others of that kind
    addresses  its addresses, loopback first
    """

    type: str
    instance: str
    host: str
    port: int
    addresses: tuple[str, ...]
    properties: dict[str, str]

    @property
    def url(self) -> str:
        """The URL of the service, with the port of its property `http_port` if it has one."""
        http_port = self.properties.get("http_port", "")
        port = int(http_port) if http_port.isdecimal() and 0 < int(http_port) < 65536 else self.port
        address = self.addresses[0]
        scheme = "https" if self.properties.get("scheme") == "https" else "http"
        return f"{scheme}://{f'[{address}]' if ':' in address else address}:{port}"


class Browser:
    """Searches for services of some kinds inside an `async with` block. Raises NoMulticast on entry.

    It also uses answers to the queries of other programs.
    """

    def __init__(self, types: Sequence[str], where: Network) -> None:
        self._types = {dns.folded(dns.name_of(kind)): kind for kind in types}
        self._link = Link(self._hear, self._ask, where)
        self._facts: dict[tuple[dns.Name, int, object], tuple[dns.Answer, float]] = {}  # each with its expiry time
        self._changed = asyncio.Event()

    async def __aenter__(self) -> Self:
        await self._link.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self._link.__aexit__(kind, error, tb)

    def found(self) -> list[Found]:
        """The services that are known now, in the order of their arrival."""
        now = asyncio.get_running_loop().time()
        alive = [fact for fact, until in self._facts.values() if until > now]
        services: list[Found] = []
        for fact in alive:
            kind = self._types.get(dns.folded(fact.name))
            if fact.kind == dns.PTR and kind is not None and isinstance(fact.data, tuple):
                one = _service(kind, fact.data, alive)
                if one is not None:
                    services.append(one)
        return services

    async def changes(self) -> AsyncIterator[list[Found]]:
        """Yield the known services now and after each change."""
        while True:
            self._changed.clear()
            yield self.found()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), self._until_next_end())

    async def until(self, enough: Callable[[list[Found]], bool], timeout: float) -> list[Found]:
        """The known services as soon as `enough` accepts them, else after `timeout` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                async for services in self.changes():
                    if enough(services):
                        return services
        return self.found()

    def _until_next_end(self) -> float | None:
        """Seconds until the next record expires, as the records of a killed server do; None if there is none."""
        now = asyncio.get_running_loop().time()
        ends = [until for _, until in self._facts.values() if until > now]
        return min(ends) - now if ends else None

    async def _ask(self) -> None:
        pause = FIRST_PAUSE
        questions = tuple(dns.Question(kind, dns.PTR) for kind in self._types)
        while True:
            lacking = tuple(self._lacking())
            for ear in self._link.ears:
                ear.say(dns.Packet(questions=(*questions, *lacking)))
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _lacking(self) -> Iterable[dns.Question]:
        """Questions for the records that known services still lack."""
        alive = [fact for fact, _ in self._facts.values()]
        for fact in alive:
            if fact.kind == dns.PTR and dns.folded(fact.name) in self._types and isinstance(fact.data, tuple):
                target = _first(alive, fact.data, dns.SRV)
                if target is None:
                    yield dns.Question(fact.data, dns.SRV)
                elif isinstance(target.data, dns.Target) and not _addresses(target.data.host, alive):
                    yield dns.Question(target.data.host, dns.A)

    def _hear(self, packet: dns.Packet, ear: Receiver, sender: tuple[str, int]) -> None:
        if not packet.is_response:
            return
        now, changed = asyncio.get_running_loop().time(), False
        for fact in (*packet.answers, *packet.more):
            if fact.kind not in (dns.PTR, dns.SRV, dns.TXT, dns.A, dns.AAAA) or not self._concerns(fact):
                continue
            key = (dns.folded(fact.name), fact.kind, _apart(fact))
            known = self._facts.get(key)
            if not fact.ttl:
                changed |= self._facts.pop(key, None) is not None
                continue
            changed |= known is None or known[0].data != fact.data
            self._facts[key] = (fact, now + fact.ttl)
        while len(self._facts) > MOST:
            del self._facts[next(iter(self._facts))]
        if changed:
            self._changed.set()

    def _concerns(self, fact: dns.Answer) -> bool:
        name = dns.folded(fact.name)
        return fact.kind in (dns.A, dns.AAAA) or any(name[-len(kind) :] == kind for kind in self._types)


def _apart(fact: dns.Answer) -> object:
    """The part of the key that distinguishes records of the same name and kind, such as several services or
    addresses."""
    if fact.kind == dns.PTR and isinstance(fact.data, tuple):
        return dns.folded(fact.data)
    return fact.data if fact.kind in (dns.A, dns.AAAA) else None


def _first(facts: Sequence[dns.Answer], name: dns.Name, kind: int) -> dns.Answer | None:
    wanted = dns.folded(name)
    return next((fact for fact in facts if fact.kind == kind and dns.folded(fact.name) == wanted), None)


def _addresses(host: dns.Name, facts: Sequence[dns.Answer]) -> list[str]:
    wanted = dns.folded(host)
    addresses = [str(fact.data) for fact in facts if fact.kind in (dns.A, dns.AAAA) and dns.folded(fact.name) == wanted]
    return sorted(addresses, key=lambda address: (not address.startswith("127."), ":" in address))


def _service(kind: str, full: dns.Name, facts: Sequence[dns.Answer]) -> Found | None:
    """One service; None while a record that is needed to reach it is missing."""
    target, text = _first(facts, full, dns.SRV), _first(facts, full, dns.TXT)
    if target is None or not isinstance(target.data, dns.Target):
        return None
    addresses = _addresses(target.data.host, facts)
    if not addresses:
        return None
    properties = text.data if text is not None and isinstance(text.data, dict) else {}
    return Found(
        type=kind,
        instance=full[0],
        host=".".join(target.data.host),
        port=target.data.port,
        addresses=tuple(addresses),
        properties=properties,
    )


class Whereabouts(Struct, frozen=True):
    """The URLs of a queue and of the store for its blobs."""

    queue: str
    store: str


async def find(timeout: float, where: Network) -> Whereabouts | None:
    """The first queue that answers, with the store of the same server, else any store, else the queue's own URL.

    None if no queue answers within `timeout` seconds. Raises NoMulticast.
    """
    async with Browser((*QUEUES, *BLOBS), where) as browser:
        services = await browser.until(lambda all: any(service.type in QUEUES for service in all), timeout)
        queue = next((service for service in services if service.type in QUEUES), None)
        if queue is None:
            return None
        if _own_store(queue, services) is None:
            services = await browser.until(lambda all: any(service.type in BLOBS for service in all), A_STORE_MORE)
        store = _own_store(queue, services) or next((service for service in services if service.type in BLOBS), None)
        return Whereabouts(queue.url, store.url if store is not None else queue.url)


def _own_store(queue: Found, services: list[Found]) -> Found | None:
    return next((service for service in services if service.type in BLOBS and service.instance == queue.instance), None)
