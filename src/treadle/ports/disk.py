"""The few things a queue asks of a disk. Without them as an interface no test could let a disk fail or a write tear."""

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
    """Files beside each other, each written only at its end. Raises OSError. Called in a thread, one call at a time."""

    def lock(self, path: Path) -> int:
        """Be the only one with this file, over processes; what `unlock` wants. BlockingIOError: somebody else is."""
        ...

    def unlock(self, lock: int) -> None: ...

    def is_in_place(self, lock: int, path: Path) -> bool:
        """Whether the path still names the file that is locked."""
        ...

    def list(self, path: Path) -> list[Path]:
        """The files beside `path` whose names go on where its name ends, in the order of their names."""
        ...

    def read(self, path: Path) -> bytes: ...

    def append(self, path: Path, data: bytes) -> None:
        """Add to the end, making the file if it is not there; on the disk when it returns."""
        ...

    def truncate(self, path: Path, size: int) -> None: ...

    def rename(self, path: Path, to: Path) -> None: ...

    def delete(self, path: Path) -> None: ...


class Disk:
    """The real one."""

    def lock(self, path: Path) -> int:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, FILE)
        try:
            if sys.platform == "win32":
                msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
            else:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            raise BlockingIOError(f"{path} is locked by another process, or another queue of this one") from error
        return descriptor

    def unlock(self, lock: int) -> None:
        os.close(lock)

    def is_in_place(self, lock: int, path: Path) -> bool:
        try:
            return os.path.samestat(os.fstat(lock), os.stat(path))
        except OSError:
            return False

    def list(self, path: Path) -> list[Path]:
        return sorted(each for each in path.parent.glob(f"{path.name}.*") if each.suffix[1:].isdigit())

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
        """The name of a new file is in its folder, which has to reach the disk too."""
        if sys.platform != "win32":
            descriptor = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
