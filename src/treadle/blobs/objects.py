"""Named objects for the large texts of jobs: in a folder, or in a bucket. The names are chosen by the caller."""

from __future__ import annotations

import asyncio
import hashlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

from msgspec import Struct

from treadle.blobs.directory import _flush, refusals
from treadle.core.clock import wall
from treadle.core.private_files import make_folder

INCOMING: Final = "incoming"  # files that are being written


class ObjectEntry(Struct, frozen=True):
    """One object of a list: its name, its size in bytes, and the seconds since it was written, by the clock of the
    store: that of this machine may be wrong."""

    name: str
    size: int
    age: float


class Objects(Protocol):
    """A store of named objects. Names consist of letters, digits and `-._~%/`. Raises StorageFull and
    StorageUnavailable."""

    async def put(self, name: str, content: bytes) -> None:
        """Store an object durably and atomically; one of this name is replaced."""
        ...

    async def get(self, name: str) -> bytes | None:
        """The content; None if there is no such object."""
        ...

    async def delete(self, names: Sequence[str], age: float = 0.0) -> None:
        """Delete each of these objects that was written at least `age` seconds ago; unknown names are ignored. An
        object that was put again meanwhile is young, and stays."""
        ...

    async def page(self, after: str, limit: int) -> Sequence[ObjectEntry]:
        """The next objects by name after this one, at most `limit` (1,000 at most); () after the last one."""
        ...

    def fresh(self) -> Objects:
        """The same store for another event loop. Closing one of the two does not close the other."""
        ...

    async def close(self) -> None: ...


class FolderObjects:
    """Objects as files of a folder, which is made if it is missing. Several processes may share it."""

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder).absolute()

    def __str__(self) -> str:
        return str(self._folder)

    def fresh(self) -> FolderObjects:
        return FolderObjects(self._folder)

    async def close(self) -> None:
        """Do nothing: no files stay open."""

    async def put(self, name: str, content: bytes) -> None:
        await asyncio.to_thread(self._put, name, content)

    async def get(self, name: str) -> bytes | None:
        return await asyncio.to_thread(self._get, name)

    async def delete(self, names: Sequence[str], age: float = 0.0) -> None:
        await asyncio.to_thread(self._delete, names, age)

    async def page(self, after: str, limit: int) -> Sequence[ObjectEntry]:
        return await asyncio.to_thread(self._page, after, limit)

    def _put(self, name: str, content: bytes) -> None:
        target = self._folder / name
        with refusals(self._folder):
            if self._get(name) == content and _touch(target):
                return
            make_folder(self._folder / INCOMING)
            make_folder(target.parent)
            descriptor, path = tempfile.mkstemp(dir=self._folder / INCOMING)
            try:
                with os.fdopen(descriptor, "wb") as out:
                    out.write(content)
                    out.flush()
                    os.fsync(out.fileno())
                self._rename(path, target)
            finally:
                with suppress(OSError):
                    os.unlink(path)
            for folder in (target.parent, target.parent.parent, self._folder):  # new names survive a crash, too
                _flush(folder)

    def _rename(self, path: str, target: Path) -> None:
        for _ in range(3):
            try:
                os.replace(path, target)
                return
            except FileNotFoundError:  # `_delete` has removed the empty folder meanwhile
                make_folder(target.parent)
        os.replace(path, target)

    def _get(self, name: str) -> bytes | None:
        with refusals(self._folder):
            try:
                return (self._folder / name).read_bytes()
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                return None

    def _delete(self, names: Sequence[str], age: float) -> None:
        with refusals(self._folder):
            make_folder(self._folder / INCOMING)
            now = self._now() if names else 0.0
            for name in names:
                self._delete_one(self._folder / name, now - age)

    def _delete_one(self, target: Path, before: float) -> None:
        """Delete a file that was last written by then. A `put` may touch it between any check and the deletion, so it
        is renamed first: a `put` that comes later writes a new file, and one that came earlier shows in its time."""
        renamed = self._folder / INCOMING / f"{os.urandom(8).hex()}.deleted"
        try:
            if target.stat().st_mtime > before:
                return
            os.rename(target, renamed)
        except (FileNotFoundError, NotADirectoryError):
            return
        if renamed.stat().st_mtime > before:
            self._rename(str(renamed), target)
            return
        renamed.unlink()
        with suppress(OSError):  # it still has other files
            target.parent.rmdir()

    def _now(self) -> float:
        """The time by the clock that dates the files. On a network file system that is another machine's clock."""
        try:
            with tempfile.TemporaryFile(dir=self._folder / INCOMING) as probe:
                return os.fstat(probe.fileno()).st_mtime
        except OSError:  # a folder that cannot be written, or that nothing was written to
            return wall()

    def _page(self, after: str, limit: int) -> Sequence[ObjectEntry]:
        entries, now = list[ObjectEntry](), self._now()
        with refusals(self._folder):
            for name in self._names(after):
                with suppress(FileNotFoundError):
                    stat = (self._folder / name).stat()
                    entries.append(ObjectEntry(name, stat.st_size, max(0.0, now - stat.st_mtime)))
                if len(entries) == limit:
                    break
        return entries

    def _names(self, after: str) -> Iterator[str]:
        first, _, rest = after.partition("/")
        for shard in _below(self._folder, first):
            if len(shard) != 2:
                continue
            second, _, last = (rest if shard == first else "").partition("/")
            for owner in _below(self._folder / shard, second):
                for leaf in _below(self._folder / shard / owner, last if owner == second else ""):
                    if (name := f"{shard}/{owner}/{leaf}") > after:
                        yield name


def _touch(file: Path) -> bool:
    """Date the file as if it were written now; False if it was deleted meanwhile."""
    try:
        os.utime(file)
    except FileNotFoundError:
        return False
    return True


def _below(folder: Path, start: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(folder) if name >= start)
    except (FileNotFoundError, NotADirectoryError):
        return []


def digest_of(content: bytes) -> str:
    """The SHA-256 of the bytes in hex."""
    return hashlib.sha256(content).hexdigest()
