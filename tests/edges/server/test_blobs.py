"""Blobs: the store itself, and the calls by which others reach it."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from tests.served import memory_url
from treadle.blobs import BadAddress, Corrupt, DirectoryBlobs, NoBlob, TooBig, address_of, sri
from treadle.errors import StorageFull
from treadle.faces.blobs import blob_face


async def pieces(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def read(blobs: DirectoryBlobs, address: str) -> bytes:
    async with blobs.read(address) as blob:
        found = b"".join([piece async for piece in blob])
    assert len(found) == blob.size
    return found


@pytest.fixture
def blobs(tmp_path: Path) -> DirectoryBlobs:
    return DirectoryBlobs(tmp_path / "blobs", limit=3_000_000)


@pytest.mark.parametrize("content", [b"", b"a", os.urandom(2_500_000)], ids=["empty", "small", "large"])
async def test_what_is_put_is_what_is_read(blobs: DirectoryBlobs, content: bytes) -> None:
    address, is_new = await blobs.put(pieces(content[:1000], b"", content[1000:]))
    assert (address, is_new) == (hashlib.sha256(content).hexdigest(), True)
    assert await read(blobs, address) == content
    assert await blobs.size(address) == len(content)
    assert await blobs.put(pieces(content)) == (address, False)


async def test_a_flipped_byte_is_found_and_set_aside(blobs: DirectoryBlobs, tmp_path: Path) -> None:
    address, _ = await blobs.put(pieces(b"x" * 1000))
    path = blobs.path(address)
    path.write_bytes(b"x" * 500 + b"y" + b"x" * 499)
    with pytest.raises(Corrupt):
        await read(blobs, address)
    with pytest.raises(NoBlob):
        await read(blobs, address)
    assert len(list((tmp_path / "blobs/quarantine").iterdir())) == 1
    assert await blobs.put(pieces(b"x" * 1000)) == (address, True)
    assert await read(blobs, address) == b"x" * 1000


async def test_a_spoiled_one_is_replaced_when_it_is_put_again(blobs: DirectoryBlobs) -> None:
    address, _ = await blobs.put(pieces(b"whole"))
    blobs.path(address).write_bytes(b"who")
    assert await blobs.put(pieces(b"whole")) == (address, True)
    assert await read(blobs, address) == b"whole"


async def test_what_fails_on_the_way_leaves_nothing(blobs: DirectoryBlobs, tmp_path: Path) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"begun"
        raise RuntimeError("gone")

    with pytest.raises(RuntimeError, match="gone"):
        await blobs.put(broken())
    with pytest.raises(TooBig):
        await blobs.put(pieces(b"x" * 2_000_000, b"x" * 2_000_000))
    assert [path for path in (tmp_path / "blobs").rglob("*") if path.is_file()] == []


async def test_a_full_disk_is_said(blobs: DirectoryBlobs, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("treadle.blobs.directory._append", full)
    with pytest.raises(StorageFull):
        await blobs.put(pieces(b"x"))


async def test_an_address_with_slashes_is_one_all_the_same(blobs: DirectoryBlobs) -> None:
    """Half of all addresses have one in base64."""
    url = memory_url(None, faces=[blob_face(blobs)])
    content = next(b"%d" % n for n in range(100) if "/" in sri(hashlib.sha256(b"%d" % n).hexdigest()))
    address, _ = await blobs.put(pieces(content))
    async with aiohttp.ClientSession() as session:
        for path in (f"/v1/storage/data/{sri(address)}", f"/blob/{sri(address).replace('/', '_').replace('+', '-')}"):
            async with session.get(url + path) as answer:
                assert (answer.status, await answer.read()) == (200, content)


def test_addresses_have_two_forms() -> None:
    address = hashlib.sha256(b"x").hexdigest()
    assert address_of(address.upper()) == address
    assert address_of(sri(address)) == address
    for wrong in ("", "abc", "sha256-", "sha256-abc", "g" * 64, "../" + "a" * 61):
        with pytest.raises(BadAddress):
            address_of(wrong)


async def test_over_http(blobs: DirectoryBlobs) -> None:
    url, content = memory_url(None, faces=[blob_face(blobs)]), os.urandom(1_000_000)
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
