"""The lock beside the database, taken before each write transaction: waiting in line instead of polling for SQLite's.

Without it two busy processes share the writes 11 to 89, and one of them waits half a second (measured); and two
connections could write and checkpoint at once, which SQLite before 3.51.3 does not always survive.
"""

from __future__ import annotations

import os
import sys
import time

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl


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

    def close(self) -> None:
        """Lets go of it too."""
        os.close(self._fd)
