"""The limits of a port, which apply before authentication: real sockets against a real server in this loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.kit import work
from tests.server.raw import Answer, ask, connected, head, one, parsed, rest
from tests.servers.tls import CA, FOLDER
from tests.waiting import Signal
from treadle import App, current
from treadle.errors import BadOption
from treadle.server import Bounds, Serving, Settings, make_site
from treadle.server.http11 import Bounded

SHORT = 0.2  # seconds
HOST = {"Host": "localhost"}
JOB = {**HOST, "Content-Type": "application/json"}
KIB, MIB = 2**10, 2**20
ANSWERED_LATER = pytest.mark.skipif(
    bool(os.environ.get("TEST_EAGER")), reason="an eager task answers each request before the next one is read"
)


@asynccontextmanager
async def served(bounds: Bounds | None = None, settings: Settings | None = None, **more: Any) -> AsyncIterator[Serving]:
    site = make_site(App("memory://"), settings or Settings())
    async with Serving(site, bounds=bounds, on_stop=site.state.waiting.stop, **more) as serving:
        yield serving


def said(url: str, *pieces: bytes) -> Answer:
    """The server's answer to these bytes, before it closes the connection."""
    with connected(url) as found:
        with contextlib.suppress(ConnectionError):
            for piece in pieces:
                found.sendall(piece)
        return parsed(rest(found))


def connections(serving: Serving) -> int:
    return serving._door.connections


async def gone(serving: Serving, left: int = 0) -> None:
    """Until no more connections than these are there."""
    with pytest.MonkeyPatch.context() as patch:
        ended = Signal().after(patch, Bounded, "connection_lost")
        while coming := [*serving._door._coming]:
            await asyncio.wait(coming)
        await ended.until(lambda: connections(serving) <= left, f"the end of all but {left} connections")


