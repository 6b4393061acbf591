"""Several processes at one file: which one waits for which, and the effects of one that was killed or has forked."""

from __future__ import annotations

import os
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.storage.sqlite.support import ask, child, integrity, job, jobs, line, names, opened, played, sql, tell
from treadle.errors import BadSession, Locked, StorageError, StorageUnavailable
from treadle.storage.sqlite import SqliteStorage, checkpoint, connection, lockfile
from treadle.storage.sqlite.lockfile import LockFile

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")

FORKED = """
    watching = asyncio.ensure_future(storage.watch(['queue:x'], 60))
    await storage.enqueue([NewJob(id='mine', task='t')])
    {before}
    orphan = os.fork()
    if not orphan:
        say(os.getpid())
    signal.pause()
"""


# --- forks


@needs_fork
async def test_an_orphan_does_not_hold_the_lock_of_its_killed_parent(tmp_path: Path) -> None:
    """A task has forked, and its worker is killed in the middle of a transaction."""
    path = tmp_path / "jobs.db"
    body = FORKED.format(before="assert storage._file.lock.try_lock()")
    with child(path, body) as worker:
        orphan = int(line(worker))
        try:
            worker.send_signal(signal.SIGKILL)
            worker.wait()
            lock = LockFile(f"{path}-lock")
            assert lock.try_lock()
            lock.close()
            async with opened(path) as storage:
                assert len(await storage.enqueue([job("a")])) == 1
        finally:
            os.kill(orphan, signal.SIGKILL)


