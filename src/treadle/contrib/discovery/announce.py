"""Announces a server on the local network, and withdraws it: a small responder for multicast DNS.

The usual library cannot be used, because it refuses the colon in `_serval:queue`, the name that clients search for.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import random
import uuid
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

from treadle.contrib.discovery import packet as dns
from treadle.contrib.discovery.link import LOOPBACK, Link, Network, Receiver, networks

log = logging.getLogger("treadle.discovery")

TTL: Final = 120  # s that other machines cache the announcement
PROBES: Final = 3  # queries whether the name is taken
PROBE_PAUSE: Final = 0.25  # s
ANNOUNCEMENTS: Final = 2
ANNOUNCE_PAUSE: Final = 1.0  # s
MANNERS: Final = (0.02, 0.12)  # s: random delay of an answer that several responders may send
TYPES: Final = dns.name_of("_services._dns-sd._udp.local.")  # the query for all kinds of services
LEGACY_TTL: Final = 10  # s, for resolvers that do not listen for changes


class Announcement:
    """Announces a server of this machine inside an `async with` block. Raises NoMulticast on entry.

    types       the kinds of service, such as `_serval_queue._tcp.local.`
    host, port  the address that it listens on: one of this machine, or 0.0.0.0 or :: for all of them
    properties  further properties (TXT); `instance_id` is added
    """

    def __init__(self, types: Sequence[str], host: str, port: int, properties: dict[str, str], where: Network) -> None:
        self._types, self._host, self._port = [dns.name_of(kind) for kind in types], host, port
        self._properties, self._name = properties, uuid.uuid4()
        self._taken = asyncio.Event()
        self._link = Link(self._hear, self._tell, where, _networks_of(host))
        self._is_ours = False  # False: the probes for the name are not over, so no question is answered

    @property
    def instance(self) -> str:
        """The name of this server among others of its kind."""
        return str(self._name)

    async def __aenter__(self) -> Self:
        await self._link.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self._link.quiet()
        if self._is_ours:
            for ear in self._link.ears:
                ear.say(dns.Packet(is_response=True, answers=tuple(self._all(ear, ttl=0))))
        self._is_ours = False
        await self._link.__aexit__(kind, error, tb)

    async def _tell(self) -> None:
        """Probe whether the name is free, then announce it."""
        while not await self._probe():
            self._name = uuid.uuid4()
            self._taken.clear()  # not before the first probe: a conflict may have been found already
        self._is_ours = True
        for number in range(ANNOUNCEMENTS):
            if number:
                await asyncio.sleep(ANNOUNCE_PAUSE)
            for ear in self._link.ears:
                ear.say(dns.Packet(is_response=True, answers=tuple(self._all(ear))))

    async def _probe(self) -> bool:
        for _ in range(PROBES):
            for ear in self._link.ears:
                questions = tuple(dns.Question((self.instance, *kind), dns.ANY, alone=True) for kind in self._types)
                wanted = tuple(record for record in self._all(ear) if record.kind == dns.SRV)
                ear.say(dns.Packet(questions=questions, proposed=wanted))
            try:
                await asyncio.wait_for(self._taken.wait(), PROBE_PAUSE)
            except TimeoutError:
                continue
            log.warning("another service has the name %s; choosing another one", self.instance)
            return False
        return True

    # --- sending

    def _all(self, ear: Receiver, ttl: int = TTL) -> list[dns.Answer]:
        """All records of the server for one network."""
        records: list[dns.Answer] = []
        target = dns.Target(self._hostname(), self._port)
        properties = {**self._properties, "instance_id": self.instance}
        for kind in self._types:
            full = (self.instance, *kind)
            records += [
                dns.Answer(kind, dns.PTR, full, ttl),
                dns.Answer(full, dns.SRV, target, ttl, flush=True),
                dns.Answer(full, dns.TXT, properties, ttl, flush=True),
            ]
        if ttl:
            records += [dns.Answer(TYPES, dns.PTR, kind, ttl) for kind in self._types]
        return [*records, *(self._addresses(ear, ttl))]

    def _hostname(self) -> dns.Name:
        return (f"treadle-{self._name.hex[:12]}", "local")

    def _addresses(self, ear: Receiver, ttl: int) -> list[dns.Answer]:
        """The address records for one network."""
        address = ipaddress.ip_address(self._host)
        kind, text = (dns.A if address.version == 4 else dns.AAAA), str(address)
        if address.is_unspecified:
            kind, text = dns.A, ear.address
        return [dns.Answer(self._hostname(), kind, text, ttl, flush=True)]

    # --- receiving

    def _hear(self, packet: dns.Packet, ear: Receiver, sender: tuple[str, int]) -> None:
        if packet.is_response:
            if not self._is_ours:
                self._hear_of_others(packet, ear)
        elif self._is_ours:
            self._answer(packet, ear, sender)

    def _hear_of_others(self, packet: dns.Packet, ear: Receiver) -> None:
        ours = {dns.folded(record.name): record.data for record in self._all(ear) if record.kind == dns.SRV}
        for answer in packet.answers:
            mine = ours.get(dns.folded(answer.name))
            if mine is not None and answer.kind == dns.SRV and answer.ttl and answer.data != mine:
                self._taken.set()

    def _answer(self, packet: dns.Packet, ear: Receiver, sender: tuple[str, int]) -> None:
        known = {_identity(record) for record in packet.answers if record.ttl >= TTL / 2}
        everything = self._all(ear)
        answers = [
            record
            for record in everything
            if any(_fits(question, record) for question in packet.questions) and _identity(record) not in known
        ]
        if not answers:
            return
        more = tuple(record for record in everything if record not in answers and record.name != TYPES)
        if sender[1] != ear.port:  # the query comes from a plain DNS resolver: answer as a plain server does
            short = [dns.Answer(record.name, record.kind, record.data, LEGACY_TTL) for record in (*answers, *more)]
            first, rest = tuple(short[: len(answers)]), tuple(short[len(answers) :])
            plain = dns.Packet(id=packet.id, is_response=True, questions=packet.questions, answers=first, more=rest)
            ear.say(plain, sender)
            return
        response = dns.Packet(is_response=True, answers=tuple(answers), more=more)
        if all(question.alone for question in packet.questions):
            ear.say(response, sender)
        elif all(record.flush for record in answers):
            ear.say(response)
        else:
            asyncio.get_running_loop().call_later(random.uniform(*MANNERS), self._say_later, ear, response)

    def _say_later(self, ear: Receiver, response: dns.Packet) -> None:
        if self._is_ours:
            ear.say(response)


def _fits(question: dns.Question, answer: dns.Answer) -> bool:
    return question.kind in (answer.kind, dns.ANY) and dns.folded(question.name) == dns.folded(answer.name)


def _identity(record: dns.Answer) -> object:
    data = dns.folded(record.data) if isinstance(record.data, tuple) else None
    return dns.folded(record.name), record.kind, data


def _networks_of(host: str) -> list[str] | None:
    """The networks that can reach a server on this address; None: all of them."""
    if host in ("0.0.0.0", "::"):
        return None
    if ipaddress.ip_address(host).is_loopback:
        return [LOOPBACK]
    return [host] if ":" not in host else networks()
