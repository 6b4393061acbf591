"""Waiting for the lock file in the kernel's queue: turns, time limits, closed files and forks."""

from __future__ import annotations

import os
import sqlite3
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.waiting import until_blocking
from treadle.core import clock
from treadle.storage.sqlite import lockfile
from treadle.storage.sqlite.lockfile import LockFile, begin_patiently, patiently

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there the lock is polled")
LONG = 30.0  # s


@pytest.fixture
def locks(tmp_path: Path) -> Iterator[list[LockFile]]:
    """Three objects at one file; the first one has the lock."""
    objects = [LockFile(str(tmp_path / "jobs.db-lock")) for _ in range(3)]
    assert objects[0].try_lock()
    yield objects
    for lock in objects:
        lock.close()


def has_begun_to_wait(lock: LockFile) -> None:
    """Return once the thread of the lock file waits in the kernel, or is about to."""
    until_blocking(
        lambda: lock._waiter is not None and lock._waiter.blocked_on >= 0, "a thread that waits in the kernel"
    )


def has_given_up(lock: LockFile) -> None:
    """Return once the thread of the lock file waits in the kernel, and nothing waits for it any more."""
    while lock._waiter is None or lock._waiter.blocked_on < 0:
        assert not lock.wait(clock.monotonic() + 0.01)


def waiting(lock: LockFile) -> tuple[threading.Thread, list[bool]]:
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(lock.wait(clock.monotonic() + LONG)))
    thread.start()
    has_begun_to_wait(lock)
    return thread, answers


def test_a_wait_gets_the_lock_when_it_is_released(locks: list[LockFile]) -> None:
    holder, other, third = locks
    thread, answers = waiting(other)
    assert not third.try_lock()
    holder.unlock()
    thread.join(LONG)
    assert answers == [True]
    assert other.is_held
    assert not third.try_lock()
    other.unlock()
    assert third.try_lock()


def test_a_lock_that_comes_after_the_wait_is_released(locks: list[LockFile]) -> None:
    holder, other, third = locks
    has_given_up(other)
    holder.unlock()
    assert patiently(third)
    assert not other.is_held


def test_a_lock_that_is_taken_while_the_thread_waits_stays_with_its_holder(locks: list[LockFile]) -> None:
    """Both use one descriptor, so the thread acquires at once what the holder has."""
    holder, other, third = locks
    has_given_up(other)
    holder.unlock()
    assert patiently(other)
    until_blocking(lambda: other._waiter is not None and other._waiter.blocked_on < 0, "the end of its call")
    assert not third.try_lock()
    other.unlock()
    assert patiently(third)


@pytest.mark.parametrize("act", ["close", "reopen"])
def test_a_file_that_is_closed_while_its_thread_waits_holds_nothing(locks: list[LockFile], act: str) -> None:
    holder, other, third = locks
    has_given_up(other)
    getattr(other, act)()
    holder.unlock()
    assert patiently(third)
    third.unlock()
    if act == "reopen":
        assert patiently(other)


def test_a_process_waits_while_others_get_the_lock_and_release_it(
    locks: list[LockFile], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    holder, other, third = locks
    waits = 0

    def refused(lock: LockFile, *_: object) -> bool:
        """The lock passes from the first process to the third, which has waited for it, and is not free."""
        nonlocal waits
        waits += 1
        if waits == 1:
            thread, answers = waiting(third)
            holder.unlock()
            thread.join(LONG)
            assert answers == [True]
            third.unlock()
            assert patiently(holder)
        return False

    monkeypatch.setattr(lockfile, "PATIENCE", 0.0)
    patient = lockfile.patiently
    monkeypatch.setattr(lockfile, "patiently", lambda lock, *rest: (refused if lock is other else patient)(lock, *rest))
    with closing(sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)) as db:
        begin_patiently(other, db)
    assert waits == 2
    assert other.is_stuck


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_keeps_no_descriptor_of_a_lock_for_which_a_thread_waits(locks: list[LockFile]) -> None:
    holder, other, third = locks
    thread, answers = waiting(other)
    reading, writing = os.pipe()
    begun, begins = os.pipe()
    child = os.fork()
    if not child:
        os.close(writing)
        os.write(begins, b".")
        os.read(reading, 1)  # until the parent is done
        os._exit(0)
    os.close(reading)
    assert os.read(begun, 1)
    holder.unlock()
    thread.join(LONG)
    assert answers == [True]
    other.close()
    assert third.try_lock()
    os.close(writing)
    os.waitpid(child, 0)
    os.close(begun)
    os.close(begins)
