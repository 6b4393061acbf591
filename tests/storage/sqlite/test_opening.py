"""Every file and connection is closed again if opening fails, wherever it fails."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from tests.storage.sqlite.support import jobs, opened, played
from treadle.core import clock
from treadle.errors import StorageError
from treadle.ports import file_store
from treadle.storage.sqlite import opening
from treadle.storage.sqlite.opening import Opened, new_connection, open_file
from treadle.storage.sqlite.run_transaction import TaskConnection

resource = pytest.importorskip("resource", reason="POSIX limits")
pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="Linux lists the open files of a process")

MOST = 64  # descriptors that an opening may need


def still_open(folder: Path) -> list[str]:
    """The files in the folder that this process has open."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{number}"))
        except FileNotFoundError:  # the descriptor of this listing
            continue
    return [name for name in found if name.startswith(f"{folder}{os.sep}")]


def in_a_child(act: Callable[[], object]) -> None:
    """Call this in a forked copy of this process, so that its effects stay there. Raises what the call raises."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        try:
            act()
            said = b""
        except BaseException:
            said = traceback.format_exc().encode()
        os.write(write, said[-60_000:])
        os._exit(0)
    os.close(write)
    with open(read, "rb") as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    assert not said, said.decode()


@contextmanager
def few_descriptors(allowed: int) -> Iterator[None]:
    """Let this process open only this many more files; then it gets `Too many open files`.

    This is for a child process, because other threads could open none either. The limit is on the number of a
    descriptor, so the gaps below the highest one are filled first.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/dev/fd"))
    with ExitStack() as opened:
        lowest = opened.enter_context(open(os.devnull))
        while lowest.fileno() < highest:
            lowest = opened.enter_context(open(os.devnull))
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest.fileno() + 1 + allowed, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def fail_at_each(act: Callable[[], object], check: Callable[[], object]) -> int:
    """Let the call fail at the first file that it opens, at the second, and so on, until it succeeds. Return how often
    it failed. `check` is called after each failure."""
    for allowed in range(MOST):
        try:
            with few_descriptors(allowed):
                act()
        except (OSError, sqlite3.Error, StorageError):
            check()
        else:
            return allowed
    raise AssertionError("it never succeeds")


def let_go(found: Opened) -> None:
    for each in (found.search, found.look, found.db, found.lock):
        if each is not None:
            each.close()


def make_other(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE customer (id)")


def make_newer(path: Path) -> None:
    async def nothing(_: object) -> None:
        pass

    played(path, nothing)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("INSERT INTO migration (number, name, applied_at) VALUES (9999, 'later', 0)")


def make_text(path: Path) -> None:
    path.write_text("no database, and long enough to be looked at as one" * 100)


@pytest.mark.parametrize(
    ("made", "why"),
    [("new", ""), ("used", ""), ("used", "not writable here")],
    ids=["a new one", "to write", "to look"],
)
def test_an_open_without_a_free_descriptor_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: str, why: str
) -> None:
    path = tmp_path / "jobs.db"
    if made == "used":
        played(path, lambda storage: storage.enqueue(jobs(2)))
    monkeypatch.setattr(opening, "_unwritable", lambda *_: why)

    def check() -> None:
        assert still_open(tmp_path) == []

    def try_each() -> None:
        assert fail_at_each(lambda: let_go(open_file(str(path), "off", clock.wall)), check) >= 3
        check()

    in_a_child(try_each)


@pytest.mark.parametrize("why", ["", "not writable here"], ids=["to write", "to look"])
@pytest.mark.parametrize("make", [make_other, make_newer, make_text])
def test_a_file_that_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], None], why: str
) -> None:
    make(tmp_path / "jobs.db")
    monkeypatch.setattr(opening, "_unwritable", lambda *_: why)
    with pytest.raises(StorageError):
        open_file(str(tmp_path / "jobs.db"), "off", clock.wall)
    assert still_open(tmp_path) == []


def test_a_connection_that_its_user_may_not_close(tmp_path: Path) -> None:
    make_text(tmp_path / "jobs.db")
    with pytest.raises(sqlite3.DatabaseError, match="not a database"):
        new_connection(str(tmp_path / "jobs.db"), TaskConnection)
    assert still_open(tmp_path) == []


def test_a_checkpoint_that_found_no_descriptor_is_made_later(tmp_path: Path) -> None:
    async def try_each() -> None:
        async with opened(tmp_path / "jobs.db") as storage:
            await storage.enqueue(jobs(100))
            checkpoints, before = storage._file.checkpoints, still_open(tmp_path)
            assert fail_at_each(checkpoints._checkpoint, lambda: None) > 1
            assert len(still_open(tmp_path)) > len(before), "it has a connection of its own"
        assert still_open(tmp_path) == []

    in_a_child(lambda: asyncio.run(try_each()))


async def test_a_transaction_whose_end_is_cancelled(tmp_path: Path) -> None:
    async with opened(tmp_path / "jobs.db") as storage:
        own, may_go_on = await storage.begin(sync=False), threading.Event()
        own._thread.submit(may_go_on.wait, 60)
        ending = asyncio.create_task(own.close())
        await asyncio.sleep(0)
        ending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await ending
        may_go_on.set()
        for thread in own._thread._threads:
            await asyncio.to_thread(thread.join, 60)
        with pytest.raises(sqlite3.ProgrammingError, match="closed database"):
            own.raw.execute("SELECT 1")
        await storage.enqueue(jobs(2))


async def test_a_store_in_a_foreign_file_is_refused(tmp_path: Path) -> None:
    make_text(tmp_path / "store.db")
    store = file_store(tmp_path / "store.db")
    for _ in range(2):
        with pytest.raises(StorageError, match=r"store\.db"):
            await store.get("k")
        assert still_open(tmp_path) == []
    (tmp_path / "store.db").unlink()
    assert await store.get("k") is None
    await store.close()
    assert still_open(tmp_path) == []
