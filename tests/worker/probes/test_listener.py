"""The listener for probes: what it answers, and what a hostile client cannot do to it."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator

import pytest

from tests.waiting import Signal, patient
from treadle.errors import BadOption
from treadle.worker.probes import Address, PageListener, PageRequest, Reply, listener, text_reply


async def hello(_: PageRequest) -> Reply:
    return text_reply(200, "hello")


async def echo(request: PageRequest) -> Reply:
    return text_reply(200, f"{request.query} {request.headers.get('accept')}")


async def broken(_: PageRequest) -> Reply:
    raise ValueError("secret of ours")


@pytest.fixture
async def served() -> AsyncIterator[PageListener]:
    pages = {"/hello": hello, "/echo": echo, "/broken": broken}
    async with PageListener(Address("127.0.0.1", 0), pages) as found:
        yield found


async def exchange(served: PageListener, sent: bytes) -> tuple[str, dict[str, str], str]:
    """Send these bytes -> the status line, the headers and the body of the response."""
    async with patient("a response"):
        reader, writer = await asyncio.open_connection("127.0.0.1", served.address.port)
        writer.write(sent)
        head, _, body = (await rest(reader)).decode().partition("\r\n\r\n")
        writer.close()
        await writer.wait_closed()
    status, *lines = head.split("\r\n")
    return status, dict(line.lower().split(": ", 1) for line in lines if line), body


async def rest(reader: asyncio.StreamReader) -> bytes:
    """The bytes until the connection is closed or reset."""
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""


async def test_a_page_is_answered_and_the_connection_closed(served: PageListener) -> None:
    status, headers, body = await exchange(served, b"GET /hello HTTP/1.1\r\nHost: pod\r\n\r\n")
    assert (status, body) == ("HTTP/1.1 200 OK", "hello\n")
    assert {"connection": "close", "cache-control": "no-store", "content-length": "6"}.items() <= headers.items()


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "[::1].evil.example"])
async def test_a_page_whose_name_resolves_to_this_machine_is_refused(served: PageListener, host: str) -> None:
    """DNS rebinding: for the browser the listener is a part of that page."""
    status, _, body = await exchange(served, f"GET /hello HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    assert status == "HTTP/1.1 403 Forbidden"
    assert "hello" not in body


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8080", "[::1]:8080", "pod", "treadle.localhost", ""])
async def test_a_probe_may_name_this_machine(served: PageListener, host: str) -> None:
    status, _, _ = await exchange(served, f"GET /hello HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    assert status == "HTTP/1.1 200 OK"


async def test_head_has_the_headers_and_no_body(served: PageListener) -> None:
    status, headers, body = await exchange(served, b"HEAD /hello HTTP/1.1\r\n\r\n")
    assert (status, headers["content-length"], body) == ("HTTP/1.1 200 OK", "6", "")


async def test_a_page_sees_the_query_and_the_headers(served: PageListener) -> None:
    _, _, body = await exchange(served, b"GET /echo?name=a%20b&name=&x=1 HTTP/1.1\r\nACCEPT: text/plain\r\n\r\n")
    assert body == "(('name', 'a b'), ('name', ''), ('x', '1')) text/plain\n"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /nothing HTTP/1.1\r\n\r\n", 404),
        (b"POST /hello HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", 405),
        (b"GET /hello HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", 400),
        (b"GET /hello HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"GET /hello HTTP/2\r\n\r\n", 400),
        (b"GET hello HTTP/1.1\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", 400),
        (b"GET /hello HTTP/1.1\r\n: x\r\n\r\n", 400),
        (b"GET /hello HTTP/1.1\r\n folded\r\n\r\n", 400),
        (b"GET /echo?" + b"a&" * 200 + b" HTTP/1.1\r\n\r\n", 400),
        (b"GET /" + b"a" * 9_000 + b" HTTP/1.1\r\n\r\n", 431),
        (b"GET /hello HTTP/1.1\r\nX: " + b"a" * 9_000 + b"\r\n\r\n", 431),
        (b"GET /broken HTTP/1.1\r\n\r\n", 500),
    ],
)
async def test_a_request_without_a_page_is_refused(served: PageListener, sent: bytes, status: int) -> None:
    line, headers, body = await exchange(served, sent)
    assert line.startswith(f"HTTP/1.1 {status} ")
    assert len(body.splitlines()) == 1
    assert "secret" not in body
    assert ("allow" in headers) == (status == 405)


async def test_a_page_that_fails_is_logged_with_its_reason(
    served: PageListener, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "treadle.health"):
        await exchange(served, b"GET /broken HTTP/1.1\r\n\r\n")
    assert "/broken failed" in caplog.text
    assert "secret of ours" in caplog.text


async def test_a_page_that_takes_too_long_is_answered_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def endless(_: PageRequest) -> Reply:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(listener, "PAGE_TIME", 0.0)
    async with PageListener(Address("127.0.0.1", 0), {"/endless": endless}) as served:
        status, _, _ = await exchange(served, b"GET /endless HTTP/1.1\r\n\r\n")
    assert status.startswith("HTTP/1.1 503 ")


async def test_a_client_that_sends_nothing_is_closed(served: PageListener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "HEAD_TIME", 0.01)
    assert (await exchange(served, b"GET /hello"))[0] == ""


@pytest.mark.parametrize("sent", [b"", b"GET /hello HTTP/1.1\r\nHost: po"], ids=["nothing", "half"])
async def test_clients_that_hold_their_connections_do_not_keep_a_probe_waiting(
    served: PageListener, sent: bytes
) -> None:
    many = listener.CONNECTIONS + 90
    holding = [await asyncio.open_connection("127.0.0.1", served.address.port) for _ in range(many)]
    for _, writer in holding:
        writer.write(sent)
    try:
        assert (await exchange(served, b"GET /hello HTTP/1.1\r\n\r\n"))[2] == "hello\n"
        async with patient("the oldest connections to be closed"):
            for reader, _ in holding[: many - listener.CONNECTIONS]:
                assert await rest(reader) == b""
        assert len(served._serving) <= listener.CONNECTIONS
    finally:
        for _, writer in holding:
            writer.transport.abort()


@pytest.mark.parametrize("sent", [b"", b"GET /hello HTTP/1.1\r\nHost: po"], ids=["nothing", "half"])
async def test_each_of_600_such_clients_is_closed(
    served: PageListener, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(listener, "HEAD_TIME", 0.0)
    holding = [await asyncio.open_connection("127.0.0.1", served.address.port) for _ in range(600)]
    for _, writer in holding:
        writer.write(sent)
    async with patient("every connection to be closed"):
        for reader, writer in holding:
            assert await rest(reader) == b""
            writer.transport.abort()
    assert not served._serving
    monkeypatch.undo()
    assert (await exchange(served, b"GET /hello HTTP/1.1\r\n\r\n"))[2] == "hello\n"


async def test_600_connections_at_once_leave_room_for_a_probe(served: PageListener) -> None:
    """While the loop stands still, the system holds all of them. It would drop the probe's if its queue were full."""
    where, flood = ("127.0.0.1", served.address.port), list[socket.socket]()
    try:
        for _ in range(600):
            flood.append(socket.socket())
            flood[-1].setblocking(False)
            flood[-1].connect_ex(where)
        with socket.create_connection(where, timeout=0.5) as probe:
            probe.sendall(b"GET /hello HTTP/1.1\r\n\r\n")
            probe.setblocking(False)
            async with patient("a response"):
                assert (await asyncio.get_running_loop().sock_recv(probe, 1_000)).endswith(b"hello\n")
    finally:
        for each in flood:
            each.close()


