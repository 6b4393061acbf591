"""The file: how it is created, recognised, refused, closed and opened again."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.storage.sqlite.support import (
    AS_NOBODY,
    ask,
    child,
    done,
    integrity,
    job,
    jobs,
    line,
    open_folder,
    opened,
    played,
    size,
    sql,
    tell,
)
from tests.waiting import Signal
from treadle.core.model import State
from treadle.errors import (
    BadUrl,
    NotADatabase,
    SchemaTooNew,
    StorageDenied,
    StorageError,
    StorageUnavailable,
)
from treadle.storage import connect
from treadle.storage.sqlite import SqliteStorage, shared_transaction
from treadle.storage.sqlite.migrate import APPLICATION_ID, known


async def refused(path: Path, kind: type[Exception], match: str) -> None:
    storage = SqliteStorage(str(path))
    with pytest.raises(kind, match=match):
        await storage.open()
    await storage.close()


async def test_a_new_file_is_marked_as_ours(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    async with opened(path, "full"):
        pass
    assert sql(path, "PRAGMA application_id") == [(APPLICATION_ID,)]
    assert sql(path, "PRAGMA journal_mode") == [("wal",)]
    assert [number for number, _, _ in known()] == [number for (number,) in sql(path, "SELECT number FROM migration")]
    assert sql(path, "SELECT value FROM meta WHERE name = 'schema'") == [(str(known()[-1][0]),)]


def test_migrations_are_numbered_without_a_gap() -> None:
    assert [number for number, _, _ in known()] == list(range(1, len(known()) + 1))


async def test_an_empty_file_is_used(tmp_path: Path) -> None:
    (tmp_path / "jobs.db").touch()
    async with opened(tmp_path / "jobs.db") as storage:
        assert len(await storage.enqueue(jobs(1))) == 1


async def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    await refused(tmp_path / "nowhere" / "jobs.db", NotADatabase, "does not exist")
    assert not (tmp_path / "nowhere").exists()


async def test_memory_is_refused() -> None:
    await refused(Path(":memory:"), BadUrl, "memory://")
    with pytest.raises(BadUrl, match="synchronous"):
        SqliteStorage("x.db", synchronous="perhaps")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("sqlite:///x.db?synchronus=full", "synchronus: .*expected synchronous or shared"),
        ("http://host?max_answers=9", "max_answers: .*expected ca, max_answer, token"),
        ("memory://?shared=true", "shared: .*expected none"),
    ],
)
def test_an_unknown_option_of_a_url_names_those_that_exist(url: str, expected: str) -> None:
    with pytest.raises(BadUrl, match=expected):
        connect(url)


async def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("milk, eggs, and a good deal more than a hundred bytes" * 10)
    before = path.read_bytes()
    await refused(path, NotADatabase, "not a SQLite database")
    assert path.read_bytes() == before


async def test_a_short_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("milk")
    await refused(path, NotADatabase, "not a SQLite database")
    assert path.read_text() == "milk"


async def test_a_second_opening_leaves_the_locks_of_the_first(tmp_path: Path) -> None:
    """Otherwise another process that closes it would take itself for the last one, and delete the log that they write
    to."""
    path = tmp_path / "jobs.db"
    async with opened(path) as storage, opened(path):
        with child(path, "") as other:
            assert other.wait() == 0
        await storage.enqueue([job("a")])
        with child(path, "say(len([row for row in await storage.get(['a']) if row]))") as other:
            assert line(other) == "1"


async def test_a_database_of_another_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    sql(path, "CREATE TABLE orders (id INTEGER)")
    await refused(path, NotADatabase, "orders")
    assert sql(path, "SELECT name FROM sqlite_master") == [("orders",)]
    assert sql(path, "PRAGMA journal_mode") == [("delete",)]


async def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    async with opened(path):
        pass
    sql(path, "INSERT INTO migration VALUES (99, 'from_the_future', 0)")
    storage = SqliteStorage(str(path))
    with pytest.raises(SchemaTooNew) as caught:
        await storage.open()
    assert (caught.value.found, caught.value.known) == (99, known()[-1][0])


async def test_a_storage_that_was_refused_may_be_opened_later(tmp_path: Path) -> None:
    storage = SqliteStorage(str(tmp_path / "later" / "jobs.db"))
    with pytest.raises(NotADatabase):
        await storage.open()
    (tmp_path / "later").mkdir()
    await storage.open()
    await storage.open()  # repeating it changes nothing
    await storage.enqueue(jobs(1))
    await storage.close()
    await storage.close()


async def test_a_closed_storage_raises(tmp_path: Path) -> None:
    storage = SqliteStorage(str(tmp_path / "jobs.db"))
    for call in (storage.enqueue(jobs(1)), storage.get(["a"]), storage.stats(), storage.watch(["queue:x"], 1)):
        with pytest.raises(StorageUnavailable, match="open"):
            await call


async def test_a_reopened_storage_continues(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    async with opened(path) as storage:
        await storage.enqueue(jobs(3))
        [row] = (await storage.claim(ask(1, 1))).records
        await storage.settle([done(row)])
    assert size(f"{path}-wal") == 0
    await storage.open()
    assert [row.state for row in await storage.get(["j00000", "j00001"]) if row] == [State.SUCCEEDED, State.READY]
    await storage.close()


async def test_close_waits_for_calls_in_progress(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    storage = SqliteStorage(str(path))
    await storage.open()
    asked = asyncio.ensure_future(storage.enqueue(jobs(5_000)))
    await asyncio.sleep(0)
    await storage.close()
    assert len(await asked) == 5_000
    assert sql(path, "SELECT count(*) FROM job") == [(5_000,)]


async def test_two_objects_at_one_file(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    async with opened(path) as one, opened(path) as two:
        both = [storage.enqueue([job(f"{name}{n}")]) for n in range(50) for name, storage in (("a", one), ("b", two))]
        await asyncio.gather(*both)
        assert len((await two.claim(ask(1, 100))).records) == 100
        assert (await one.claim(ask(2, 100))).records == ()
    assert integrity(path) == "ok"


@pytest.mark.slow
def test_two_processes_open_a_new_file_at_once(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    body = """
        await storage.enqueue([NewJob(id=f"{os.getpid()}-{n}", task="t") for n in range(10)])
        say("stored")
    """
    with child(path, body) as one, child(path, body) as two, child(path, body) as three:
        assert [line(each) for each in (one, two, three)] == ["stored"] * 3
    assert sql(path, "SELECT count(*) FROM job") == [(30,)]
    assert sql(path, "SELECT count(*) FROM migration") == [(len(known()),)]


def in_the_child(storage: SqliteStorage, answers: multiprocessing.SimpleQueue[str]) -> None:
    try:
        asyncio.run(storage.enqueue(jobs(1, "forked")))
    except StorageError as error:
        answers.put(str(error))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_is_refused(tmp_path: Path) -> None:
    async def law(storage: SqliteStorage) -> None:
        fork = multiprocessing.get_context("fork")
        answers = fork.SimpleQueue()
        process = fork.Process(target=in_the_child, args=(storage, answers))
        process.start()
        assert "fork" in answers.get()
        process.join()
        assert await storage.enqueue(jobs(1))

    played(tmp_path / "jobs.db", law)


@pytest.mark.skipif(not AS_NOBODY, reason="needs two users")
@pytest.mark.parametrize("log", [True, False])
def test_a_folder_that_is_not_writable(log: bool) -> None:
    """SQLite keeps its log there: the file can be read, and the first write raises with the reason. `log`: a process
    that may write has the file open."""
    body = """
        say("rows", len([row for row in await storage.get(["j00000", "j00001"]) if row]))
        try:
            await storage.enqueue([NewJob(id="new", task="t")])
        except StorageDenied as error:
            say(error)
    """
    with open_folder() as folder:

        async def read(storage: SqliteStorage) -> None:
            await storage.enqueue(jobs(2))
            if not log:
                await storage.close()
            for each in folder.iterdir():
                each.chmod(0o666)
            with child(folder / "jobs.db", body, AS_NOBODY) as reader:
                assert line(reader) == "rows 2"
                assert f"{folder} is not writable for user 65534" in line(reader)

        played(folder / "jobs.db", read)


@pytest.mark.skipif(not AS_NOBODY, reason="needs two users")
def test_a_file_that_cannot_be_made() -> None:
    first = f"""{AS_NOBODY}
