"""The sockets of multicast DNS: one for each network of this machine, including loopback.

A socket per network ensures that an answer names an address that can be reached from the network of the question.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

from treadle.contrib.discovery.packet import BIGGEST, BadPacket, Packet, decode, encode
from treadle.core.errors import BadOption, TreadleError

GROUP: Final = "224.0.0.251"
PORT: Final = 5353
LOOPBACK: Final = "127.0.0.1"
ONLY_MINE: Final = 49  # Linux's IP_MULTICAST_ALL, missing in Python: 0 limits a socket to its own network
HOPS: Final = 255

Heard = Callable[[Packet, "Receiver", tuple[str, int]], None]


class NoMulticast(TreadleError):
    """No network of this machine lets a program join the multicast group. The message contains the reasons."""


class Network(tuple[str | None, int]):
    """The network of discovery: the address of one network card, or None for all of them, and the port."""

    __slots__ = ()


EVERYWHERE: Final = Network((None, PORT))


def place(environment: Mapping[str, str] = os.environ) -> Network:
    """Read TREADLE_MDNS: `ADDRESS`, `ADDRESS:PORT`, or unset. Raises BadOption."""
    named = environment.get("TREADLE_MDNS", "")
    if not named:
        return EVERYWHERE
    address, _, port = named.partition(":")
    try:
        socket.inet_aton(address)
        return Network((address, int(port or PORT)))
    except (OSError, ValueError):
        problem = f"expected the IPv4 address of a network interface, optionally with :PORT, found {named!r}"
        raise BadOption("TREADLE_MDNS", problem) from None


def networks() -> list[str]:
    """The IPv4 address of this machine on each of its networks."""
    addresses = _by_interface() if sys.platform in ("linux", "darwin") else []
    return list(dict.fromkeys([*(addresses or _outward()), LOOPBACK]))


def _by_interface() -> list[str]:
    import fcntl

    ask = 0x8915 if sys.platform == "linux" else 0xC0206921  # SIOCGIFADDR
    addresses = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe, ask, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue  # down, or without an IPv4 address
            addresses.append(socket.inet_ntoa(answer[20:24]))
    return addresses


def _outward() -> list[str]:
    """The address that this machine would send from; empty if it has no route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((GROUP, PORT))
        except OSError:
            return []
        return [probe.getsockname()[0]]


def _socket(address: str, port: int) -> socket.socket:
    """A socket that receives from and sends to the group on the network of this address."""
    opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        opened.setblocking(False)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "SO_REUSEPORT"):
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # other programs use the port, too
        if sys.platform == "linux":
            opened.setsockopt(socket.IPPROTO_IP, ONLY_MINE, 0)
        opened.bind(("", port))
        member = socket.inet_aton(GROUP) + socket.inet_aton(address)
        opened.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
        opened.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(address))
        opened.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)
        opened.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, HOPS)
    except OSError:
        opened.close()
        raise
    return opened


class Receiver(asyncio.DatagramProtocol):
    """Receives and sends packets on one network."""

    def __init__(self, address: str, port: int, heard: Heard) -> None:
        self.address, self.port, self._heard = address, port, heard
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, addr: tuple[Any, ...]) -> None:
        if len(data) <= BIGGEST:
            try:
                packet = decode(data)
            except BadPacket:
                return
            self._heard(packet, self, (addr[0], addr[1]))

    def error_received(self, exc: Exception) -> None:
        """Ignore errors: a network that is down raises one per packet, and may come back."""

    def say(self, packet: Packet, to: tuple[str, int] | None = None) -> None:
        """Send a packet to the group on this network, or to one address. Delivery is not guaranteed."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.sendto(encode(packet), to or (GROUP, self.port))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


class Link:
    """The sockets of all networks, or of one, inside an `async with` block.

    sender  a coroutine function that sends packets; its task ends before the sockets close
    only   addresses of the networks; None: all networks of this machine
    """

    def __init__(
        self,
        heard: Heard,
        sender: Callable[[], Coroutine[Any, Any, None]],
        where: Network,
        only: Sequence[str] | None = None,
    ) -> None:
        self._heard, self._sender, (self._address, self._port), self._only = heard, sender, where, only
        self._speaking: asyncio.Task[None] | None = None
        self.ears: list[Receiver] = []

    async def __aenter__(self) -> Self:
        wanted = [self._address] if self._address else list(self._only or networks())
        refused: list[str] = []
        loop = asyncio.get_running_loop()
        for address in wanted:
            try:
                opened = _socket(address, self._port)
            except OSError as error:
                refused.append(f"{address}: {error.strerror or error}")
                continue
            ear = Receiver(address, self._port, self._heard)
            await loop.create_datagram_endpoint(lambda ear=ear: ear, sock=opened)  # type: ignore[misc]
            self.ears.append(ear)
        if not self.ears:
            raise NoMulticast(f"multicast port {self._port} cannot be used ({'; '.join(refused)})")
        self._speaking = asyncio.create_task(self._sender())
        return self

    async def quiet(self) -> None:
        """End the task of `sender`. The caller may still send packets. Idempotent."""
        if self._speaking is not None:
            self._speaking.cancel()
            await asyncio.wait([self._speaking])

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.quiet()
        for ear in self.ears:
            ear.close()
        self.ears.clear()
        await asyncio.sleep(0)  # transports close at the loop's next turn
