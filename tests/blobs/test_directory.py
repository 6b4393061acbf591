"""Blobs in a directory: the suite of all blob stores, and tests of this one alone."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from treadle.blobs import DirectoryBlobs
from treadle.errors import StorageFull
from treadle_testkit.blobs import *  # noqa: F403


class Folder:
    def __init__(self, path: Path) -> None:
        self.path = path

    def make(self, limit: int, sha1: bool = False) -> DirectoryBlobs:
        return DirectoryBlobs(self.path, limit, sha1)

    async def spoil(self, address: str, content: bytes) -> None:
        DirectoryBlobs(self.path).path(address).write_bytes(content)

    async def names(self) -> list[str]:
        return [str(each.relative_to(self.path)) for each in self.path.rglob("*") if each.is_file()]


@pytest.fixture
def shelf(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "blobs")


async def test_a_full_disk_raises_its_own_error(shelf: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    async def one() -> AsyncIterator[bytes]:
        yield b"x"

    monkeypatch.setattr("treadle.blobs.directory.append", full)
    with pytest.raises(StorageFull):
        await shelf.make(10).put(one())
    assert await shelf.names() == []


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
async def test_only_their_owner_can_read_blobs(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        folder = tmp_path / "blobs"
        await DirectoryBlobs(folder, sha1=True).put(_once(b"x"))
        for each in (folder, *folder.rglob("*")):
            assert each.stat().st_mode & 0o077 == 0, each
    finally:
        os.umask(before)


async def _once(content: bytes) -> AsyncIterator[bytes]:
    yield content
