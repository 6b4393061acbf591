"""Announcing a server to the local network, and taking it back: a small responder of multicast DNS.

Without it runners would have to be told the address of the queue. It is ours because the usual library refuses the
name under which clients of that queue look for it, `_serval:queue`, for its colon.
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

from treadle.discovery.link import LOOPBACK, Link, Place, Receiver, networks
from treadle.discovery.packet import (
    AAAA,
    ANY,
    PTR,
    SRV,
    TXT,
    A,
    Answer,
    Data,
    Name,
    Packet,
    Question,
    Target,
    folded,
    name_of,
)

log = logging.getLogger("treadle.discovery")

TTL: Final = 120  # s others remember what they heard
PROBES: Final = 3  # times we ask whether the name is taken
PROBE_PAUSE: Final = 0.25  # s
ANNOUNCEMENTS: Final = 2
ANNOUNCE_PAUSE: Final = 1.0  # s
MANNERS: Final = (0.02, 0.12)  # s: an answer several may give comes at a random moment
TYPES: Final = name_of("_services._dns-sd._udp.local.")  # asked for what kinds of services there are
LEGACY_TTL: Final = 10  # s, for askers that do not listen for changes


class Announcement:
    """A server on this machine, known to the networks from `async with` to its end.

    types       the kinds of service, such as `_serval_queue._tcp.local.`
    host, port  where it listens: an address of this machine, or 0.0.0.0 or :: for all of them
    properties  what else is told of it (TXT); `instance_id` is added
    Raises NoMulticast when it is entered.
    """

    def __init__(self, types: Sequence[str], host: str, port: int, properties: dict[str, str], where: Place) -> None:
        self._types, self._host, self._port = [name_of(each) for each in types], host, port
        self._properties, self._name = properties, uuid.uuid4()
        self._taken = asyncio.Event()
        self._link = Link(self._hear, self._tell, where, _networks_of(host))
        self._is_ours = False  # until nobody has objected to the name, no question is answered

    @property
    def instance(self) -> str:
        """The name of this one among others of its kind."""
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
                ear.say(Packet(is_response=True, answers=tuple(self._all(ear, ttl=0))))
        self._is_ours = False
        await self._link.__aexit__(kind, error, tb)

    async def _tell(self) -> None:
        """Ask whether the name is free, then say that it is ours."""
        while not await self._probe():
            self._name = uuid.uuid4()
            self._taken.clear()  # not before the first probe: an objection may be there already
        self._is_ours = True
        for number in range(ANNOUNCEMENTS):
            if number:
                await asyncio.sleep(ANNOUNCE_PAUSE)
            for ear in self._link.ears:
                ear.say(Packet(is_response=True, answers=tuple(self._all(ear))))

    async def _probe(self) -> bool:
        for _ in range(PROBES):
            for ear in self._link.ears:
                asked = tuple(Question((self.instance, *kind), ANY, alone=True) for kind in self._types)
                wanted = tuple(each for each in self._all(ear) if each.kind == SRV)
                ear.say(Packet(questions=asked, proposed=wanted))
            try:
                await asyncio.wait_for(self._taken.wait(), PROBE_PAUSE)
            except TimeoutError:
                continue
            log.warning("another service is called %s: choosing another name", self.instance)
            return False
        return True

    # --- what is said

    def _all(self, ear: Receiver, ttl: int = TTL) -> list[Answer]:
        """All there is to know, as it looks from one network."""
        found: list[Answer] = []
        target = Target(self._hostname(), self._port)
        told = {**self._properties, "instance_id": self.instance}
        for kind in self._types:
            full = (self.instance, *kind)
            found += [
                Answer(kind, PTR, full, ttl),
                Answer(full, SRV, target, ttl, flush=True),
                Answer(full, TXT, told, ttl, flush=True),
            ]
        if ttl:
            found += [Answer(TYPES, PTR, kind, ttl) for kind in self._types]
        return [*found, *(self._addresses(ear, ttl))]

    def _hostname(self) -> Name:
        return (f"treadle-{self._name.hex[:12]}", "local")

    def _addresses(self, ear: Receiver, ttl: int) -> list[Answer]:
        """How it is reached from there."""
        at = ipaddress.ip_address(self._host)
        if not at.is_unspecified:
            return [Answer(self._hostname(), A if at.version == 4 else AAAA, str(at), ttl, flush=True)]
        return [Answer(self._hostname(), A, ear.address, ttl, flush=True)]

    # --- what is heard

    def _hear(self, packet: Packet, ear: Receiver, sender: tuple[str, int]) -> None:
        if packet.is_response:
            if not self._is_ours:
                self._hear_of_others(packet, ear)
        elif self._is_ours:
            self._answer(packet, ear, sender)

    def _hear_of_others(self, packet: Packet, ear: Receiver) -> None:
        ours = {folded(each.name): each.data for each in self._all(ear) if each.kind == SRV}
        for answer in packet.answers:
            mine = ours.get(folded(answer.name))
            if mine is not None and answer.kind == SRV and answer.ttl and answer.data != mine:
                self._taken.set()

    def _answer(self, packet: Packet, ear: Receiver, sender: tuple[str, int]) -> None:
        known = {(folded(each.name), each.kind, _key(each.data)) for each in packet.answers if each.ttl >= TTL / 2}
        everything = self._all(ear)
        answers = [
            each
            for each in everything
            if any(_fits(question, each) for question in packet.questions)
            and (folded(each.name), each.kind, _key(each.data)) not in known
        ]
        if not answers:
            return
        more = tuple(each for each in everything if each not in answers and each.name != TYPES)
        if sender[1] != ear.port:  # an asker that is not of multicast DNS: as a plain server would
            short = [Answer(each.name, each.kind, each.data, LEGACY_TTL) for each in (*answers, *more)]
            first, rest = tuple(short[: len(answers)]), tuple(short[len(answers) :])
            plain = Packet(id=packet.id, is_response=True, questions=packet.questions, answers=first, more=rest)
            ear.say(plain, sender)
            return
        said = Packet(is_response=True, answers=tuple(answers), more=more)
        if all(question.alone for question in packet.questions):
            ear.say(said, sender)
        elif all(each.flush for each in answers):
            ear.say(said)
        else:
            asyncio.get_running_loop().call_later(random.uniform(*MANNERS), self._say_later, ear, said)

    def _say_later(self, ear: Receiver, said: Packet) -> None:
        if self._is_ours:
            ear.say(said)


def _fits(question: Question, answer: Answer) -> bool:
    return question.kind in (answer.kind, ANY) and folded(question.name) == folded(answer.name)


def _key(data: Data) -> object:
    return folded(data) if isinstance(data, tuple) else None


def _networks_of(host: str) -> list[str] | None:
    """The networks from which a server at this address is reached; None: all of them."""
    if host in ("0.0.0.0", "::"):
        return None
    if ipaddress.ip_address(host).is_loopback:
        return [LOOPBACK]
    return [host] if ":" not in host else networks()
