"""Finds servers on the local network by the kind of service that they announce."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from msgspec import Struct

from treadle.contrib.discovery.link import Link, Network, Receiver
from treadle.contrib.discovery.packet import (
    AAAA,
    PTR,
    SRV,
    TXT,
    A,
    Answer,
    Name,
    Packet,
    Question,
    Target,
    folded,
    name_of,
)

FIRST_PAUSE: Final = 0.3  # s until the query is repeated; doubled each time
LONGEST_PAUSE: Final = 30.0  # s
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
        self._types = {folded(name_of(kind)): kind for kind in types}
        self._link = Link(self._hear, self._ask, where)
        self._facts: dict[tuple[Name, int, object], tuple[Answer, float]] = {}  # with their expiry time
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
            kind = self._types.get(folded(fact.name))
            if fact.kind == PTR and kind is not None and isinstance(fact.data, tuple):
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
        questions = tuple(Question(kind, PTR) for kind in self._types)
        while True:
            lacking = tuple(self._lacking())
            for ear in self._link.ears:
                ear.say(Packet(questions=(*questions, *lacking)))
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _lacking(self) -> Iterable[Question]:
        """The queries for missing records of services whose names are known."""
        alive = [fact for fact, _ in self._facts.values()]
        for fact in alive:
            if fact.kind == PTR and folded(fact.name) in self._types and isinstance(fact.data, tuple):
                target = _first(alive, fact.data, SRV)
                if target is None:
                    yield Question(fact.data, SRV)
                elif isinstance(target.data, Target) and not _addresses(target.data.host, alive):
                    yield Question(target.data.host, A)

    def _hear(self, packet: Packet, ear: Receiver, sender: tuple[str, int]) -> None:
        if not packet.is_response:
            return
        now, changed = asyncio.get_running_loop().time(), False
        for fact in (*packet.answers, *packet.more):
            if fact.kind not in (PTR, SRV, TXT, A, AAAA) or not self._concerns(fact):
                continue
            key = (folded(fact.name), fact.kind, _apart(fact))
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

    def _concerns(self, fact: Answer) -> bool:
        name = folded(fact.name)
        return fact.kind in (A, AAAA) or any(name[-len(kind) :] == kind for kind in self._types)


def _apart(fact: Answer) -> object:
    """The part of the key that separates records of one name and kind: several services, several addresses."""
    if fact.kind == PTR and isinstance(fact.data, tuple):
        return folded(fact.data)
    return fact.data if fact.kind in (A, AAAA) else None


def _first(facts: Sequence[Answer], name: Name, kind: int) -> Answer | None:
    wanted = folded(name)
    return next((fact for fact in facts if fact.kind == kind and folded(fact.name) == wanted), None)


def _addresses(host: Name, facts: Sequence[Answer]) -> list[str]:
    wanted = folded(host)
    addresses = [str(fact.data) for fact in facts if fact.kind in (A, AAAA) and folded(fact.name) == wanted]
    return sorted(addresses, key=lambda address: (not address.startswith("127."), ":" in address))


def _service(kind: str, full: Name, facts: Sequence[Answer]) -> Found | None:
    """One service; None while a record that is needed to reach it is missing."""
    target, text = _first(facts, full, SRV), _first(facts, full, TXT)
    if target is None or not isinstance(target.data, Target):
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
