"""Encodes and decodes the packets of multicast DNS.

Names are tuples of labels with any characters, because `_serval:queue` is not a legal service name and libraries refuse
it.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

A, PTR, TXT, AAAA, SRV, ANY = 1, 12, 16, 28, 33, 255
INTERNET: Final = 1
TOP_BIT: Final = 0x8000  # a class with it means "answer by unicast" in a question, "flush cached records" in an answer
RESPONSE: Final = 0x8400  # flags: an authoritative answer
MOST_LABELS: Final = 64  # labels of one name; more come from a loop of pointers
BIGGEST: Final = 9_000  # bytes of a packet

Name = tuple[str, ...]


class BadPacket(Exception):
    """The bytes are not a packet that can be decoded. Receivers drop them."""


class Target(Struct, frozen=True):
    """The data of an SRV record: host and port of a service."""

    host: Name
    port: int


Data = Name | Target | dict[str, str] | str | bytes  # data of PTR, SRV, TXT, A and AAAA, and other records


class Question(Struct, frozen=True):
    name: Name
    kind: int
    alone: bool = False  # the answer may be sent by unicast


class Answer(Struct, frozen=True):
    """One record. ttl: seconds of validity; 0 withdraws it. flush: it replaces cached records of its name and kind."""

    name: Name
    kind: int
    data: Data
    ttl: int
    flush: bool = False


class Packet(Struct, frozen=True, kw_only=True):
    """Questions or answers. `proposed`: the records that a probe wants to own."""

    id: int = 0
    is_response: bool = False
    questions: tuple[Question, ...] = ()
    answers: tuple[Answer, ...] = ()
    proposed: tuple[Answer, ...] = ()
    more: tuple[Answer, ...] = ()


def name_of(text: str) -> Name:
    """Split a name such as `_serval_queue._tcp.local.` into labels."""
    return tuple(text.rstrip(".").split("."))


def folded(name: Name) -> Name:
    """The name in lower case, because names are compared without regard to case."""
    return tuple(label.lower() for label in name)


# --- writing


class _Writer:
    """The encoded bytes so far, and the offsets of the names in them, for compression."""

    def __init__(self) -> None:
        self.out = bytearray()
        self._known: dict[Name, int] = {}

    def name(self, name: Name) -> None:
        for number in range(len(name)):
            rest = name[number:]
            offset = self._known.get(rest)
            if offset is not None:
                self.out += struct.pack("!H", 0xC000 | offset)
                return
            if len(self.out) < 0x3FFF:
                self._known[rest] = len(self.out)
            label = rest[0].encode()
            if not 0 < len(label) < 64:
                raise ValueError(f"expected a label of 1 to 63 bytes, found {rest[0]!r}")
            self.out += bytes([len(label)]) + label
        self.out.append(0)

    def question(self, question: Question) -> None:
        self.name(question.name)
        self.out += struct.pack("!HH", question.kind, INTERNET | (TOP_BIT if question.alone else 0))

    def answer(self, answer: Answer) -> None:
        self.name(answer.name)
        self.out += struct.pack("!HHI", answer.kind, INTERNET | (TOP_BIT if answer.flush else 0), answer.ttl)
        start = len(self.out)
        self.out += b"\0\0"
        self._data(answer.data)
        struct.pack_into("!H", self.out, start, len(self.out) - start - 2)

    def _data(self, data: Data) -> None:
        match data:
            case Target():
                self.out += struct.pack("!HHH", 0, 0, data.port)
                self.name(data.host)
            case tuple():
                self.name(data)
            case dict():
                pairs = [f"{key}={value}".encode()[:255] for key, value in data.items()] or [b""]
                for pair in pairs:
                    self.out += bytes([len(pair)]) + pair
            case str():
                self.out += ipaddress.ip_address(data).packed
            case bytes():
                self.out += data


def encode(packet: Packet) -> bytes:
    """Encode a packet."""
    writer = _Writer()
    counts = (len(packet.questions), len(packet.answers), len(packet.proposed), len(packet.more))
    writer.out += struct.pack("!HHHHHH", packet.id, RESPONSE if packet.is_response else 0, *counts)
    for question in packet.questions:
        writer.question(question)
    for answer in (*packet.answers, *packet.proposed, *packet.more):
        writer.answer(answer)
    return bytes(writer.out)


# --- reading


class _Reader:
    def __init__(self, raw: bytes) -> None:
        self.raw, self.at = raw, 0

    def unpack(self, form: str) -> tuple[int, ...]:
        fields = struct.unpack_from(form, self.raw, self.at)
        self.at += struct.calcsize(form)
        return fields

    def name(self) -> Name:
        labels: list[str] = []
        place, back = self.at, 0
        for _ in range(2 * MOST_LABELS):
            size = self.raw[place]
            if size >= 0xC0:
                back = back or place + 2
                place = (size & 0x3F) << 8 | self.raw[place + 1]
            elif size == 0:
                self.at = back or place + 1
                return tuple(labels)
            elif size > 63 or len(labels) == MOST_LABELS:
                break
            else:
                if place + 1 + size > len(self.raw):
                    break
                labels.append(self.raw[place + 1 : place + 1 + size].decode(errors="replace"))
                place += 1 + size
        raise BadPacket("a name without an end")

    def question(self) -> Question:
        name = self.name()
        kind, kind_class = self.unpack("!HH")
        return Question(name, kind, bool(kind_class & TOP_BIT))

    def answer(self) -> Answer:
        name = self.name()
        kind, kind_class, ttl, size = self.unpack("!HHIH")
        end = self.at + size
        if end > len(self.raw):
            raise BadPacket("truncated")
        data = self._data(kind, end)
        self.at = end
        return Answer(name, kind, data, ttl, bool(kind_class & TOP_BIT))

    def _data(self, kind: int, end: int) -> Data:
        if kind == PTR:
            return self.name()
        if kind == SRV:
            _, _, port = self.unpack("!HHH")
            return Target(self.name(), port)
        if kind == TXT:
            return self._pairs(end)
        raw = self.raw[self.at : end]
        if (kind, len(raw)) in ((A, 4), (AAAA, 16)):
            return str(ipaddress.ip_address(raw))
        return raw

    def _pairs(self, end: int) -> dict[str, str]:
        properties: dict[str, str] = {}
        while self.at < end:
            size = self.raw[self.at]
            pair = self.raw[self.at + 1 : min(self.at + 1 + size, end)].decode(errors="replace")
            self.at += 1 + size
            key, _, value = pair.partition("=")
            if key:
                properties.setdefault(key.lower(), value)
        return properties


def decode(raw: bytes) -> Packet:
    """Decode a packet. Raises BadPacket."""
    reader = _Reader(raw)
    try:
        id, flags, *counts = reader.unpack("!HHHHHH")
        if flags & 0x7800 or sum(counts) > 500:
            raise BadPacket("expected a standard query or response")
        questions = tuple(reader.question() for _ in range(counts[0]))
        answers: list[Sequence[Answer]] = [tuple(reader.answer() for _ in range(count)) for count in counts[1:]]
    except (IndexError, struct.error, ValueError) as error:
        raise BadPacket(str(error)) from None
    first, proposed, more = (tuple(records) for records in answers)
    return Packet(
        id=id, is_response=bool(flags & 0x8000), questions=questions, answers=first, proposed=proposed, more=more
    )
