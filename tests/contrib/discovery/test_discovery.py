"""Servers announced to the local network and found there, on the loopback network of this machine."""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.contrib.wasi.modules import module
from treadle.contrib.discovery import BLOBS, QUEUES, Announcement, Browser, Found, Network, NoMulticast, find, place
from treadle.contrib.discovery.packet import (
    PTR,
    SRV,
    TXT,
    A,
    Answer,
    BadPacket,
    Packet,
    Question,
    Target,
    decode,
    encode,
    name_of,
)
from treadle.errors import BadOption
from treadle_testkit.shows import shows

LOOPBACK = "127.0.0.1"
KNOWN = Network((LOOPBACK, 5353))  # the standard port
PATIENCE = 45.0  # seconds


def free_port() -> int:
    """A multicast port that no other test uses."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as found:
        found.bind((LOOPBACK, 0))
        port: int = found.getsockname()[1]
        return port


@pytest.fixture
def alone() -> Network:
    return Network((LOOPBACK, free_port()))


def announced(where: Network, port: int = 4242, types: tuple[str, ...] = (*QUEUES, *BLOBS)) -> Announcement:
    return Announcement(types, "0.0.0.0", port, {"http_port": str(port), "version": "1"}, where)


def of(name: str) -> Callable[[list[Found]], set[str]]:
    return lambda found: {each.type for each in found if each.instance == name}


async def until(browser: Browser, enough: Callable[[list[Found]], bool]) -> list[Found]:
    found = await browser.until(enough, PATIENCE)
    assert enough(found), found
    return found


@shows("a server announces itself on the network under every service name and withdraws when it stops")
async def test_a_server_is_found_under_every_name_until_it_stops() -> None:
    async with Browser((*QUEUES, *BLOBS), KNOWN) as browser:
        async with announced(KNOWN, 4321) as made:
            mine = of(made.instance)
            found = await until(browser, lambda all: mine(all) == {*QUEUES, *BLOBS})
            for each in found:
                if each.instance == made.instance:
                    assert (each.port, each.url) == (4321, f"http://{LOOPBACK}:4321")
                    assert each.properties["http_port"] == "4321"
                    assert each.properties["instance_id"] == made.instance
        await until(browser, lambda all: not mine(all))


async def test_a_browser_that_starts_later_finds_the_server(alone: Network) -> None:
    async with announced(alone) as made, Browser(QUEUES, alone) as first:
        await until(first, lambda all: of(made.instance)(all) == set(QUEUES))
        async with Browser(QUEUES[:1], alone) as second:
            assert of(made.instance)(await until(second, bool)) == {QUEUES[0]}


@pytest.mark.slow
async def test_the_announcement_of_a_killed_process_expires(alone: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.contrib.discovery.announce.TTL", 2)
    monkeypatch.setattr(Announcement._all, "__defaults__", (2,))
    async with Browser(QUEUES, alone) as browser:
        made = announced(alone)
        await made.__aenter__()
        await until(browser, bool)
        monkeypatch.setattr(made, "_is_ours", False)  # it sends nothing more, not even a goodbye
        await until(browser, lambda all: not all)
        await made.__aexit__(None, None, None)


async def test_a_name_that_is_taken_is_not_used(alone: Network) -> None:
    async with Browser(QUEUES, alone) as browser:
        made = announced(alone)
        [ear] = browser._link.ears
        name = (made.instance, *name_of(QUEUES[0]))
        async with made:
            taken = made.instance
            other = Answer(name, SRV, Target(("elsewhere", "local"), 1), 120, flush=True)
            ear.say(Packet(is_response=True, answers=(other,)))
            found = await until(browser, bool)
            assert {each.instance for each in found} == {made.instance} != {taken}


async def test_a_query_of_a_plain_resolver_is_answered(alone: Network) -> None:
    async with announced(alone, 99) as made, Browser(QUEUES, alone) as browser:
        await until(browser, bool)
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
            asker.setblocking(False)
            asker.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(LOOPBACK))
            question = Question(name_of(QUEUES[1]), PTR)
            asker.sendto(encode(Packet(id=77, questions=(question,))), ("224.0.0.251", alone[1]))
            packet = decode(await asyncio.wait_for(loop.sock_recv(asker, 9_000), PATIENCE))
    assert (packet.id, packet.questions) == (77, (question,))
    assert [answer.data for answer in packet.answers] == [(made.instance, *name_of(QUEUES[1]))]
    assert {answer.kind for answer in packet.more} >= {SRV, TXT, A}


@shows("the zeroconf library finds a server of Treadle, and Treadle finds a server of that library")
async def test_the_zeroconf_library_and_treadle_find_each_other() -> None:
    """We use the name without the colon, because the usual library refuses the other one."""
    from zeroconf import ServiceBrowser, ServiceInfo, Zeroconf

    heard: dict[str, asyncio.Event] = {"add": asyncio.Event(), "remove": asyncio.Event()}
    loop = asyncio.get_running_loop()
    async with announced(KNOWN, 4343) as made:

        class Listener:
            def _tell(self, what: str, name: str) -> None:
                if name.startswith(made.instance):
                    loop.call_soon_threadsafe(heard[what].set)

            def add_service(self, zc: Zeroconf, type_: str, name: str) -> None:
                self._tell("add", name)

            def update_service(self, zc: Zeroconf, type_: str, name: str) -> None: ...

            def remove_service(self, zc: Zeroconf, type_: str, name: str) -> None:
                self._tell("remove", name)

        theirs = await asyncio.to_thread(Zeroconf, interfaces=[LOOPBACK])
        try:
            await asyncio.to_thread(ServiceBrowser, theirs, QUEUES[1], Listener())  # type: ignore[arg-type]
            await asyncio.wait_for(heard["add"].wait(), PATIENCE)
            full = f"{made.instance}.{QUEUES[1]}"
            info = ServiceInfo(QUEUES[1], full)
            assert await asyncio.to_thread(info.request, theirs, 10_000)
            assert (info.port, info.parsed_addresses()) == (4343, [LOOPBACK])
            assert info.decoded_properties["http_port"] == "4343"
            await made.__aexit__(None, None, None)
            await asyncio.wait_for(heard["remove"].wait(), PATIENCE)

            name = f"other-{os.urandom(4).hex()}"
            address = [socket.inet_aton(LOOPBACK)]
            other = ServiceInfo(QUEUES[1], f"{name}.{QUEUES[1]}", 4444, addresses=address, server=f"{name}.local.")
            async with Browser(QUEUES, KNOWN) as browser:
                await asyncio.to_thread(theirs.register_service, other, strict=False)
                [found] = [
                    each for each in await until(browser, lambda all: bool(of(name)(all))) if each.instance == name
                ]
                assert found.url == f"http://{LOOPBACK}:4444"
                await asyncio.to_thread(theirs.unregister_service, other)
                await until(browser, lambda all: not of(name)(all))
        finally:
            await asyncio.to_thread(theirs.close)


@shows("a client prefers the blob store of the server that has the queue")
async def test_the_store_of_the_queues_own_server_is_preferred(alone: Network) -> None:
    assert await find(0.05, alone) is None
    async with announced(alone, 1, BLOBS), announced(alone, 2, (*QUEUES, *BLOBS)):
        async with Browser((*QUEUES, *BLOBS), alone) as browser:
            await until(browser, lambda all: len(all) == 4)
        found = await find(PATIENCE, alone)
        assert found is not None
        assert (found.queue, found.store) == ("http://127.0.0.1:2", "http://127.0.0.1:2")


async def test_a_store_elsewhere_is_taken_and_without_any_the_queues_own_address(alone: Network) -> None:
    async with announced(alone, 2, QUEUES):
        found = await find(PATIENCE, alone)
        assert found is not None
        assert found.store == "http://127.0.0.1:2"
        async with announced(alone, 1, BLOBS), Browser(BLOBS, alone) as browser:
            await until(browser, bool)
            found = await find(PATIENCE, alone)
            assert found is not None
            assert (found.queue, found.store) == ("http://127.0.0.1:2", "http://127.0.0.1:1")


async def test_a_missing_network_raises() -> None:
    with pytest.raises(NoMulticast, match=r"192\.0\.2\.99"):
        async with Browser(QUEUES, Network(("192.0.2.99", 5353))):
            pass


def test_the_environment_sets_interface_and_port() -> None:
    assert place({}) == (None, 5353)
    assert place({"TREADLE_MDNS": "10.0.0.1"}) == ("10.0.0.1", 5353)
    assert place({"TREADLE_MDNS": "10.0.0.1:99"}) == ("10.0.0.1", 99)
    with pytest.raises(BadOption, match="network interface"):
        place({"TREADLE_MDNS": "eth0"})


def test_packets_are_read_as_they_were_written() -> None:
    host, full = ("h", "local"), ("a b.c", *name_of(QUEUES[0]))
    answers = (
        Answer(name_of(QUEUES[0]), PTR, full, 120),
        Answer(full, SRV, Target(host, 1717), 120, flush=True),
        Answer(full, TXT, {"http_port": "1717"}, 120, flush=True),
        Answer(host, A, "10.0.0.1", 0),
        Answer(host, 28, "fd00::1", 120),
        Answer(host, 13, b"\1\2", 120),
    )
    packet = Packet(id=7, is_response=True, questions=(Question(full, SRV, alone=True),), answers=answers, more=answers)
    raw = encode(packet)
    assert decode(raw) == packet
    for size in range(len(raw)):  # cut anywhere, the packet is refused and has no other effect
        with pytest.raises(BadPacket):
            decode(raw[:size])


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\0" * 11,
        b"\0\0\0\0\0\1\0\0\0\0\0\0\xc0\x0c\0\1\0\1",  # a name that points to itself
        b"\0\0\0\0\xff\xff\0\0\0\0\0\0",
        b"\0\0\0\0\0\1\0\0\0\0\0\0" + b"\1a" * 200 + b"\0\0\1\0\1",
    ],
    ids=["empty", "short", "a name that points to itself", "too much", "too long"],
)
def test_nonsense_is_refused(raw: bytes) -> None:
    with pytest.raises(BadPacket):
        decode(raw)


def odd_packets(rng: random.Random, count: int) -> Iterator[bytes]:
    """Random bytes, and good packets with a few bytes changed: labels, pointers, counts and lengths."""
    name = ("evil", *name_of(QUEUES[0]))
    answers = (
        Answer(name, SRV, Target(("h", "local"), 80), 120),
        Answer(name, TXT, {"a": "b"}, 1),
        Answer(("h", "local"), A, "127.0.0.1", 1),
        Answer(name, 28, "::1", 1),
        Answer(name, PTR, name, 1),
    )
    good = encode(Packet(is_response=True, questions=(Question(name, PTR),), answers=answers))
    for number in range(count):
        raw = bytearray(rng.randbytes(rng.randrange(200)) if number % 4 == 0 else good)
        for _ in range(rng.randrange(1, 8) if raw else 0):
            raw[rng.randrange(len(raw))] = rng.choice((0, 1, 0xC0, 0xFF, rng.randrange(256)))
        yield bytes(raw[: rng.randrange(len(raw) + 1)] if number % 3 == 0 else raw)


def test_any_bytes_are_a_packet_or_are_refused() -> None:
    refused = 0
    for raw in odd_packets(random.Random(1), 20_000):
        try:
            found = decode(raw)
        except BadPacket:
            refused += 1
        else:
            assert len(found.answers) + len(found.more) <= 500
    assert 5_000 < refused < 20_000


def test_a_packet_of_pointers_to_pointers_is_read_in_bounded_steps() -> None:
    """6,500 bytes, 499 records, each name a chain of 62 pointers."""
    starts = [23, *range(26, 26 + 4 * 61, 4)]  # of the names in the data of the first record
    chain = b"\1a\0" + b"".join(b"\1a" + (0xC000 | before).to_bytes(2) for before in starts[:-1])
    last = (0xC000 | starts[-1]).to_bytes(2)
    first = b"\0\0\x0d\0\1\0\0\0\1" + len(chain).to_bytes(2) + chain
    records = (last + b"\0\x0c\0\1\0\0\0\1\0\2" + last) * 499
    found = decode(b"\0\0\x84\0\0\0" + (500).to_bytes(2) + b"\0\0\0\0" + first + records).answers
    assert [len(answer.name) for answer in found] == [0, *[62] * 499]


# --- the commands


class Process:
    """A command of Treadle that runs until it is stopped."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process, self.said, self._told = process, "", False

    def stop(self) -> None:
        """Send SIGTERM, once: a second one would end it at once."""
        if self.process.returncode is None and not self._told:
            self._told = True
            self.process.send_signal(signal.SIGTERM)

    async def says(self, pattern: str) -> re.Match[str]:
        assert self.process.stderr is not None
        async with asyncio.timeout(PATIENCE):
            while True:
                found = re.search(pattern, self.said)
                if found:
                    return found
                line = await self.process.stderr.readline()
                assert line, self.said
                self.said += line.decode()


