"""Outgoing requests: tokens, jobs and bodies go to the named origin, and to no other."""

from __future__ import annotations

import asyncio
import gzip
import json
import signal
from pathlib import Path

import pytest

from tests.cli.tools import Command
from tests.contrib.discovery.test_discovery import free_port
from tests.server.listener import Listener, redirecting
from treadle import App, StorageUnavailable, TreadleError
from treadle.blobs import TooBig
from treadle.contrib.discovery import QUEUES, Announcement, Network
from treadle.contrib.wasi.client import Client
from treadle.contrib.wasi.command import Queue

TOKEN = "trd_this-is-the-secret"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_storage_follows_no_redirect(status: int) -> None:
    with Listener() as elsewhere, redirecting(f"{elsewhere.url}/in?key=hidden", status) as named:
        with pytest.raises(StorageUnavailable, match=f"redirect to {elsewhere.url}/in") as caught:
            async with App(named.url, token=TOKEN) as app:
                await app.stub("pay").enqueue("card 4111")
        assert "hidden" not in str(caught.value)
        assert named.heard
        assert not elsewhere.heard


async def test_a_storage_takes_no_compressed_answer() -> None:
    """Compressed, 300 MB of a hostile server are 290 KB on the network."""
    body = gzip.compress(b"[" + b" " * 1_000_000)
    with Listener(200, {"Content-Encoding": "gzip"}, body) as named:
        with pytest.raises(StorageUnavailable, match="uncompressed"):
            await App(named.url).open()
        assert named.heard[0].headers["Accept-Encoding"] == "identity"


async def test_a_client_of_a_queue_follows_no_redirect() -> None:
    with Listener() as elsewhere, redirecting(elsewhere.url) as named:
        async with Client(named.url, TOKEN, patient=False) as client:
            for call in (client.ping(), client.claim("r", 0.0), client.create("a" * 64, None)):
                with pytest.raises(
                    StorageUnavailable, match=f"a redirect to {elsewhere.url}, which Treadle does not follow"
                ):
                    await call
        assert not elsewhere.heard


async def test_blobs_follow_no_redirect(tmp_path: Path) -> None:
    file = tmp_path / "blob"
    file.write_bytes(b"module")
    with Listener() as elsewhere, redirecting(elsewhere.url) as named:
        async with Client(named.url, TOKEN, patient=False) as client:
            for call in (client.put(file), client.fetch("a" * 64, file)):
                with pytest.raises(StorageUnavailable, match="does not follow"):
                    await call
        assert not elsewhere.heard


@pytest.mark.parametrize(("given", "expected"), [(None, None), ("trd_store", "Bearer trd_store")])
async def test_a_store_of_another_origin_gets_a_token_of_its_own_only(
    tmp_path: Path, given: str | None, expected: str | None
) -> None:
    file = tmp_path / "blob"
    file.write_bytes(b"module")
    with Listener(200, None, b'"ok"') as queue, Listener(404) as store:
        async with Client(queue.url, TOKEN, store.url, patient=False, store_token=given) as client:
            await client.ping()
            with pytest.raises(TreadleError):
                await client.put(file)
        assert [request.headers.get("Authorization") for request in queue.heard] == [f"Bearer {TOKEN}"]
        assert [request.headers.get("Authorization") for request in store.heard] == [expected]


def test_a_queue_that_discovery_found_gets_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_TOKEN", TOKEN)
    monkeypatch.setenv("TREADLE_STORE_TOKEN", "trd_store")
    assert Queue(None, None, trusted=False).tokens() == (None, None)
    assert Queue(None, "http://store", trusted=False).tokens() == (None, "trd_store")
    assert Queue(None, None, trusted=True).tokens() == (TOKEN, "trd_store")
    assert Queue("http://named", None, trusted=False).tokens() == (TOKEN, "trd_store")


@pytest.mark.parametrize("words", [["wasi", "ping"], ["wasi", "runner"]])
async def test_a_host_that_answers_multicast_first_gets_no_token(words: list[str], tmp_path: Path) -> None:
    where = Network(("127.0.0.1", free_port()))
    environment = {"TREADLE_MDNS": f"127.0.0.1:{where[1]}", "TREADLE_TOKEN": TOKEN}
    hostile = Listener(200, None, b"pong \x1b]0;owned\x07\x1b[31mred")
    told = {"http_port": str(hostile.port)}
    with hostile:
        async with Announcement(QUEUES, "127.0.0.1", hostile.port, told, where):
            with Command(*words, cwd=tmp_path, **environment) as command:
                await asyncio.to_thread(command.wait_for, "it does not get TREADLE_TOKEN")
                assert await asyncio.to_thread(hostile.asked.wait, 30)
                command.signal(signal.SIGTERM)
                await asyncio.to_thread(command.ended)
    assert "Authorization" not in hostile.heard[0].headers
    assert TOKEN not in command.stdout + command.stderr
    assert "\x1b" not in command.stdout + command.stderr


async def test_an_odd_answer_counts_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """One error page of a proxy must not stop every slot of a runner."""
    monkeypatch.setattr("treadle.contrib.wasi.client.LONGEST_PAUSE", 0.01)
    job = {"job_id": "j", "binary_addr": "a" * 64, "status": "active"}
    odd = b"<html>", b'{"job_id": 5}', b"\xff\x00", b"[]"
    with Listener(200, None, *odd, json.dumps(job).encode()) as proxy:
        async with Client(proxy.url) as client:
            found = await asyncio.wait_for(client.claim("r", 0.0), 30)
    assert found is not None
    assert found.job_id == "j"


async def test_a_client_reads_a_bounded_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("treadle.contrib.wasi.client.ANSWERS", 1000)
    with Listener(200, None, b'"' + b"x" * 5000 + b'"') as hostile:
        async with Client(hostile.url, patient=False) as client:
            with pytest.raises(StorageUnavailable, match="a response of at most 1,000 bytes"):
                await client.ping()
            with pytest.raises(TooBig, match="1,000"):
                await client.fetch("a" * 64, tmp_path / "blob", 1000)
        hostile.headers["Content-Encoding"] = "gzip"
        hostile.bodies = [gzip.compress(b" " * 1_000_000)]
        async with Client(hostile.url, patient=False) as client:
            with pytest.raises(StorageUnavailable, match="compressed"):
                await client.ping()
            with pytest.raises(StorageUnavailable, match="compressed"):
                await client.fetch("a" * 64, tmp_path / "blob")
