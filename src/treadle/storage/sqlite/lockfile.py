"""The lock file next to the database: a process takes its lock before each write transaction.

With SQLite's lock alone, two busy processes share the writes 11 to 89, and one of them waits half a second (measured).
So the lock only orders the writers; SQLite's write lock protects the file. A process that waits for PATIENCE, while no
other one releases the lock, writes without it: its holder may be stopped, or may wait for the GIL. A writer may leave
notes in the file for the next ones (waiting_workers.py).
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import struct
import sys
import threading
import time
from collections.abc import Callable
from typing import Final

from treadle.concurrency import forks
from treadle.core import clock
from treadle.core.errors import Locked, StorageUnavailable
from treadle.core.private_files import FILE, share
from treadle.storage.sqlite.lock_holders import holder_of, writer_of
from treadle.storage.sqlite.lock_waiter import LockWaiter

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl


WAIT: Final = 10.0  # s to wait for other writers, then Locked
PATIENCE: Final = 0.2  # s to wait for one holder of the lock: longer than the transactions of a busy process take
PAUSE: Final = 0.002  # s between two attempts to begin a transaction
SLICE: Final = 0.05  # s between two looks whether the lock is still wanted
READERS: Final = struct.Struct("<dd")
READERS_AT: Final = 2**17  # offset in the file, after everything that `set_note` may write
TURNS: Final = struct.Struct("<Q")
TURNS_AT: Final = READERS_AT + READERS.size


class LockFile:
    """A lock with one holder at a time, among processes and among objects. It is released when its process ends,
    however that happens: a forked child closes its copy of the descriptor."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.is_held = self.is_stuck = False  # is_stuck: the last wait for the lock ended without it
        self.guard = threading.Lock()  # of the descriptor and `is_held`
        self._waiter: LockWaiter | None = None
        self._has_waited = False
        with forks.opening:
            self.fd = self._open()
            forks.register(self)

    def _open(self) -> int:
        # If the path were another user's symbolic link, the notes would be written to its target.
        how = os.O_RDWR | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
        try:
            while True:
                with contextlib.suppress(FileNotFoundError):
                    return os.open(self.path, how)
                with contextlib.suppress(FileExistsError):  # another process was faster
                    fd = os.open(self.path, how | os.O_CREAT | os.O_EXCL, FILE)
                    share(self.path, self.path.removesuffix("-lock"))
                    return fd
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            problem = f"{self.path} is a symbolic link, expected a file of Treadle's own"
            raise StorageUnavailable(f"{problem}: another user may have created it; delete it") from None

    def forked(self) -> None:
        self.guard = threading.Lock()  # a thread of the parent may have locked it
        waiter, self._waiter = self._waiter, None
        for fd in {self.fd, -1 if waiter is None else waiter.blocked_on} - {-1}:
            os.close(fd)
        self.fd = -1

    def is_in_place(self) -> bool:
        """Whether the path still names the file that is open here."""
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self.fd))
        except OSError:
            return False

    def reopen(self) -> None:
        """Open the file that the path names now. Call this only while the lock is not held through this object."""
        with forks.opening:
            fd = self._open()
            self.close(fd)

    if sys.platform == "win32":

        def try_lock(self) -> bool:
            try:
                os.lseek(self.fd, 0, os.SEEK_SET)
                msvcrt.locking(self.fd, msvcrt.LK_NBLCK, 1)
            except OSError:
                return False
            self.is_held, self.is_stuck = True, False
            return True

        def unlock(self) -> None:
            """Release the lock, if it is held through this object."""
            if self.is_held:
                self.is_held = False
                os.lseek(self.fd, 0, os.SEEK_SET)
                msvcrt.locking(self.fd, msvcrt.LK_UNLCK, 1)

        def wait(self, until: float) -> bool:
            """Nothing can be waited for here: poll."""
            time.sleep(min(PAUSE, max(0.0, until - clock.monotonic())))
            return False

        def turns(self) -> int:
            """Not known here."""
            return 0

    else:

        def try_lock(self) -> bool:
            with self.guard:
                try:
                    fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return False
                self.take_over()
                return True

        def unlock(self) -> None:
            """Release the lock, if it is held through this object."""
            with self.guard:
                if self.is_held:
                    self.release()

        def wait(self, until: float) -> bool:
            """Wait until this time of the monotonic clock, in a thread. Returns whether the lock is held."""
            if self._waiter is None:
                self._waiter = LockWaiter(self)
            self._has_waited = True
            return self._waiter.wait(until)

        def block(self, fd: int) -> None:
            fcntl.flock(fd, fcntl.LOCK_EX)

        def take_over(self) -> None:
            self.is_held, self.is_stuck = True, False

        def release(self) -> None:
            if self._has_waited:  # others wait too
                self._has_waited = False
                with contextlib.suppress(OSError):
                    os.pwrite(self.fd, TURNS.pack(self.turns() + 1), TURNS_AT)
            self.is_held = False
            fcntl.flock(self.fd, fcntl.LOCK_UN)

        def turns(self) -> int:
            """How many processes have waited for the lock and then released it. While this number grows, its holder is
            not stopped."""
            note = os.pread(self.fd, TURNS.size, TURNS_AT)
            return TURNS.unpack(note)[0] if len(note) == TURNS.size else 0

    def note(self, most: int) -> bytes:
        """The note that an earlier holder left; b"" on systems without `pread`."""
        return os.pread(self.fd, most, 0) if hasattr(os, "pread") else b""

    def set_note(self, text: bytes) -> None:
        """Overwrite the note, or the beginning of a longer one. It is not durable. If the disk is full, the note is
        removed."""
        try:
            os.pwrite(self.fd, text, 0)
        except OSError:
            os.ftruncate(self.fd, 0)

    def patience(self) -> tuple[float, float]:
        """Until when no process waits for readers, and how many seconds that pause lasts. The last holder whose wait
        for readers failed has written both. Zeros: no note."""
        note = os.pread(self.fd, READERS.size, READERS_AT) if hasattr(os, "pread") else b""
        if len(note) < READERS.size:
            return 0.0, 0.0
        until, pause = READERS.unpack(note)
        return until, pause

    def set_patience(self, until: float, pause: float) -> None:
        """Leave that note. It is only a hint: if the disk is full, nothing is noted."""
        if hasattr(os, "pwrite"):
            with contextlib.suppress(OSError):
                os.pwrite(self.fd, READERS.pack(until, pause), READERS_AT)

    def close(self, new: int = -1) -> None:
        """Close the descriptor, which also releases the lock. A second call does nothing."""
        with self.guard:
            fd, self.fd = self.fd, new
            if self._waiter is not None:
                self._waiter.leave()
                if self._waiter.blocked_on == fd:
                    return
            if fd >= 0:
                os.close(fd)