@asynccontextmanager
async def started(folder: Path, where: Network, *words: str) -> AsyncIterator[Process]:
    environment = {**os.environ, "TREADLE_MDNS": f"{where[0]}:{where[1]}"}
    for name in ("TREADLE_SERVER", "SERVAL_NODE_URL", "TREADLE_URL"):
        environment.pop(name, None)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "treadle",
        *words,
        cwd=folder,
        env=environment,
        stderr=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    made = Process(process)
    try:
        yield made
    finally:
        made.stop()
        said = await asyncio.wait_for(process.communicate(), PATIENCE)
    assert process.returncode == 0, said


@pytest.mark.slow
@shows("a module runs on a server and a runner that find each other without a URL")
async def test_a_job_runs_by_discovery_alone(alone: Network, tmp_path: Path) -> None:
    (tmp_path / "echo.wasm").write_bytes(module("echo"))
    (tmp_path / "in.txt").write_bytes(b"hello")
    queue = ("server", "--protocol", "queuey", "--url", "memory://", "--port", "0", "--host", LOOPBACK, "--quiet")
    async with started(tmp_path, alone, *queue) as server, started(tmp_path, alone, "wasi", "runner") as runner:
        url = (await server.says(r"(http://\S+)")).group(1)
        assert (await runner.says(r"for (http://\S+)")).group(1) == url
        async with started(tmp_path, alone, "wasi", "run", "echo.wasm", "in.txt", "out.bin") as command:
            said = await asyncio.wait_for(command.process.communicate(), PATIENCE)
            assert command.process.returncode == 0, (said, runner.said)
        assert (tmp_path / "out.bin").read_bytes() == b"hello"
        async with Browser(QUEUES, alone) as browser:
            found = await until(browser, lambda all: len(all) == 2)
            assert {each.url for each in found} == {url}
            server.stop()
            await until(browser, lambda all: not all)
