"""Stores blobs as files of a directory, `ab/abcdef...`, and verifies them on every read.

A blob is written to a temporary file, flushed and renamed, so that a crash leaves no partial blob under an address.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import logging
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import IO, Final, TypeVar

from treadle.blobs.store import BadAddress, Blob, Corrupt, NoBlob, TooBig
from treadle.core.errors import StorageFull, StorageUnavailable
from treadle.core.private_files import make_folder

log = logging.getLogger("treadle")

T = TypeVar("T")

PIECE: Final = 256 * 1024  # bytes read or written at once, in a thread
MOST: Final = 256 * 2**20  # bytes of one blob, by default


class DirectoryBlobs:
    """Blobs in a directory, which is created if missing. Several processes may share it.

    limit  bytes of the largest blob
    sha1   whether new blobs can also be found by their SHA-1
    """

    def __init__(self, folder: str | Path, limit: int = MOST, sha1: bool = False) -> None:
        self._folder, self._limit, self._sha1 = Path(folder), limit, sha1
        self._aside = self._folder / "quarantine"
        self._incoming = self._folder / "incoming"
        for subfolder in (self._folder, self._aside, self._incoming):
            make_folder(subfolder)

    async def close(self) -> None:
        """Do nothing: no files stay open."""

    def path(self, address: str) -> Path:
        """The path of a blob, which may not exist."""
        return self._folder / address[:2] / address

    async def put(self, content: AsyncIterator[bytes]) -> tuple[str, bool]:
        with refusals(self._folder):
            descriptor, name = tempfile.mkstemp(dir=self._incoming)
        sha, old, size = hashlib.sha256(), hashlib.sha1(usedforsecurity=False), 0
        try:
            with refusals(self._folder):
                with os.fdopen(descriptor, "wb", buffering=0) as out:
                    async for piece in content:
                        size += len(piece)
                        if size > self._limit:
                            raise TooBig("the blob", size, self._limit)
                        if piece:
                            await asyncio.to_thread(append, out, piece, sha)
                            if self._sha1:
                                await asyncio.to_thread(old.update, piece)
                    address = sha.hexdigest()
                    is_new = await asyncio.to_thread(self._keep, out, name, address)
                if self._sha1:
                    await asyncio.to_thread(self._note, old.hexdigest(), address)
        finally:
            with suppress(OSError):
                os.unlink(name)
        return address, is_new

    def _keep(self, out: IO[bytes], name: str, address: str) -> bool:
        """Flush and rename the file. Returns False if an intact blob exists already; a corrupt one is replaced."""
        target = self.path(address)
        if target.exists() and _digest(target) == address:
            return False
        os.fsync(out.fileno())
        if not target.parent.exists():
            make_folder(target.parent)
            _flush(self._folder)
        os.replace(name, target)
        _flush(target.parent)
        return True

    def _note(self, sha1: str, address: str) -> None:
        """Store the address of a SHA-1, atomically."""
        target = self._folder / "sha1" / sha1
        if target.exists():
            return
        make_folder(target.parent)
        with tempfile.NamedTemporaryFile("w", dir=self._incoming, delete=False) as out:
            out.write(address)
            out.flush()
            os.fsync(out.fileno())
        os.replace(out.name, target)
        _flush(target.parent)

    async def find(self, sha1: str) -> str | None:
        if not self._sha1:
            raise BadAddress("this store keeps no index of SHA-1: ask for the blob by its SHA-256")
        return await self._if_there(Path.read_text, self._folder / "sha1" / sha1)

    async def size(self, address: str) -> int | None:
        stat = await self._if_there(Path.stat, self.path(address))
        return None if stat is None else stat.st_size

    async def _if_there(self, look: Callable[[Path], T], path: Path) -> T | None:
        with refusals(self._folder):
            try:
                return await asyncio.to_thread(look, path)
            except FileNotFoundError:
                return None

    @asynccontextmanager
    async def read(self, address: str) -> AsyncIterator[Blob]:
        """Verify the whole file, then read from the same open file, which is never written to."""
        path = self.path(address)
        try:
            with await asyncio.to_thread(open, path, "rb", 0) as file:
                digest = await asyncio.to_thread(_digest_of, file)
                if digest != address:
                    await asyncio.to_thread(self._set_aside, path, digest)
                    raise Corrupt(f"the file of {address} is corrupt; it was moved to {self._aside}")
                yield File(file)
        except (FileNotFoundError, IsADirectoryError):
            raise NoBlob(f"there is no blob {address}") from None

    def _set_aside(self, path: Path, digest: str) -> None:
        log.error("%s does not match its name (it has the SHA-256 %s); moving it to %s", path, digest, self._aside)
        with suppress(FileNotFoundError):
            os.replace(path, self._aside / f"{path.name}.{os.urandom(4).hex()}")


class File:
    """An open file as a blob."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.size = file.seek(0, os.SEEK_END)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        await asyncio.to_thread(self._file.seek, 0)
        while piece := await asyncio.to_thread(self._file.read, PIECE):
            yield piece


def append(out: IO[bytes], piece: bytes, sha: hashlib._Hash) -> None:
    """Write all of a piece, and update the digest."""
    view = memoryview(piece)
    sha.update(view)
    while view:
        view = view[out.write(view) :]


def _digest(path: Path) -> str:
    with open(path, "rb", 0) as file:
        return _digest_of(file)


def _digest_of(file: IO[bytes]) -> str:
    return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]


def _flush(folder: Path) -> None:
    """Flush a directory, so that a new name survives a crash, on systems that support it."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def refusals(folder: Path | str) -> Iterator[None]:
    """Raise StorageFull or StorageUnavailable for an error of the disk."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
            raise StorageFull(f"no room for blobs in {folder}: {error.strerror}") from error
        raise StorageUnavailable(f"blobs in {folder}: {error.strerror or error}") from error
