"""The TCP proxy that fails on command, in front of a server that repeats each line in capitals."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import pytest

from tests.waiting import Signal
from treadle_testkit.proxy import Link, Proxy, free_port

LIMIT = 1 << 20  # bytes of a line


class Echo:
    """The requests that a server received, and a proxy in front of it."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.port = free_port()
        self.clients: list[Client] = []
        self.proxy = Proxy("127.0.0.1", self.port)
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, limit=LIMIT)

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                self.asked.append(line.decode().strip())
                writer.write(line.upper())
        except OSError:
            pass
        finally:
            writer.close()

    async def link(self) -> Client:
        self.clients.append(Client(*await asyncio.open_connection("127.0.0.1", self.proxy.port, limit=LIMIT)))
        return self.clients[-1]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Signal:
    """Sent whenever the proxy has read something."""
    return Signal().after(monkeypatch, Link, "_read")


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def ask(self, text: str) -> str:
        self.writer.write(f"{text}\n".encode())
        async with asyncio.timeout(30):
            return (await self.reader.readline()).decode().strip()

    async def has_nothing(self) -> bool:
        """Whether nothing has arrived yet."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0):
                return not await self.reader.read(1)
        return True


@pytest.fixture
async def echo() -> AsyncIterator[Echo]:
    it = Echo()
    await it.start()
    async with it.proxy:
        yield it
        for client in it.clients:
            client.writer.close()
    await it.stop()


async def test_a_proxy_forwards_bytes(echo: Echo) -> None:
    client = await echo.link()
    assert [await client.ask("a"), await client.ask("b" * 200_000)] == ["A", "B" * 200_000]
    assert (echo.proxy.accepted, len(echo.proxy.links)) == (1, 1)


async def test_a_request_that_is_lost_never_happened(echo: Echo) -> None:
    client, other = await echo.link(), await echo.link()
    cut = echo.proxy.lose_request(b"two")
    assert await client.ask("one") == "ONE"
    assert not cut.done
    with pytest.raises(ConnectionResetError):
        await client.ask("two")
    await cut.happened()
    assert await other.ask("two") == "TWO"  # once
    assert echo.asked == ["one", "two"]


async def test_a_request_whose_answer_is_lost_was_carried_out(echo: Echo) -> None:
    client = await echo.link()
    cut = echo.proxy.lose_answer(call=2)
    assert await client.ask("one") == "ONE"
    with pytest.raises(ConnectionResetError):
        await client.ask("two")
    assert cut.done
    assert echo.asked == ["one", "two"]


async def test_an_answer_is_cut_in_its_middle(echo: Echo) -> None:
    client = await echo.link()
    echo.proxy.lose_answer(after=3)
    client.writer.write(b"abcdef\n")
    got = b""
    with contextlib.suppress(ConnectionResetError):
        while more := await client.reader.read(1):
            got += more
    assert b"ABC".startswith(got)  # a reset may overtake the bytes before it


async def test_a_request_without_an_answer_ends_the_cut(echo: Echo) -> None:
    """A client that says goodbye waits for no answer, so none is lost; a caller that waits for the cut must not wait
    for ever."""
    client = await echo.link()
    cut = echo.proxy.lose_answer(b"bye")
    client.writer.write(b"bye")  # not a whole line, so the server does not answer
    await client.writer.drain()
    client.writer.close()
    async with asyncio.timeout(30):
        await cut.happened()


async def test_two_answers_that_are_lost_together(echo: Echo, reads: Signal) -> None:
    client = await echo.link()
    cuts = [echo.proxy.lose_answer(b"one"), echo.proxy.lose_answer(b"two")]
    client.writer.write(b"one")
    await client.writer.drain()
    await reads.until(lambda: reads.sent, "the first packet")
    with pytest.raises(ConnectionResetError):
        await client.ask(" and two")
    async with asyncio.timeout(30):
        await asyncio.gather(*(cut.happened() for cut in cuts))


async def test_the_searched_bytes_may_arrive_in_two_pieces(echo: Echo, reads: Signal) -> None:
    client = await echo.link()
    cut = echo.proxy.lose_request(b"needle")
    client.writer.write(b"hay nee")
    await client.writer.drain()
    await reads.until(lambda: reads.sent, "the first packet")
    client.writer.write(b"dle hay\n")
    with pytest.raises(ConnectionResetError):
        await client.ask("")
    assert cut.done
    assert echo.asked in ([], ["hay nee"])


async def test_a_silence_affects_one_connection(echo: Echo, reads: Signal) -> None:
    client = await echo.link()
    cut = echo.proxy.silence(b"one")
    client.writer.write(b"one\n")
    await reads.until(lambda: reads.sent > 1, "the request and its answer")
    assert cut.done
    assert echo.asked == ["one"]
    assert await (await echo.link()).ask("two") == "TWO"
    assert await client.has_nothing()
    echo.proxy.links[0].reset()
    with pytest.raises(ConnectionResetError):
        await client.ask("three")


async def test_a_proxy_refuses_connections_and_accepts_them_again(echo: Echo) -> None:
    client = await echo.link()
    assert await client.ask("a") == "A"
    await echo.proxy.refuse()
    with pytest.raises(ConnectionError):
        await client.ask("b")
    with pytest.raises(ConnectionRefusedError):
        await echo.link()
    await echo.proxy.accept()
    assert await (await echo.link()).ask("c") == "C"


async def test_a_black_hole_keeps_its_bytes(echo: Echo, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Signal().around(monkeypatch, Proxy, "flowing")
    client = await echo.link()
    assert await client.ask("a") == "A"
    echo.proxy.swallow()
    before = held.sent
    asking = asyncio.create_task(client.ask("b"))
    fresh = asyncio.create_task((await echo.link()).ask("c"))
    await held.until(lambda: held.sent >= before + 2, "a request and a connection that are held")
    assert not asking.done()
    assert not fresh.done()
    assert echo.asked == ["a"]
    echo.proxy.flow()
    assert [await asking, await fresh] == ["B", "C"]


async def test_delays_add_up(echo: Echo) -> None:
    client = await echo.link()
    loop = asyncio.get_running_loop()
    echo.proxy.delay = 0.05
    before = loop.time()
    assert await client.ask("a") == "A"
    assert loop.time() - before >= 0.1 - 0.001  # in both directions


async def test_a_server_that_is_not_there_is_a_reset(echo: Echo) -> None:
    await echo.stop()
    with pytest.raises(ConnectionResetError):
        await (await echo.link()).ask("a")
    await echo.start()
    assert await (await echo.link()).ask("a") == "A"


async def test_a_forgotten_cut_is_not_made(echo: Echo) -> None:
    client = await echo.link()
    cut = echo.proxy.lose_answer()
    echo.proxy.forget()
    assert await client.ask("a") == "A"
    assert not cut.done


async def test_a_refusing_proxy_keeps_its_port(echo: Echo) -> None:
    proxy = Proxy("127.0.0.1", echo.port)
    assert taken(proxy.port)
    with pytest.raises(OSError, match="Connect call failed"):
        await asyncio.open_connection("127.0.0.1", proxy.port)
    await proxy.accept()
    await proxy.refuse()
    assert taken(proxy.port)
    await proxy.accept()
    await proxy.close()


def taken(port: int) -> bool:
    """Whether the port is in use."""
    with socket.socket() as other:
        try:
            other.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False
