"""A server of the S3 protocol for tests, in a process of its own, and a bucket for each test."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator

import pytest

from tests.blobs.free import free_port
from tests.waiting import until_blocking
from treadle.blobs import S3Blobs
from treadle.blobs.bucket import Bucket, read_url

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
