"""Waits in the kernel's queue for a lock file, for a limited time.

`flock` has no time limit, so a thread calls it. Processes that poll the lock instead spend most of their time on that:
50 of them stored 482 jobs a second in place of 1,522 (28 November 2026).
"""

from __future__ import annotations

import os
import threading
from typing import Final, Protocol

from treadle.core import clock

PAUSE: Final = 0.05  # s before `block` is called again after an error


class Lockable(Protocol):
    """A lock file: its descriptor, -1 if it is closed, and the lock of the threads that use both."""

    guard: threading.Lock
    fd: int
    is_held: bool

    def block(self, fd: int) -> None:
        """Acquire the lock through this descriptor, however long that takes."""
        ...

    def take_over(self) -> None:
        """The lock was acquired for a caller."""
        ...

    def release(self) -> None:
        """The lock was acquired, and no caller wants it any more."""
        ...


class LockWaiter:
    """The thread of one lock file, from its first wait until it is closed.

    blocked_on  the descriptor through which it waits, which only this thread may close; -1: none
    """

    def __init__(self, lock: Lockable) -> None:
        self._lock, self.blocked_on = lock, -1
        self._changed = threading.Condition(lock.guard)
        self._is_wanted = False
        # Nothing interrupts `flock`: the interpreter must not wait for this thread.
        threading.Thread(target=self._run, name="treadle-sqlite-lock", daemon=True).start()

    def wait(self, until: float) -> bool:
        """Wait until this time of the monotonic clock. Returns whether the lock was acquired."""
        with self._changed:
            self._is_wanted = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._is_wanted, max(0.0, until - clock.monotonic()))
            was_acquired, self._is_wanted = not self._is_wanted, False
            return was_acquired

    def leave(self) -> None:
        """The file was closed: end the thread. Call this with the guard locked."""
        self._changed.notify_all()

    def _run(self) -> None:
        lock, changed = self._lock, self._changed
        while True:
            with changed:
                changed.wait_for(lambda: self._is_wanted or lock.fd < 0)
                if lock.fd < 0:
                    return
                self.blocked_on = fd = lock.fd
            is_acquired = True
            try:
                lock.block(fd)
            except OSError:  # the next `try_lock` raises it
                is_acquired = False
            with changed:
                self.blocked_on = -1
                if lock.fd != fd:
                    os.close(fd)
                elif not is_acquired:
                    changed.wait(PAUSE)
                elif self._is_wanted:
                    lock.take_over()
                    self._is_wanted = False
                    changed.notify_all()
                elif not lock.is_held:  # else `try_lock` has acquired it meanwhile, through the same descriptor
                    lock.release()
