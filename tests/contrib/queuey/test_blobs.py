"""Blobs: the store itself, and the HTTP calls for it."""

from __future__ import annotations

import hashlib
import io
import os
from pathlib import Path

import aiohttp
import pytest

from tests.served import memory_url
from treadle.blobs import BadAddress, DirectoryBlobs, address_of, sri
from treadle.contrib.queuey.blobs import blob_routes
from treadle_testkit.blobs import pieces
from treadle_testkit.shows import shows


@pytest.fixture
def blobs(tmp_path: Path) -> DirectoryBlobs:
    return DirectoryBlobs(tmp_path / "blobs", limit=3_000_000)


@shows("an address in base64 works with its slashes in the path")
async def test_an_address_with_slashes_is_valid(blobs: DirectoryBlobs) -> None:
    """In base64, half of all addresses contain a slash."""
    url = memory_url(None, protocols=[blob_routes(blobs)])
    content = next(b"%d" % n for n in range(100) if "/" in sri(hashlib.sha256(b"%d" % n).hexdigest()))
    address, _ = await blobs.put(pieces(content))
    async with aiohttp.ClientSession() as session:
        for path in (f"/v1/storage/data/{sri(address)}", f"/blob/{sri(address).replace('/', '_').replace('+', '-')}"):
            async with session.get(url + path) as answer:
                assert (answer.status, await answer.read()) == (200, content)


@shows("a server with SHA-1 look-up serves blobs by SHA-1")
async def test_blobs_are_served_by_sha1_over_http(tmp_path: Path) -> None:
    content = b"old address"
    sha1 = hashlib.sha1(content).hexdigest()
    plain, knowing = [
        memory_url(None, protocols=[blob_routes(DirectoryBlobs(tmp_path, sha1=sha1))]) for sha1 in (False, True)
    ]
    async with aiohttp.ClientSession() as session:
        for url, before, after in ((plain, 400, 400), (knowing, 404, 200)):
            for status in (before, after):
                async with session.get(f"{url}/blob/{sha1.upper()}") as answer:
                    assert answer.status == status
                async with session.put(f"{url}/blob", data=content) as answer:
                    assert answer.status in (200, 201)


@shows("an address is 64 hex digits, or `sha256-` with base64")
def test_addresses_have_two_forms() -> None:
    address = hashlib.sha256(b"x").hexdigest()
    assert address_of(address.upper()) == address
    assert address_of(sri(address)) == address
    for wrong in ("", "abc", "sha256-", "sha256-abc", "g" * 64, "../" + "a" * 61):
        with pytest.raises(BadAddress):
            address_of(wrong)


@shows("`PUT`, `GET` and `HEAD` work under both names of the blob store")
async def test_blobs_are_served_over_http(blobs: DirectoryBlobs) -> None:
    url, content = memory_url(None, protocols=[blob_routes(blobs)]), os.urandom(1_000_000)
    address = hashlib.sha256(content).hexdigest()
    async with aiohttp.ClientSession() as session:

        async def call(method: str, path: str, data: bytes | None = None) -> tuple[int, bytes]:
            async with session.request(method, url + path, data=None if data is None else io.BytesIO(data)) as answer:
                return answer.status, await answer.read()

        assert await call("PUT", "/blob", content) == (201, address.encode())
        assert await call("PUT", "/blob", content) == (200, address.encode())
        assert await call("POST", "/v1/storage/data", content) == (201, sri(address).encode())
        assert await call("GET", f"/blob/{address}") == (200, content)
        assert (await call("GET", f"/v1/storage/data/{address}"))[0] == 200
        async with session.head(f"{url}/blob/{address.upper()}") as answer:
            assert (answer.status, answer.headers["content-length"]) == (200, "1000000")
        assert (await call("GET", "/blob/" + "0" * 64))[0] == 404
        assert (await call("HEAD", "/blob/" + "0" * 64))[0] == 404
        assert (await call("GET", "/blob/nonsense"))[0] == 400
        assert (await call("PUT", "/blob", b"x" * 3_000_001))[0] == 413
        blobs.path(address).write_bytes(b"other")
        assert (await call("GET", f"/blob/{address}"))[0] == 500
        assert (await call("GET", f"/blob/{address}"))[0] == 404