async def refused():
    try:
        await SqliteStorage(sys.argv[1]).open()
    except StorageDenied as error:
        say(error)
asyncio.run(refused())
sys.exit()
"""
    with open_folder() as folder, child(folder / "jobs.db", "", first) as reader:
        assert f"cannot be created: {folder} is not writable for user 65534" in line(reader)


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="POSIX permissions")
def test_a_read_only_file_can_be_read() -> None:
    """Reading works; the first write raises with the reason."""

    async def fill(storage: SqliteStorage) -> None:
        await storage.enqueue(jobs(2))

    body = """
        say("rows", len([row for row in await storage.get(["j00000", "j00001"]) if row]))
        try:
            await storage.enqueue([NewJob(id="new", task="t")])
        except StorageDenied as error:
            say(type(error).__name__)
    """
    with open_folder() as folder:
        path = folder / "jobs.db"
        played(path, fill)
        for file in folder.iterdir():
            os.chmod(file, 0o444)
        with child(path, body, AS_NOBODY) as reader:
            assert [line(reader), line(reader)] == ["rows 2", StorageDenied.__name__]


@pytest.mark.slow
async def test_a_file_becomes_smaller_after_a_great_backlog(tmp_path: Path) -> None:
    """Free pages are used again first. If most of a large file is free, each prune releases some of it."""
    path = tmp_path / "jobs.db"
    now = 1_000_000.0
    storage = SqliteStorage(str(path), now=lambda: now, synchronous="off")
    await storage.open()
    await storage.enqueue([job(f"j{n}", payload="x" * 6_000, keep=0.0) for n in range(6_000)])
    for number in range(30):
        await storage.settle([done(row) for row in (await storage.claim(ask(number, 200))).records])
    now += 61
    before = sql(path, "PRAGMA page_count")[0][0]
    assert [await storage.prune(1_000) for _ in range(7)] == [1_000] * 6 + [0]
    assert sql(path, "PRAGMA page_count")[0][0] < before  # type: ignore[operator]
    assert sql(path, "SELECT (SELECT count(*) FROM job) + (SELECT count(*) FROM body)") == [(0,)]
    await storage.close()
    assert integrity(path) == "ok"


async def test_prune_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    now = 1_000_000.0
    storage = SqliteStorage(str(path), now=lambda: now, synchronous="off")
    await storage.open()
    await storage.enqueue(
        [
            job("up", labels=("red", "blue"), key="k", limits=(("l", 1),), keep=0.0),
            job("down", after=("up",), labels=("red",), keep=0.0, root="up"),
        ]
    )
    for number in range(2):
        rows = (await storage.claim(ask(number))).records
        await storage.settle([replace(done(row), checkpoints=(("step", "1"),)) for row in rows])
    now += 61
    assert await storage.prune(10) == 2
    for table in ("job", "body", "label", "checkpoints", "edge", "slot", "behind"):
        assert sql(path, f"SELECT count(*) FROM {table}") == [(0,)], table
    await storage.close()


async def test_a_shell_may_look_and_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody's sqlite3 holds the write lock: the call waits for it."""
    waits = Signal().around(monkeypatch, shared_transaction, "begin_patiently")
    path = tmp_path / "jobs.db"
    async with opened(path) as storage:
        with closing(sqlite3.connect(path, isolation_level=None)) as shell:
            shell.execute("BEGIN IMMEDIATE")
            shell.execute("INSERT INTO meta VALUES ('note', 'by hand')")
            before = waits.sent
            asked = asyncio.ensure_future(storage.enqueue(jobs(1)))
            await waits.until(lambda: waits.sent > before, "a call that waits for the shell")
            assert not asked.done()
            shell.execute("COMMIT")
            assert len(await asked) == 1


def test_a_process_ends_although_its_storage_was_not_closed(tmp_path: Path) -> None:
    """A storage that was never closed does not keep its process alive."""
    with child(tmp_path / "jobs.db", "say('open')\nsys.stdin.readline()\nos._exit(0)") as process:
        assert line(process) == "open"
        tell(process)
        assert process.wait(30) == 0