@needs_fork
async def test_the_parent_keeps_its_lock_when_a_child_ends(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    body = """
        assert storage._file.lock.try_lock()
        child = os.fork()
        if not child:
            os._exit(0)
        os.waitpid(child, 0)
        say('waited')
        sys.stdin.readline()
        storage._file.lock.unlock()
    """
    with child(path, body) as worker:
        assert line(worker) == "waited"
        lock = LockFile(f"{path}-lock")
        assert not lock.try_lock()
        tell(worker)
        assert lockfile.patiently(lock)
        lock.close()


@needs_fork
async def test_nothing_is_sent_to_the_orphan_of_a_killed_worker(tmp_path: Path) -> None:
    """The orphan's copies of the sockets would receive what is sent to the worker, so a hand-off would reach no
    worker."""
    path = tmp_path / "jobs.db"
    with child(path, FORKED.format(before="")) as worker:
        orphan = int(line(worker))
        try:
            async with opened(path) as storage:
                [name] = names(storage._notifier._folder)
                address = f"hand:{name}:0"
                assert storage._notifier.is_alive(address)
                worker.send_signal(signal.SIGKILL)
                worker.wait()
                assert not storage._notifier.is_alive(address)
                await storage.enqueue([job("a")])
                assert names(storage._notifier._folder) == []
        finally:
            os.kill(orphan, signal.SIGKILL)


SPILLED = """
from treadle.storage.sqlite.opening import new_connection
db = new_connection(sys.argv[1])
db.execute("PRAGMA cache_size = 1")  # pages of the transaction spill into the log
db.execute("UPDATE job SET lost = 1")  # something is in the log before
db.execute("BEGIN IMMEDIATE")
db.execute("UPDATE job SET lost = 7")
child = os.fork()
if not child:
    sys.exit(0)
os.waitpid(child, 0)
db.execute("COMMIT")
say(db.execute("SELECT count(*) FROM job WHERE lost = 7").fetchone()[0])
db.close()
"""


@needs_fork
def test_a_child_that_ends_leaves_the_transaction_of_its_parent_alone(tmp_path: Path) -> None:
    """The end of its interpreter must not close the connections: that rolls back in the shared index of the log."""
    path = tmp_path / "jobs.db"
    played(path, lambda storage: storage.enqueue(jobs(3_000)))
    with child(path, "", SPILLED) as worker:
        assert line(worker) == "3000"
        assert worker.wait() == 0
    assert integrity(path) == "ok"
    assert sql(path, "SELECT count(*) FROM job WHERE lost = 7") == [(3000,)]


# --- waiting


async def test_a_lock_that_is_held_is_waited_for_ten_seconds_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example if a worker is stopped in a transaction: opening, the calls, the checkpoints and closing."""
    monkeypatch.setattr(lockfile, "WAIT", 0.05)
    path = tmp_path / "jobs.db"
    stopped = LockFile(f"{path}-lock")
    assert stopped.try_lock()
    with pytest.raises(Locked, match=r"write lock of the file.*(lsof|of this process)"):
        await SqliteStorage(str(path)).open()
    stopped.unlock()
    async with opened(path) as storage:
        with closing(sqlite3.connect(path, isolation_level=None)) as writer:
            writer.execute("BEGIN IMMEDIATE")
            assert stopped.try_lock()
            with pytest.raises(Locked, match=r"write lock of the file.*(lsof|of this process)"):
                await storage.enqueue([job("a")])
            storage._file.checkpoints._since = 10_000
            storage._file.checkpoints.count(storage._file.loop)
            await storage._file.checkpoints.finish()
    stopped.close()


async def test_a_file_that_is_made_is_opened_while_the_lock_is_held(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    async with opened(path) as storage:
        await storage.enqueue([job("a")])
        other = LockFile(f"{path}-lock")
        assert other.try_lock()
        second = SqliteStorage(str(path))
        await second.open()
        assert [row and row.id for row in await second.get(["a"])] == ["a"]
        other.close()
        await second.close()


WAITS = """
    asked = asyncio.ensure_future(storage.enqueue([NewJob(id='theirs', task='t')]))
    while storage._file.lock.try_lock():  # until it has the lock, and waits for the database
        storage._file.lock.unlock()
        await asyncio.sleep(0.001)
    say('waits')
    await asked
    say('stored')
"""


async def test_no_transaction_deadlocks_with_a_process_that_waits_for_it(tmp_path: Path) -> None:
    """A view has begun to write. A worker, and another process, have work to store and wait for it. The view enqueues,
    for the first time in its process, and commits."""
    path = tmp_path / "jobs.db"
    async with opened(path):
        pass
    probe = WAITS.replace("storage._file.lock.try_lock()", "(probe := LockFile(path + '-lock')).try_lock()").replace(
        "storage._file.lock.unlock()", "probe.close()"
    )
    first = "from treadle.storage.sqlite.lockfile import LockFile"
    with closing(sqlite3.connect(path, isolation_level=None)) as view:
        view.execute("BEGIN IMMEDIATE")
        with child(path, probe, first) as one, child(path, probe.replace("theirs", "others"), first) as two:
            assert [line(one), line(two)] == ["waits", "waits"]
            [row] = await SqliteStorage(str(path)).within(view).enqueue([job("ours")])
            assert row.id == "ours"
            view.execute("COMMIT")
            assert [line(one), line(two)] == ["stored", "stored"]
    assert sql(path, "SELECT id FROM job ORDER BY seq")[0] == ("ours",)
    assert sql(path, "SELECT count(*) FROM job") == [(3,)]


# --- a storage that is not open, within a transaction


@pytest.mark.parametrize("made", ["no file of ours", "a file of ours", "an older one"])
@pytest.mark.parametrize("begin", ["BEGIN", "BEGIN IMMEDIATE", None])
async def test_without_open_the_schema_is_read_over_the_connection(
    tmp_path: Path, made: str, begin: str | None
) -> None:
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("CREATE TABLE orders (id INTEGER)")
    storage = SqliteStorage(str(path), shared=True)
    if made != "no file of ours":
        await storage.open()
        await storage.close()
        storage = SqliteStorage(str(path), shared=True)
    if made == "an older one":
        sql(path, "DELETE FROM migration WHERE number = (SELECT max(number) FROM migration)")
    with closing(sqlite3.connect(path, isolation_level="" if begin is None else None)) as db:
        if begin is not None:
            db.execute(begin)
            db.execute("INSERT INTO orders VALUES (1)")
        bound = storage.within(db)
        if made == "a file of ours":
            await bound.enqueue([job("a")])
            assert [row and row.id for row in await bound.get(["a"])] == ["a"]
        else:
            for call in (lambda: bound.enqueue([job("a")]), lambda: bound.get(["a"])):
                with pytest.raises(StorageError, match="treadle storage migrate"):
                    await call()
        db.commit()
    stored = 0 if begin is None else 1
    assert sql(path, "SELECT count(*) FROM orders") == [(stored,)], "the transaction was as good as before"


async def test_the_error_of_a_stale_transaction_names_begin_immediate(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    async with opened(path) as storage:
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            db.execute("BEGIN")
            db.execute("SELECT count(*) FROM job").fetchone()
            await storage.enqueue([job("a")])
            with pytest.raises(BadSession, match="BEGIN IMMEDIATE"):
                await storage.within(db).enqueue([job("b")])


# --- the file, and its names


async def test_a_link_and_its_target_share_one_lock(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "link.db").symlink_to(tmp_path / "data" / "jobs.db")
    async with opened(tmp_path / "link.db") as one, opened(tmp_path / "data" / "jobs.db") as two:
        assert one.path == two.path
        await one.watch(["queue:x"], 0.001)
        await two.enqueue([job("a")])
        assert [row and row.id for row in await one.get(["a"])] == ["a"]
    assert names(tmp_path) == ["data", "link.db"]


async def refused(storage: SqliteStorage) -> None:
    for call in (storage.enqueue([job("x")]), storage.get(["x"]), storage.stats(), storage.watch(["queue:x"], 0)):
        with pytest.raises(StorageUnavailable, match="restart this process"):
            await call


async def test_a_missing_file_is_an_outage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "LOOK", -1.0)  # with each call
    path = tmp_path / "jobs.db"
    async with opened(path) as storage:
        await storage.enqueue([job("a")])
        os.rename(path, tmp_path / "aside.db")
        await refused(storage)
        os.rename(tmp_path / "aside.db", path)
        await storage.enqueue([job("b")])
    assert sql(path, "SELECT count(*) FROM job") == [(2,)]


async def test_a_file_that_was_replaced_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite deletes a log by its name when it closes a file, and that name now belongs to the new file."""
    monkeypatch.setattr(connection, "LOOK", -1.0)
    path = tmp_path / "jobs.db"
    old = SqliteStorage(str(path))
    await old.open()
    await old.enqueue([job("a")])
    for name in names(tmp_path):
        os.unlink(tmp_path / name)
    async with opened(path) as new:
        await new.enqueue([job("b")])
        await refused(old)
        await old.close()
        assert "jobs.db-wal" in names(tmp_path)
        with child(path, "say(*[row.id for row in await storage.get(['a', 'b']) if row])") as other:
            assert line(other) == "b"


@pytest.mark.parametrize("end", ["-wal", "-shm"])
@pytest.mark.parametrize("how", ["deleted", "replaced"])
async def test_a_missing_log_is_noticed_before_the_next_answer(tmp_path: Path, end: str, how: str) -> None:
    """Its jobs would be in a file without a name: no other process would see them, and a kill would lose them."""
    path = tmp_path / "jobs.db"
    storage = SqliteStorage(str(path))
    await storage.open()
    await storage.enqueue([job("a")])
    os.unlink(f"{path}{end}")
    if how == "replaced":
        os.mknod(f"{path}{end}")
    for call in (storage.enqueue([job("b")]), storage.claim(ask()), storage.begin(False), storage.get(["a"])):
        with pytest.raises(StorageUnavailable, match=f"jobs.db{end} was deleted.*restart this process"):
            await call
    storage._file.checkpoints._since = checkpoint.EVERY  # another log must not be moved into the file
    storage._file.checkpoints.count(storage._file.loop)
    await storage._file.checkpoints.finish()
    await storage.close()
    if how == "deleted":  # the connections were closed, which has written their log back
        assert ("a",) in sql(path, "SELECT id FROM job")
        assert integrity(path) == "ok"


@pytest.mark.skipif(not hasattr(os, "pread"), reason="the log is not watched")
def test_a_truncated_log_is_noticed_before_the_next_answer(tmp_path: Path) -> None:
    """The pages of earlier commits are zeros from then on: moved into the file, they would destroy it."""
    path = tmp_path / "jobs.db"
    body = """
        async def checkpoint():
            storage._file.checkpoints._since = 400
            storage._file.checkpoints.count(storage._file.loop)
            await storage._file.checkpoints.finish()
        await storage.enqueue([NewJob(id="a", task="t")])
        await checkpoint()
        for id in "bc":
            await storage.enqueue([NewJob(id=id, task="t")])
        os.truncate(f"{storage.path}-wal", 0)
        for call in (storage.enqueue([NewJob(id="d", task="t")]), storage.begin(False), storage.get(["a"])):
            try:
                await call
            except StorageUnavailable as error:
                say(error)
        await checkpoint()
        """
    with child(path, body) as other:
        for _ in range(3):
            said = line(other)
            assert "jobs.db-wal was truncated" in said
            assert "restart this process" in said
        assert other.wait() == 0
    assert sql(path, "SELECT id FROM job") == [("a",)], "the rows that a checkpoint had moved into the file"
    assert integrity(path) == "ok"


async def test_no_orderly_use_of_the_file_is_taken_for_a_missing_log(tmp_path: Path) -> None:
    """Other processes open and close it, write it, and truncate its log."""
    path = tmp_path / "jobs.db"
    async with opened(path, "normal") as storage:
        for number in range(3):
            with child(path, "await storage.enqueue([NewJob(id=f'{os.getpid()}', task='t')])") as other:
                assert other.wait() == 0
            for statement in ("PRAGMA wal_checkpoint(TRUNCATE)", "VACUUM", "PRAGMA journal_mode = WAL"):
                sql(path, statement)
            assert len(await storage.enqueue([job(f"a{number}")])) == 1
            assert len((await storage.claim(ask(number))).records) == 2
        (tmp_path / "unrelated").touch()
        own = await storage.begin(False)
        await own.commit()
        await own.close()
    assert sql(path, "SELECT count(*) FROM job") == [(6,)]


async def test_a_missing_lock_file_is_created_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connection, "LOOK", -1.0)
    path = tmp_path / "jobs.db"
    async with opened(path) as storage:
        os.unlink(f"{path}-lock")
        await storage.enqueue([job("a")])
        other = LockFile(f"{path}-lock")
        assert os.path.samestat(os.fstat(other.fd), os.fstat(storage._file.lock.fd))  # type: ignore[union-attr]
        other.close()
    assert "creating it again" in caplog.text
