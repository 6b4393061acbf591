"""Blobs as files of a directory: `ab/abcdef...`, written beside and renamed, verified on every read.

Without the temporary file, the flush and the rename a crash would leave half a blob under the name of the whole one,
and it would count as stored for ever.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import logging
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import IO, Final

from treadle.blobs.store import BadAddress, Blob, Corrupt, NoBlob, TooBig
from treadle.core.private_files import make_folder
from treadle.errors import StorageFull, StorageUnavailable

log = logging.getLogger("treadle")

PIECE: Final = 256 * 1024  # bytes read or written at once, in a thread
MOST: Final = 256 * 2**20  # bytes of one blob, by default


class DirectoryBlobs:
    """Blobs in a directory, which is made if it is not there. Several processes may share it.

    limit  bytes of the largest blob
    sha1   blobs put from now on are found by their SHA-1 as well
    """

    def __init__(self, folder: str | Path, limit: int = MOST, sha1: bool = False) -> None:
        self._folder, self._limit, self._sha1 = Path(folder), limit, sha1
        self._aside = self._folder / "quarantine"
        self._incoming = self._folder / "incoming"
        for each in (self._folder, self._aside, self._incoming):
            make_folder(each)

    async def close(self) -> None:
        """It holds nothing open."""

    def path(self, address: str) -> Path:
        """Where the blob lies, if it is there."""
        return self._folder / address[:2] / address

    async def put(self, content: AsyncIterator[bytes]) -> tuple[str, bool]:
        try:
            descriptor, name = tempfile.mkstemp(dir=self._incoming)
        except OSError as error:
            raise refusal(error, self._folder) from error
        sha, old, size = hashlib.sha256(), hashlib.sha1(usedforsecurity=False), 0
        try:
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
        except OSError as error:
            raise refusal(error, self._folder) from error
        finally:
            with suppress(OSError):
                os.unlink(name)
        return address, is_new

    def _keep(self, out: IO[bytes], name: str, address: str) -> bool:
        """Give the flushed file its name. True if no good one bore it; what lies there spoiled is replaced."""
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
        """Write down, whole or not at all, what has this SHA-1."""
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
            raise BadAddress("this store does not look blobs up by their SHA-1")
        try:
            return await asyncio.to_thread((self._folder / "sha1" / sha1).read_text)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise refusal(error, self._folder) from error

    async def size(self, address: str) -> int | None:
        try:
            return (await asyncio.to_thread(os.stat, self.path(address))).st_size
        except FileNotFoundError:
            return None
        except OSError as error:
            raise refusal(error, self._folder) from error

    @asynccontextmanager
    async def read(self, address: str) -> AsyncIterator[Blob]:
        """Verified once as a whole, then handed out from the same open file, which nobody writes to."""
        path = self.path(address)
        try:
            with await asyncio.to_thread(open, path, "rb", 0) as file:
                found = await asyncio.to_thread(_digest_of, file)
                if found != address:
                    await asyncio.to_thread(self._set_aside, path, found)
                    raise Corrupt(f"the bytes of {address} are spoiled; they were moved to {self._aside}")
                yield File(file)
        except FileNotFoundError:
            raise NoBlob(f"there is no blob {address}") from None
        except IsADirectoryError:
            raise NoBlob(f"there is no blob {address}") from None

    def _set_aside(self, path: Path, found: str) -> None:
        log.error("%s holds other bytes than its name says (sha256 %s); it is moved to %s", path, found, self._aside)
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
    """Write all of a piece, and count it in."""
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
    """Make a new name in a directory outlive a crash, where the system lets directories be flushed."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def refusal(error: OSError, folder: Path | str) -> Exception:
    """What an error of the disk means to whoever puts or reads."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
        return StorageFull(f"no room for blobs in {folder}: {error.strerror}")
    return StorageUnavailable(f"blobs in {folder}: {error.strerror or error}")
