"""Blobs in S3-compatible storage, against a server of that protocol in this process."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as TheirCredentials

from tests.blobs.free import free_port
from tests.waiting import until_blocking
from treadle.blobs import S3Blobs
from treadle.blobs.bucket import Bucket, Place, read_url
from treadle.blobs.signing import NOTHING, Credentials, sign
from treadle.errors import BadUrl, StorageError, StorageUnavailable
from treadle.testing.blobs import *  # noqa: F403
from treadle.testing.shows import shows

WHO = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port, folder = free_port(), tmp_path_factory.mktemp("s3")
    log = (folder / "log").open("wb")
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], stdout=log, stderr=log, cwd=folder
    )
    url = f"http://127.0.0.1:{port}"
    try:

        def answers() -> bool:
            assert process.poll() is None, (folder / "log").read_text()
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{url}/moto-api/data.json", timeout=5).close()
                return True
            return False

        until_blocking(answers, "an answer of the server")
        yield url
    finally:
        process.terminate()
        process.wait(30)
        log.close()


class Store:
    """A bucket for each test, which also holds objects of other programs."""

    def __init__(self, endpoint: str) -> None:
        self.url = f"s3://test-{os.urandom(6).hex()}/some/place?endpoint={endpoint}"
        self.place, self.who = read_url(self.url, WHO)
        self._plain("PUT", "")
        self._plain("PUT", "/other", b"not ours")

    def _plain(self, method: str, path: str, content: bytes = b"") -> bytes:
        request = urllib.request.Request(
            f"{self.place.endpoint}/{self.place.bucket}{path}",
            method=method,
            data=content or None,
            headers={"Authorization": "AWS4-HMAC-SHA256 Credential=key/20260101/us-east-1/s3/aws4_request"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            found: bytes = answer.read()
            return found

    def make(self, limit: int, sha1: bool = False) -> S3Blobs:
        return S3Blobs(Bucket(self.place, self.who), limit, sha1)

    async def spoil(self, address: str, content: bytes) -> None:
        name = f"/{self.place.prefix}{S3Blobs.name(address)}"
        await asyncio.to_thread(self._plain, "PUT", name, content)

    async def names(self) -> list[str]:
        listed = (await asyncio.to_thread(self._plain, "GET", "?list-type=2")).decode()
        found = [part.partition("</Key>")[0] for part in listed.split("<Key>")[1:]]
        assert "other" in found
        return [name for name in found if name != "other"]


@pytest.fixture
def shelf(endpoint: str) -> Store:
    return Store(endpoint)


async def content() -> AsyncIterator[bytes]:
    yield b"x"


async def test_a_bucket_that_is_not_there_is_said_at_once(shelf: Store) -> None:
    blobs = S3Blobs.at(f"s3://no-such-bucket?endpoint={shelf.place.endpoint}", environment=WHO)
    with pytest.raises(StorageError, match="NoSuchBucket"):
        await blobs.put(content())
    await blobs.close()


async def test_a_server_that_is_away_is_said_after_some_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.blobs.bucket.FIRST_PAUSE", 0.001)
    blobs = S3Blobs.at(f"s3://bucket?endpoint=http://127.0.0.1:{free_port()}", environment=WHO)
    with pytest.raises(StorageUnavailable, match="s3://bucket/"):
        await blobs.put(content())
    with pytest.raises(StorageUnavailable):
        await blobs.size("0" * 64)
    await blobs.close()


def test_urls() -> None:
    place, who = read_url("s3://bucket/a/b/", {**WHO, "AWS_REGION": "eu-1", "AWS_SESSION_TOKEN": "t"})
    assert place == Place(
        endpoint="https://s3.eu-1.amazonaws.com", bucket="bucket", prefix="a/b/", region="eu-1", by_path=False
    )
    assert who == Credentials("key", "secret", "t")
    place, _ = read_url("s3://bucket?endpoint=http://h:9000/&region=x", WHO)
    assert (place.endpoint, place.prefix, place.region, place.by_path) == ("http://h:9000", "", "x", True)
    for wrong in ("s3://", "s3://B", "s3://bucket?x=1", "s3://bucket?endpoint=h:9000", "http://bucket"):
        with pytest.raises(BadUrl):
            read_url(wrong, WHO)
    with pytest.raises(BadUrl, match="AWS_ACCESS_KEY_ID"):
        read_url("s3://bucket", {})


@pytest.mark.parametrize("token", [None, "a token/with+signs="])
@pytest.mark.parametrize(
    ("method", "path", "headers", "digest"),
    [
        ("GET", "/bucket/some/place/ab/abc", {}, NOTHING),
        ("PUT", "/bucket/a%20b/%C3%A4~", {"content-length": "3", "content-type": "a/b"}, "0" * 64),
        ("PUT", "/b/q", {"x-amz-copy-source": "/b/%20x", "x-amz-copy-source-if-match": '"e  t"'}, NOTHING),
        ("DELETE", "/b/q", {"if-match": '"etag"'}, NOTHING),
    ],
)
def test_signatures_are_those_of_the_vendors_own_client(
    monkeypatch: pytest.MonkeyPatch, method: str, path: str, headers: dict[str, str], digest: str, token: str | None
) -> None:
    mine = sign(method, "h.example:9000", path, {}, headers, digest, Credentials("k", "s", token), "eu-1", 1.7e9)
    request: Any = AWSRequest(method, f"https://h.example:9000{path}", headers=dict(headers))
    request.headers["X-Amz-Content-SHA256"] = digest
    request.context.update(timestamp="20231114T221320Z", payload_signing_enabled=True)
    auth = S3SigV4Auth(TheirCredentials("k", "s", token), "s3", "eu-1")
    monkeypatch.setattr(auth, "payload", lambda _: digest)
    moment = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    monkeypatch.setattr("botocore.auth.get_current_datetime", lambda *_, **__: moment)
    auth.add_auth(request)
    assert mine["authorization"] == request.headers["Authorization"]


@shows("a server bounds and verifies the blobs that it keeps in a bucket")
async def test_over_http_with_everything_in_a_bucket(shelf: Store, tmp_path: Path) -> None:
    import aiohttp

    from tests.served import memory_url
    from treadle.compat.queuey.blobs import blob_routes

    blobs = shelf.make(2_000_000)
    url, sent = memory_url(None, protocols=[blob_routes(blobs)]), os.urandom(1_500_000)
    async with aiohttp.ClientSession() as session:
        async with session.put(f"{url}/blob", data=io.BytesIO(sent)) as answer:
            assert answer.status == 201
            address = await answer.text()
        async with session.get(f"{url}/blob/{address}") as answer:
            assert (answer.status, await answer.read()) == (200, sent)
        async with session.put(f"{url}/blob", data=io.BytesIO(sent + sent)) as answer:
            assert answer.status == 413
        await shelf.spoil(address, sent[:-1] + b"\0")
        for status in (500, 404):
            async with session.get(f"{url}/blob/{address}") as answer:
                assert answer.status == status
    from tests.served import host

    host().run(blobs.close())