def held(lock: LockFile) -> Locked:
    """The error to raise after WAIT seconds. The process that has the lock file may itself wait for SQLite's lock."""
    path = lock.path.removesuffix("-lock")
    pid, program = writer_of(path)
    if pid is None:
        pid, program = holder_of(lock.path)
    if pid == os.getpid():
        advice = "a transaction of this process: make the call after its commit, or pass its connection as within="
    else:
        advice = (
            f"`lsof {path} {lock.path}` shows the processes that have it open: look for one that is stopped, hangs, or "
            "keeps a transaction open"
        )
    return Locked(path, f"the write lock of the file, for {WAIT:.0f} s ({advice})", pid=pid, application=program)


def patiently(lock: LockFile, unwanted: Callable[[], bool] = lambda: False, until: float | None = None) -> bool:
    """Wait for the lock in a thread. False: not acquired within WAIT seconds (`until`: on the monotonic clock), or
    `unwanted` returned True."""
    until = clock.monotonic() + WAIT if until is None else until
    while not lock.try_lock():
        now = clock.monotonic()
        if now > until or unwanted():
            return False
        if lock.wait(min(until, now + SLICE)):
            return True
    return True


def begin(db: sqlite3.Connection) -> bool:
    """Begin a transaction that writes. False: another connection does. `db` must not wait in SQLite."""
    try:
        db.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
            raise
        return False
    return True


def _in_turn(lock: LockFile, unwanted: Callable[[], bool], until: float) -> bool:
    """Wait for the lock for as long as others get it and release it. False: its holder seems to be stopped."""
    while True:
        turns, since = lock.turns(), clock.monotonic()
        if patiently(lock, unwanted, min(since + PATIENCE, until)):
            return True
        if turns == lock.turns() or clock.monotonic() > until or unwanted():
            return False


def begin_patiently(lock: LockFile, db: sqlite3.Connection, unwanted: Callable[[], bool] = lambda: False) -> None:
    """Wait in a thread for the lock, then for the database; at most PATIENCE seconds for one holder, WAIT for all. Try
    every 2 ms: SQLite's own waiting sleeps up to 100 ms, and a process that tries more often would overtake it."""
    start = clock.monotonic()
    if not (lock.is_held or lock.is_stuck):
        lock.is_stuck = not _in_turn(lock, unwanted, start + WAIT)
    while not begin(db):
        if clock.monotonic() > start + WAIT or unwanted():
            raise held(lock)
        time.sleep(PAUSE)
