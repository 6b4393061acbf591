"""Tests that any blob store (`treadle.blobs.Blobs`) must pass.

A test module for a store:

    import pytest
    from treadle_testkit.blobs import *  # noqa: F403

    @pytest.fixture
    def shelf():
        return MyShelf()

A shelf has `make(limit, sha1=False)`, which returns a store, always over the same data, and coroutine functions that
access this data directly: `spoil(address, content)` replaces the bytes of an address; `names()` lists all stored names,
with "quarantine" in those of quarantined blobs. Needs pytest and no plugin.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import inspect
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Protocol

import pytest

from treadle.blobs import BadAddress, Blob, Blobs, Corrupt, NoBlob, TooBig
from treadle_testkit.shows import shows

LIMIT = 3_000_000  # bytes


class Shelf(Protocol):
    """The data of a blob store, as the tests access it."""

    def make(self, limit: int, sha1: bool = False) -> Blobs: ...
    async def spoil(self, address: str, content: bytes) -> None: ...
    async def names(self) -> list[str]: ...


def checked(check: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Turn a check into a test: it runs in its own event loop, with a store that is closed afterwards."""
    more = list(inspect.signature(check).parameters.values())[2:]

    @functools.wraps(check)
    def test(shelf: Shelf, **given: Any) -> None:
        async def play() -> None:
            blobs = shelf.make(LIMIT)
            try:
                await check(shelf, blobs, **given)
            finally:
                await blobs.close()

        asyncio.run(play())

    first = inspect.Parameter("shelf", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    test.__signature__ = inspect.Signature([first, *more])  # type: ignore[attr-defined]
    return test


async def pieces(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def content_of(blob: Blob) -> bytes:
    content = b"".join([piece async for piece in blob])
    assert len(content) == blob.size
    return content


async def read(blobs: Blobs, address: str) -> bytes:
    async with blobs.read(address) as blob:
        return await content_of(blob)


async def kept(shelf: Shelf) -> list[str]:
    return [name for name in await shelf.names() if "quarantine" not in name]


@shows("a blob reads back as it was written, and a second write of it stores nothing")
@pytest.mark.parametrize("size", [0, 1, 2_500_000])
@checked
async def test_blobs_a_blob_reads_back_as_it_was_written(shelf: Shelf, blobs: Blobs, size: int) -> None:
    content = os.urandom(size)
    address, is_new = await blobs.put(pieces(content[:1000], b"", content[1000:]))
    assert (address, is_new) == (hashlib.sha256(content).hexdigest(), True)
    assert await read(blobs, address) == content
    assert await blobs.size(address) == len(content)
    assert await blobs.put(pieces(content)) == (address, False)
    assert len(await kept(shelf)) == 1


@checked
async def test_blobs_a_missing_blob_is_an_error(shelf: Shelf, blobs: Blobs) -> None:
    assert await blobs.size("0" * 64) is None
    with pytest.raises(NoBlob):
        await read(blobs, "0" * 64)


@shows("a read that finds a changed byte fails and sets the blob aside")
@checked
async def test_blobs_a_flipped_byte_is_found_and_set_aside(shelf: Shelf, blobs: Blobs) -> None:
    address, _ = await blobs.put(pieces(b"x" * 1000))
    await shelf.spoil(address, b"x" * 500 + b"y" + b"x" * 499)
    with pytest.raises(Corrupt):
        await read(blobs, address)
    with pytest.raises(NoBlob):
        await read(blobs, address)
    assert [address in name for name in await shelf.names() if "quarantine" in name] == [True]
    assert await blobs.put(pieces(b"x" * 1000)) == (address, True)
    assert await read(blobs, address) == b"x" * 1000


@checked
async def test_blobs_a_damaged_one_is_replaced_when_it_is_put_again(shelf: Shelf, blobs: Blobs) -> None:
    address, _ = await blobs.put(pieces(b"whole"))
    for spoiled in (b"who", b"whale"):
        await shelf.spoil(address, spoiled)
        assert await blobs.put(pieces(b"whole")) == (address, True)
        assert await read(blobs, address) == b"whole"


@shows("a write that fails or exceeds the size limit leaves no file")
@checked
async def test_blobs_a_write_that_fails_leaves_nothing(shelf: Shelf, blobs: Blobs) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"begun"
        raise RuntimeError("gone")

    with pytest.raises(RuntimeError, match="gone"):
        await blobs.put(broken())
    with pytest.raises(TooBig) as error:
        await blobs.put(pieces(b"x" * 2_000_000, b"x" * 2_000_000))
    assert error.value.limit == LIMIT
    assert await shelf.names() == []


@checked
async def test_blobs_each_of_many_concurrent_writes_of_a_blob_succeeds(shelf: Shelf, blobs: Blobs) -> None:
    other = shelf.make(LIMIT)
    try:
        answers = await asyncio.gather(*[writer.put(pieces(b"same")) for writer in (blobs, other) * 5])
        assert {address for address, _ in answers} == {hashlib.sha256(b"same").hexdigest()}
        assert await read(other, answers[0][0]) == b"same"
        assert len(await kept(shelf)) == 1
    finally:
        await other.close()


@shows("a store finds blobs by SHA-1 only if it was made with `sha1=True`")
@checked
async def test_blobs_are_found_by_their_sha1_with_the_option(shelf: Shelf, blobs: Blobs) -> None:
    content = b"old address"
    sha1 = hashlib.sha1(content, usedforsecurity=False).hexdigest()
    with pytest.raises(BadAddress):
        await blobs.find(sha1)
    other = shelf.make(LIMIT, sha1=True)
    try:
        assert await other.find(sha1) is None
        address, _ = await other.put(pieces(content[:3], content[3:]))
        assert await other.put(pieces(content)) == (address, False)
        assert await other.find(sha1) == address
        assert await read(other, address) == content
    finally:
        await other.close()
