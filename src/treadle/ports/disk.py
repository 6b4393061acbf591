"""The file operations of a queue, as an interface, so that tests can simulate failing disks and torn writes."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Protocol

from treadle.core.private_files import FILE

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl


class Files(Protocol):
    """Append-only files in one folder. Raises OSError. Called in a thread, one call at a time."""

    def lock(self, path: Path) -> int:
        """Lock the file against other processes -> the argument for `unlock`. BlockingIOError: it is locked already."""
        ...

    def unlock(self, lock: int) -> None: ...

    def is_in_place(self, lock: int, path: Path) -> bool:
        """Whether the path still names the locked file."""
        ...

    def list(self, path: Path) -> list[Path]:
        """The files next to `path` whose names begin with its name, in the order of their names."""
        ...

    def read(self, path: Path) -> bytes: ...

    def append(self, path: Path, data: bytes) -> None:
        """Append to the file, which is created if missing; synced to disk when it returns."""
        ...

    def overwrite(self, path: Path, data: bytes, sync: bool) -> None:
        """Write at the beginning of the file, which is created if missing. `sync`: on disk when it returns."""
        ...

    def truncate(self, path: Path, size: int) -> None: ...

    def rename(self, path: Path, to: Path) -> None: ...

    def delete(self, path: Path) -> None: ...


class Disk:
    """The real file system."""

    def lock(self, path: Path) -> int:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, FILE)
        try:
            if sys.platform == "win32":
                msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
            else:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            raise BlockingIOError(f"another process, or another queue of this process, has locked {path}") from error
        return descriptor

    def unlock(self, lock: int) -> None:
        os.close(lock)

    def is_in_place(self, lock: int, path: Path) -> bool:
        try:
            return os.path.samestat(os.fstat(lock), os.stat(path))
        except OSError:
            return False

    def list(self, path: Path) -> list[Path]:
        return sorted(file for file in path.parent.glob(f"{path.name}.*") if file.suffix[1:].isdecimal())

    def read(self, path: Path) -> bytes:
        return path.read_bytes()

    def append(self, path: Path, data: bytes) -> None:
        is_new = not path.exists()
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, FILE)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if is_new:
            self._keep_name(path)

    def overwrite(self, path: Path, data: bytes, sync: bool) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, FILE)
        try:
            os.write(descriptor, data)
            if sync:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if sync:
            self._keep_name(path)

    def truncate(self, path: Path, size: int) -> None:
        with path.open("r+b") as file:
            file.truncate(size)
            os.fsync(file.fileno())

    def rename(self, path: Path, to: Path) -> None:
        path.replace(to)
        self._keep_name(to)

    def delete(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    @staticmethod
    def _keep_name(path: Path) -> None:
        """Sync the folder, which has the name of a new file."""
        if sys.platform != "win32":
            descriptor = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