@pytest.mark.parametrize(("files", "most"), [(None, 512), (100_000, 512), (256, 128), (20, 16)])
async def test_a_process_that_may_open_few_files_keeps_half_of_them(
    monkeypatch: pytest.MonkeyPatch, files: int | None, most: int
) -> None:
    monkeypatch.setattr(listener, "most_open_files", lambda: files)
    async with PageListener(Address("127.0.0.1", 0), {"/hello": hello}) as served:
        holding = [await asyncio.open_connection("127.0.0.1", served.address.port) for _ in range(most + 30)]
        assert (await exchange(served, b"GET /hello HTTP/1.1\r\n\r\n"))[2] == "hello\n"
        async with patient("the oldest connections to be closed"):
            for reader, _ in holding[:31]:
                assert await rest(reader) == b""
        assert len(served._serving) <= most
        for _, writer in holding:
            writer.transport.abort()


async def test_connections_at_once_do_not_close_a_probe(served: PageListener) -> None:
    """All of these are accepted in a few turns of the loop: the request of the probe must be read before as many
    others have come as close it."""
    where, flood = ("127.0.0.1", served.address.port), list[socket.socket]()
    probe = socket.create_connection(where)
    try:
        probe.sendall(b"GET /hello HTTP/1.1\r\n\r\n")
        for _ in range(6):
            for _ in range(listener.CONNECTIONS // listener.TURNS):  # while the loop stands still
                flood.append(socket.socket())
                flood[-1].setblocking(False)
                flood[-1].connect_ex(where)
            await asyncio.sleep(0)
        probe.setblocking(False)
        async with patient("a response"):
            assert (await asyncio.get_running_loop().sock_recv(probe, 1_000)).endswith(b"hello\n")
    finally:
        for each in (probe, *flood):
            each.close()


async def test_a_listener_stops_while_a_page_is_being_made() -> None:
    begun = Signal()

    async def endless(_: PageRequest) -> Reply:
        begun.send()
        await asyncio.Event().wait()
        raise AssertionError

    async with PageListener(Address("127.0.0.1", 0), {"/endless": endless}) as served:
        asking = asyncio.create_task(exchange(served, b"GET /endless HTTP/1.1\r\n\r\n"))
        await begun.until(lambda: begun.sent, "the page to begin")
    assert (await asking)[0] == ""


# --- addresses


@pytest.mark.parametrize(
    ("text", "address", "url"),
    [
        ("8080", ("127.0.0.1", 8080), "http://127.0.0.1:8080"),
        (":8080", ("", 8080), "http://0.0.0.0:8080"),
        ("10.0.0.5:0", ("10.0.0.5", 0), "http://10.0.0.5:0"),
        ("[::1]:80", ("::1", 80), "http://[::1]:80"),
        ("pod.local:80", ("pod.local", 80), "http://pod.local:80"),
    ],
)
def test_an_address_is_read(text: str, address: tuple[str, int], url: str) -> None:
    found = Address.parse(text)
    assert (found, found.url) == (address, url)


@pytest.mark.parametrize("text", ["", "x", "65536", "a:b", "::1:80", "http://x:80", "80:", "[x:80"])
def test_another_text_is_refused_with_examples(text: str) -> None:
    with pytest.raises(BadOption, match=r"expected a port such as 8080"):
        Address.parse(text)


async def test_a_port_that_is_taken_is_named(served: PageListener) -> None:
    with pytest.raises(BadOption, match=rf"port {served.address.port} .*give another"):
        async with PageListener(served.address, {}):
            raise AssertionError


async def test_an_invalid_host_is_named() -> None:
    with pytest.raises(BadOption, match=r"a\.\.b port 0 .*give another"):
        await PageListener(Address("a..b", 0), {}).__aenter__()


async def test_every_address_answers_over_ipv4_and_ipv6() -> None:
    async with PageListener(Address("", 0), {"/hello": hello}) as served:
        hosts = ["127.0.0.1", "::1"] if socket.has_dualstack_ipv6() else ["127.0.0.1"]
        for host in hosts:
            try:
                reader, writer = await asyncio.open_connection(host, served.address.port)
            except OSError:
                assert host == "::1"  # no IPv6 on this machine
                continue
            writer.write(b"GET /hello HTTP/1.1\r\n\r\n")
            assert b"hello" in await reader.read()
            writer.close()
            await writer.wait_closed()
