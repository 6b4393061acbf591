"""The lock beside the database, taken before each write transaction: waiting in line instead of polling for SQLite's.

Without it two busy processes share the writes 11 to 89, and one of them waits half a second (measured); and two
connections could write and checkpoint at once, which SQLite before 3.51.3 does not always survive. Its holder may leave
a note in it for the next ones (asks.py).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Final

from treadle import clock

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl


WAIT: Final = 10.0  # s to wait for other writers, then StorageUnavailable


class LockFile:
    """One holder at a time, over processes and over objects. Gone with its process, however that ends."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o666)

    if sys.platform == "win32":

        def try_lock(self) -> bool:
            try:
                os.lseek(self._fd, 0, os.SEEK_SET)
                msvcrt.locking(self._fd, msvcrt.LK_NBLCK, 1)
            except OSError:
                return False
            return True

        def lock(self) -> None:
            while not self.try_lock():
                time.sleep(0.002)

        def unlock(self) -> None:
            os.lseek(self._fd, 0, os.SEEK_SET)
            msvcrt.locking(self._fd, msvcrt.LK_UNLCK, 1)

    else:

        def try_lock(self) -> bool:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

        def lock(self) -> None:
            """Blocks; for a thread."""
            fcntl.flock(self._fd, fcntl.LOCK_EX)

        def unlock(self) -> None:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def note(self, most: int) -> bytes:
        """What a holder has noted; b"" where the system knows no such reading."""
        return os.pread(self._fd, most, 0) if hasattr(os, "pread") else b""

    def set_note(self, text: bytes) -> None:
        """Over the last one, or its beginning; it is not made durable. Where there is no room, nothing is noted."""
        try:
            os.pwrite(self._fd, text, 0)
        except OSError:
            os.ftruncate(self._fd, 0)

    def close(self) -> None:
        """Lets go of it too."""
        os.close(self._fd)


def patiently(lock: LockFile, unwanted: Callable[[], bool] = lambda: False) -> bool:
    """Lock it, or give up after WAIT, or when it is not wanted any more. For a thread."""
    until = clock.monotonic() + WAIT
    pause = 0.0002
    while not lock.try_lock():
        if clock.monotonic() > until or unwanted():
            return False
        time.sleep(pause)
        pause = min(pause * 1.5, 0.002)
    return True