LINE = b"X-Filler: " + b"a" * 4000 + b"\r\n"
HEADS = {
    "headers without end": (b"GET /v1/stats HTTP/1.1\r\nHost: localhost\r\n", LINE),
    "one header without end": (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ", b"a" * 4096),
    "a header name without end": (b"GET / HTTP/1.1\r\nHost: localhost\r\n", b"a" * 4096),
    "a path without end": (b"GET /", b"a" * 4096),
    "a query without end": (b"GET /?a=", b"a" * 4096),
    "very many small headers": (b"GET / HTTP/1.1\r\nHost: localhost\r\n", b"a:b\r\n" * 100),
    "blank lines without end": (b"\r\n", b"\r\n" * 2048),
}


@pytest.mark.parametrize("pieces", HEADS.values(), ids=HEADS)
async def test_a_head_without_end_is_refused(pieces: tuple[bytes, bytes]) -> None:
    async with served() as serving:
        first, more = pieces
        answer = await asyncio.to_thread(said, serving.url, first, *[more] * (4 * MIB // len(more)))
        assert (answer.status, answer.body["error"], answer.headers["connection"]) == (431, "too_large", "close")
        await gone(serving)


async def test_a_whole_head_that_is_too_large_is_refused_and_one_that_is_not_is_taken() -> None:
    async with served() as serving:
        for size, status in ((60 * KIB, 404), (66 * KIB, 431)):
            for request in (
                head("GET", "/" + "a" * size, {**HOST, "Connection": "close"}),
                head("GET", "/x", {**HOST, "X-Large": "a" * size, "Connection": "close"}),
            ):
                assert (await asyncio.to_thread(said, serving.url, request)).status == status
        many = {f"X-{number}": "a" for number in range(250)}
        assert (await asyncio.to_thread(said, serving.url, head("GET", "/", {**HOST, **many}))).status == 431


@pytest.mark.parametrize(
    ("pieces", "status"),
    [
        ((), 408),
        ((b"GET /v1/stats HT",), 408),
        ((b"\r\n",), 408),
        ((b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-A: ",), 408),
        ((head("POST", "/v1/jobs", {**JOB, "Content-Length": "1000"}), b"{"), 408),
        ((head("POST", "/v1/jobs", {**JOB, "Transfer-Encoding": "chunked"}), b"5\r\nab"), 408),
    ],
    ids=["silence", "half a line", "a blank line", "half a head", "half a body", "half a chunk"],
)
async def test_an_incomplete_request_is_ended(pieces: tuple[bytes, ...], status: int) -> None:
    async with served(Bounds(head_time=SHORT, body_time=SHORT)) as serving:
        answer = await asyncio.to_thread(said, serving.url, *pieces)
        assert (answer.status, answer.body["error"]) == (status, "too_slow")
        await gone(serving)
        assert (await asyncio.to_thread(ask, serving.url, "GET", "/healthz")).status == 200


async def test_half_a_head_after_a_whole_request_is_ended() -> None:
    def talk() -> bytes:
        with connected(serving.url) as found:
            found.sendall(head("GET", "/healthz", HOST))
            one(found)
            found.sendall(b"GET /healthz HTTP/1.1\r\nX-A")
            return rest(found)

    async with served(Bounds(head_time=SHORT)) as serving:
        assert parsed(await asyncio.to_thread(talk)).status == 408


async def test_a_connection_without_requests_is_closed_and_one_with_them_is_kept() -> None:
    def talk() -> tuple[list[Answer], bytes]:
        with connected(serving.url) as found:
            answers = []
            for _ in range(3):
                found.sendall(head("GET", "/healthz", HOST))
                answers.append(one(found))
            return answers, rest(found)

    async with served(Bounds(idle_time=SHORT)) as serving:
        answers, last = await asyncio.to_thread(talk)
        assert ([each.status for each in answers], last) == ([200, 200, 200], b"")
        await gone(serving)


async def test_a_request_that_waits_for_work_is_not_ended() -> None:
    """Every limit is shorter than the time until its answer."""
    bounds = Bounds(head_time=SHORT, body_time=SHORT, read_time=SHORT, idle_time=SHORT, late_time=SHORT)
    async with served(bounds, Settings(max_wait=4 * SHORT)) as serving:
        body = b'{"worker": "r#1", "wait": 10}'
        answer = await asyncio.to_thread(
            ask, serving.url, "POST", "/v1/work/claim", body, content_type="application/json"
        )
        assert (answer.status, answer.body["records"]) == (200, [])


async def test_a_body_is_read_to_its_end_after_a_refusal_but_not_for_ever() -> None:
    bounds = Bounds(late_time=60, late_size=MIB)
    settings = Settings(max_body=1_000)
    size = 512 * KIB

    def polite() -> list[int]:
        with connected(serving.url) as found:
            statuses = []
            for _ in range(2):  # the connection stays usable after a body that was not read
                sent = {**JOB, "Origin": "https://evil.example", "Content-Length": str(size)}
                found.sendall(head("POST", "/v1/jobs", sent) + b" " * size)
                statuses.append(one(found).status)
            return statuses

    def endless() -> bytes:
        with connected(serving.url) as found:
            found.sendall(head("POST", "/v1/jobs", {**JOB, "Transfer-Encoding": "chunked"}))
            for _ in range(100_000):
                try:
                    found.sendall(b"10000\r\n" + b" " * 65_536 + b"\r\n")
                except OSError:
                    return b"ended"
            return b"taken"

    async with served(bounds, settings) as serving:
        assert await asyncio.to_thread(polite) == [403, 403]
        assert await asyncio.to_thread(endless) == b"ended"
        large = head("POST", "/v1/jobs", {**JOB, "Content-Length": str(size)}) + b" " * size
        answer = await asyncio.to_thread(said, serving.url, large)
        assert (answer.status, answer.headers["connection"]) == (413, "close")
        await gone(serving)


@pytest.mark.parametrize(
    "begun",
    [b"2\r\n{}\r\n0\r\nX: ", b"2;x=", b"0\r\nX"],
    ids=["a header behind a body", "a chunk extension", "a header name behind a body"],
)
async def test_a_trailer_or_a_chunk_extension_without_end_is_refused(begun: bytes) -> None:
    chunked = head("POST", "/v1/jobs", {**JOB, "Transfer-Encoding": "chunked"})
    async with served() as serving:
        answer = await asyncio.to_thread(said, serving.url, chunked, begun, *[b"a" * 4096] * (4 * MIB // 4096))
        assert answer.status in (0, 431)
        await gone(serving)


async def test_headers_behind_a_body_are_no_headers() -> None:
    """They had passed no check and no limit."""
    body = b'3\r\n{"t\r\n9\r\nask":"t"}\r\n0\r\n'

    def send(trailer: bytes, count: int = 1) -> Answer:
        return said(
            serving.url,
            head("POST", "/v1/jobs", {**JOB, "Transfer-Encoding": "chunked", "Connection": "close"}),
            body,
            *[trailer] * count,
            b"\r\n",
        )

    async with served() as serving:
        first = await asyncio.to_thread(send, b"Idempotency-Key: one\r\n")
        second = await asyncio.to_thread(send, b"Idempotency-Key: one\r\n")
        assert (first.status, second.status) == (201, 201)
        assert first.body["id"] != second.body["id"]
        assert (await asyncio.to_thread(send, LINE, 100)).status in (0, 431)


async def test_a_reader_that_does_not_read_is_ended() -> None:
    async with served(Bounds(read_time=SHORT)) as serving:
        task = b'{"task": "t", "kwargs": {"a": "%s"}}' % (b"a" * 8 * MIB)
        job = (
            await asyncio.to_thread(ask, serving.url, "POST", "/v1/jobs", task, content_type="application/json")
        ).body
        with connected(serving.url) as found:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            found.sendall(head("GET", f"/v1/jobs/{job['id']}", HOST))
            await gone(serving)


async def test_a_reader_that_takes_its_time_is_not() -> None:
    def slowly() -> int:
        with connected(serving.url) as found:
            found.sendall(head("GET", f"/v1/jobs/{job['id']}", {**HOST, "Connection": "close"}))
            count = 0
            while piece := found.recv(256 * KIB):
                count += len(piece)
            return count

    async with served(Bounds(read_time=20 * SHORT)) as serving:
        task = b'{"task": "t", "kwargs": {"a": "%s"}}' % (b"a" * 8 * MIB)
        job = (
            await asyncio.to_thread(ask, serving.url, "POST", "/v1/jobs", task, content_type="application/json")
        ).body
        assert await asyncio.to_thread(slowly) > 8 * MIB


async def test_streams_that_are_never_read_hold_no_more_than_a_buffer() -> None:
    async with served(Bounds(read_time=SHORT)) as serving:
        job = b'{"task": "t", "id": "s", "queue": "q"}'
        await asyncio.to_thread(ask, serving.url, "POST", "/v1/jobs", job, content_type="application/json")
        streams = [socket.create_connection((serving.host, serving.port)) for _ in range(20)]
        for each in streams:
            each.sendall(head("GET", "/v1/jobs/s/events", HOST))
            assert b"event: changed" in await asyncio.to_thread(_until, each, b"event: changed")
        assert connections(serving) == 20  # a quiet stream does not count as a client that stopped reading
        buffered = [each.transport.get_write_buffer_size() for each in serving._server.server_state.connections]  # type: ignore[union-attr]
        assert max(buffered) <= 128 * KIB
        for each in streams:
            each.close()
        await gone(serving)


async def test_a_reader_of_a_stream_that_does_not_read_is_ended_and_holds_no_more_than_a_buffer() -> None:
    app = App("memory://")

    @app.task(name="speak")
    async def speak() -> None:
        for _ in range(220):
            await current().stream("words").write("w" * 60 * KIB)

    site = make_site(app, Settings())
    bounds = Bounds(read_time=10 * SHORT)
    async with app, Serving(site, bounds=bounds, on_stop=site.state.waiting.stop) as serving:
        job = await speak.enqueue()
        async with work(app):
            await job.ended(30)
        with connected(serving.url) as found:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            found.sendall(head("GET", f"/v1/jobs/{job.id}/streams/words", {**HOST, "Accept": "text/event-stream"}))
            assert b"event: chunk" in await asyncio.to_thread(_until, found, b"event: chunk")
            [each] = serving._server.server_state.connections
            assert each.transport.get_write_buffer_size() <= 128 * KIB  # type: ignore[union-attr]
            await gone(serving)


def _until(found: socket.socket, what: bytes) -> bytes:
    data = b""
    while what not in data:
        piece = found.recv(65_536)
        assert piece, data
        data += piece
    return data


@ANSWERED_LATER
async def test_very_many_requests_on_one_connection_at_once_are_refused() -> None:
    def flood() -> bytes:
        with connected(serving.url) as found:
            with contextlib.suppress(OSError):
                found.sendall(head("GET", "/healthz", HOST) * 5_000)
            return rest(found)

    def some() -> bytes:
        with connected(serving.url) as found:
            found.sendall(head("GET", "/healthz", HOST) * 19 + head("GET", "/healthz", {**HOST, "Connection": "close"}))
            return rest(found)

    async with served() as serving:
        assert (await asyncio.to_thread(some)).count(b"HTTP/1.1 200 OK") == 20
        assert (await asyncio.to_thread(flood)).count(b"HTTP/1.1 200 OK") < 1_000
        await gone(serving)


@pytest.mark.parametrize(
    "raw",
    [
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"SSH-2.0-x\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n",
        b"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\nConnection: close\r\n\r\n",
        b"GET * HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /healthz HTTP/1.1\nHost : localhost\n\n",
    ],
)
async def test_bytes_that_are_not_http_get_an_error_of_the_api(raw: bytes) -> None:
    async with served() as serving:
        answer = await asyncio.to_thread(said, serving.url, raw)
        assert 400 <= answer.status < 500
        assert answer.body["error"]
        await gone(serving)


async def test_another_protocol_is_refused() -> None:
    asked = {
        "Connection": "Upgrade, close",
        "Upgrade": "websocket",
        "Sec-WebSocket-Key": "dGhl",
        "Sec-WebSocket-Version": "13",
    }
    async with served() as serving:
        answer = await asyncio.to_thread(said, serving.url, head("GET", "/v1/stats", {**HOST, **asked}))
        assert answer.status in (200, 400)
        assert "upgrade" not in answer.headers


# --- number of connections


async def test_connections_beyond_the_limit_get_503_until_others_end() -> None:
    """All open connections have requests in progress, so none is closed for the new one."""
    async with served(Bounds(connections=4)) as serving:
        await asyncio.to_thread(
            ask, serving.url, "POST", "/v1/jobs", b'{"task": "t", "id": "s"}', content_type="application/json"
        )
        await gone(serving)
        streams = [socket.create_connection((serving.host, serving.port)) for _ in range(4)]
        for each in streams:
            each.sendall(head("GET", "/v1/jobs/s/events", HOST))
            await asyncio.to_thread(_until, each, b"event: changed")
        for _ in range(5):
            answer = await asyncio.to_thread(ask, serving.url, "GET", "/healthz")
            assert (answer.status, answer.body["error"], answer.headers["retry-after"]) == (503, "too_many", "1")
        assert connections(serving) == 4
        streams.pop().close()
        await gone(serving, 3)
        assert (await asyncio.to_thread(ask, serving.url, "GET", "/healthz")).status == 200
        for each in streams:
            each.close()


async def test_silent_connections_are_closed_for_those_with_requests() -> None:
    async with served(Bounds(connections=4)) as serving:
        silent = [socket.create_connection((serving.host, serving.port)) for _ in range(40)]
        for _ in range(10):
            assert (await asyncio.to_thread(ask, serving.url, "GET", "/healthz")).status == 200
        assert connections(serving) <= 5
        for each in silent:
            each.close()
        await gone(serving)


def test_more_connections_than_descriptors_are_refused_at_once() -> None:
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    with pytest.raises(BadOption, match="ulimit -n"):
        Bounds(connections=soft).most_connections()
    assert Bounds().most_connections() < soft


# --- TLS

TLS = {"tls": (str(FOLDER / "server.pem"), str(FOLDER / "server.key"))}


async def test_half_a_handshake_is_ended() -> None:
    def talk(piece: bytes) -> bytes:
        with socket.create_connection((serving.host, serving.port), 30) as found:
            found.sendall(piece)
            return rest(found)

    async with served(Bounds(head_time=SHORT), **TLS) as serving:
        for piece in (b"", b"\x16\x03\x01\x02\x00\x01\x00", b"GET / HTTP/1.1\r\n\r\n"):
            await asyncio.to_thread(talk, piece)
        await gone(serving)


async def test_handshakes_count_as_connections_and_make_room() -> None:
    def get() -> Answer:
        trust = ssl.create_default_context(cafile=CA)
        with connected(serving.url) as found, trust.wrap_socket(found, server_hostname="localhost") as tls:
            tls.sendall(head("GET", "/healthz", {**HOST, "Connection": "close"}))
            return parsed(rest(tls))

    async with served(Bounds(connections=4), **TLS) as serving:
        silent = [socket.create_connection((serving.host, serving.port)) for _ in range(20)]
        for _ in range(5):
            assert (await asyncio.to_thread(get)).status == 200
        assert connections(serving) <= 5
        for each in silent:
            each.close()
        await gone(serving)


OFFER = {**JOB, "Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAMAAABkAAQAAP__"}


@pytest.mark.parametrize("pieces", [1, 3])
async def test_a_client_that_offers_another_protocol_is_answered_as_any_other(pieces: int) -> None:
    """Java's HttpClient and `curl --http2` offer HTTP/2 this way, and send the body directly after it."""
    body = b'{"task":"mail","args":[1]}'

    def talk() -> list[tuple[int, object]]:
        found = []
        with connected(serving.url) as socket:
            sized = head("POST", "/v1/jobs", {**OFFER, "Content-Length": str(len(body))}) + body
            chunked = head("POST", "/v1/jobs", {**OFFER, "Transfer-Encoding": "chunked"})
            chunked += b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
            for request in (sized, chunked, head("GET", "/v1/jobs?limit=1", OFFER)):
                size = -(-len(request) // pieces)
                for start in range(0, len(request), size):
                    socket.sendall(request[start : start + size])
                answer = one(socket)
                found.append((answer.status, answer.body.get("args")))
            socket.sendall(head("GET", "/healthz", OFFER) + head("GET", "/healthz", {**HOST, "Connection": "close"}))
            assert rest(socket).count(b"HTTP/1.1 200 OK") == 2
        return found

    async with served() as serving:
        assert await asyncio.to_thread(talk) == [(201, [1]), (201, [1]), (200, None)]


@ANSWERED_LATER
async def test_an_offer_of_another_protocol_is_held_to_the_same_bounds() -> None:
    requests = head("GET", "/healthz", OFFER) * 100
    async with served() as serving:
        assert await asyncio.to_thread(said_all, serving.url, requests) < 100
        for method, status in (("CONNECT", 405), ("GET", 200)):
            request = head(method, "/v1/stats", {**OFFER, "Connection": "Upgrade, close"})
            assert (await asyncio.to_thread(said, serving.url, request)).status == status
        await gone(serving)


def said_all(url: str, request: bytes) -> int:
    """The number of answers before the server ended the connection."""
    with connected(url) as found:
        with contextlib.suppress(ConnectionError):
            found.sendall(request)
        return rest(found).count(b"HTTP/1.1 200")


async def test_a_connection_that_is_ended_with_requests_behind_it_leaves_nothing_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """On uvloop a write to a closed connection raises (TEST_LOOP=uvloop)."""
    async with served() as serving:
        job = b'{"task": "t", "id": "j"}'
        await asyncio.to_thread(ask, serving.url, "POST", "/v1/jobs", job, content_type="application/json")
        first = head("GET", "/v1/jobs/j/wait?timeout=0.2", HOST)
        await asyncio.to_thread(said_all, serving.url, first + head("GET", "/healthz", HOST) * 200)
        await gone(serving)
        while left := [*serving._server.server_state.tasks]:  # type: ignore[union-attr]
            await asyncio.wait(left)
    assert not [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]


@pytest.mark.parametrize("sent", [34, 40])
async def test_more_requests_than_may_wait_are_refused_after_the_answers(sent: int) -> None:
    """Those that wait are answered first: a client reads each response as that of its oldest request."""
    async with served() as serving:
        request = head("GET", "/v1/me", {"Host": serving.url.removeprefix("http://")})
        with connected(serving.url) as found:
            found.sendall(request * sent)
            answers = (await asyncio.to_thread(rest, found)).split(b"HTTP/1.1 ")[1:]
    statuses = [each.split()[0] for each in answers]
    assert statuses == [*[b"200"] * 33, b"429"]
