"""Answers of a hostile server: each client of Treadle limits bytes and seconds, and its error says what was wrong."""

from __future__ import annotations

import json
import resource
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.cli.tools import Command
from tests.contrib.delayed.test_delivery import delivering
from treadle import AnswerTooLarge, App, BadUrl, JobFailed, StorageUnavailable
from treadle.blobs import Corrupt, TooBig
from treadle.cli.output import Stop
from treadle.contrib.delayed.delivery import Delivery
from treadle.contrib.delayed.submit import Endpoint
from treadle.contrib.wasi.client import Client
from treadle.storage.http import HttpStorage

HELLO = b'{"max_body":1000000}'
Send = Callable[[socket.socket], object]


@contextmanager
def hostile(*answers: Send) -> Iterator[str]:
    """Start a server that sends these answers in order, then the last one again and again. Yield its URL."""
    listener = socket.create_server(("127.0.0.1", 0))
    left = list(answers)
    open_ones: list[socket.socket] = []

    def serve(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            while asked(connection):
                (left.pop(0) if len(left) > 1 else left[0])(connection)

    def accept() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                open_ones.append(connection)
                threading.Thread(target=serve, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for each in open_ones:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


def asked(connection: socket.socket) -> bool:
    """Read one request."""
    raw = b""
    while b"\r\n\r\n" not in raw:
        piece = connection.recv(65_536)
        if not piece:
            return False
        raw += piece
    top, _, rest = raw.partition(b"\r\n\r\n")
    size = next((int(line[15:]) for line in top.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0)
    while len(rest) < size:
        rest += connection.recv(65_536)
    return True


def whole(body: bytes, status: str = "200 OK") -> Send:
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    return lambda connection: connection.sendall(head + body)


def endless(connection: socket.socket) -> None:
    """Chunks without end."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        connection.sendall(b"10000\r\n" + b" " * 65_536 + b"\r\n")


def endless_refusal(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 500 No\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        connection.sendall(b"10000\r\n" + b" " * 65_536 + b"\r\n")


def boastful(connection: socket.socket) -> None:
    """Announces a terabyte and sends none of it."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n")


def dribbling(connection: socket.socket) -> None:
    """Sends a byte now and then, without end."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
    pause = threading.Event()
    while not pause.wait(0.02):
        connection.sendall(b" ")


def many_headers(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\n")
    while True:
        connection.sendall(b"X-Filler: " + b"a" * 4_000 + b"\r\n")


def peak() -> int:
    """The peak memory of this process in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (2**20 if sys.platform == "darwin" else 2**10)


@pytest.mark.parametrize("answer", [endless, boastful, endless_refusal])
async def test_a_storage_reads_a_bounded_answer(answer: Send) -> None:
    with hostile(whole(HELLO), answer) as url:
        async with App(f"{url}?max_answer={2**20}") as app:
            for call in (app.storage.get(["a"]), app.storage.stats(), app.storage.prune(1)):
                with pytest.raises(AnswerTooLarge, match=r"at most 1,048,576 bytes.*max_answer") as caught:
                    await call
                assert caught.value.limit == 2**20


@pytest.mark.parametrize("answer", [endless, boastful])
async def test_an_answer_without_rows_is_bounded(answer: Send) -> None:
    with hostile(answer) as url, pytest.raises(AnswerTooLarge, match="at most 16,777,216 bytes"):
        await App(url).open()


@pytest.mark.parametrize(
    "row", [b'{"job":{"id":"a","task":"t"},"state":"ready"},', b"null,", b"[],"], ids=["rows", "nothing", "lists"]
)
async def test_an_answer_is_counted_before_it_is_made(row: bytes) -> None:
    count = 12_000_000 if row == b"null," else 1_100_000
    body = b'{"records":[' + row * count + b"null]}"
    with hostile(whole(HELLO), whole(body)) as url:
        async with App(url) as app:
            before = peak()
            bound = "at most 10,000,000 values" if row == b"null," else "at most 1,000,000 arrays and objects"
            with pytest.raises(AnswerTooLarge, match=bound):
                await app.storage.get(["a"])
            assert peak() - before < 4 * len(body) / 2**20 + 50


@pytest.mark.slow
async def test_large_rows_come_whole() -> None:
    text = json.dumps([{"a": [n, "[{,\\"]} for n in range(300_000)])  # many brackets, all of them within one string
    body = json.dumps({"records": [None, None], "x": text}).encode()
    with hostile(whole(HELLO), whole(body)) as url:
        async with App(url) as app:
            assert await app.storage.get(["a", "b"]) == [None, None]


@pytest.mark.parametrize("answer", [dribbling, many_headers])
async def test_an_answer_of_a_server_has_an_end(answer: Send, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.storage.http.storage.TIMEOUT", 0.5)
    with hostile(whole(HELLO), answer) as url:
        async with App(url) as app:
            with pytest.raises(StorageUnavailable, match=r"no response in time|headers"):
                await app.storage.get(["a"])


@pytest.mark.parametrize("size", ["1", "x", "-1", ""])
def test_the_bound_of_an_answer_is_a_number(size: str) -> None:
    with pytest.raises(BadUrl, match="max_answer: expected a number of bytes of at least 1,048,576"):
        HttpStorage(f"http://host?max_answer={size}")


@pytest.mark.parametrize("answer", [endless, dribbling, many_headers, endless_refusal])
async def test_a_client_of_a_queue_reads_a_bounded_answer(
    answer: Send, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in (("ANSWER", 0.2), ("ANSWERS", 2**20), ("TRANSFER", 0.2)):
        monkeypatch.setattr(f"treadle.contrib.wasi.client.{name}", value)
    file = tmp_path / "blob"
    file.write_bytes(b"module")
    with hostile(answer) as url:
        async with Client(url, patient=False) as client:
            calls = [
                client.ping(),
                client.claim("r", 0.0),
                client.create("a" * 64, None),
                client.get("j"),
                client.list(None),
                client.complete("j", "r", "completed", "a" * 64),
                client.put(file),
            ]
            for call in calls:
                with pytest.raises(StorageUnavailable, match=r"at most 1,048,576 bytes|no response in time|eader"):
                    await call
            with pytest.raises(
                (StorageUnavailable, TooBig, Corrupt), match=r"no response in time|1,048,576|eader|expected"
            ):
                await client.fetch("a" * 64, tmp_path / "in", 2**20)


async def test_a_list_without_end_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.contrib.wasi.client.LISTED", 1_000)
    monkeypatch.setattr("treadle.contrib.wasi.client.PAGES", 50)
    job = {"job_id": "j", "binary_addr": "a", "status": "active"}
    for jobs, bound in (([job] * 500, "at most 1,000 jobs"), ([], "at most 50 pages")):
        with hostile(whole(json.dumps({"jobs": jobs, "after": "x"}).encode())) as url:
            async with Client(url, patient=False) as client:
                with pytest.raises(AnswerTooLarge, match=bound):
                    await client.list(None)


@pytest.mark.parametrize("answer", [endless_refusal, dribbling, many_headers, boastful, endless])
async def test_a_webhook_reads_a_bounded_answer(answer: Send) -> None:
    with hostile(answer) as url:
        async with delivering(Delivery(how="webhook", target=(url,), timeout=0.5)) as send:
            before = peak()
            job = await send("p")
            with suppress(JobFailed):
                await job.result(30)
            assert peak() - before < 50


@pytest.mark.parametrize("answer", [endless, dribbling, many_headers, endless_refusal])
def test_the_client_of_delayed_jobs_reads_a_bounded_answer(answer: Send, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.contrib.delayed.submit.ANSWER", 0.5)
    with hostile(answer) as url, pytest.raises(Stop, match=r"at most 1,048,576 bytes|does not answer"):
        Endpoint(url, None).ask("GET", "/jobs/a")


def ends_early(connection: socket.socket) -> None:
    connection.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"a":')
    connection.shutdown(socket.SHUT_RDWR)


def ends_with_its_connection(connection: socket.socket) -> None:
    connection.sendall(b'HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n{"status":"completed"}')
    connection.shutdown(socket.SHUT_RDWR)


def test_an_answer_that_ends_with_its_connection_is_whole() -> None:
    with hostile(ends_with_its_connection) as url:
        assert Endpoint(url, None).ask("GET", "/jobs/a") == (200, {"status": "completed"})


def test_the_error_of_a_truncated_answer_names_the_missing_bytes() -> None:
    with hostile(ends_early) as url, pytest.raises(Stop, match="closed 95 bytes before the end of the response"):
        Endpoint(url, None).ask("GET", "/jobs/a")


def test_the_command_line_reports_an_answer_that_is_too_large(tmp_path: Path) -> None:
    with (
        hostile(whole(HELLO), endless) as url,
        Command("jobs", "list", "--url", f"{url}?max_answer={2**20}", cwd=tmp_path) as command,
    ):
        code = command.ended()
    assert code == 3
    assert "at most 1,048,576 bytes" in command.stderr
