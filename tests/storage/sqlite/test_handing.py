"""Hand-off at a file: the shared tests, other processes, and processes that were killed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from tests.storage.handing_kit import *  # noqa: F403
from tests.storage.handing_kit import LONG, Spy, Waits
from tests.storage.sqlite.support import ask, child, done, job, line, opened, size, sql, swept, tell
from tests.waiting import until
from treadle import App, Worker
from treadle.core.model import Claim, Record, State
from treadle.errors import StorageUnavailable
from treadle.storage.sqlite import SqliteStorage

ASKER = """
    post = storage.post(lambda claim_id, row: say(claim_id, row.job.id))
    await storage.claim(Claim(worker="asker#1", hand_off=(post.address, 3600.0)))
    say("asks")
    await asyncio.to_thread(sys.stdin.readline)
"""
SENDER = """
    while sys.stdin.readline():
        [row] = await storage.enqueue([NewJob(id=f"j{time.monotonic_ns()}", task="t", queue="q")])
        say(row.job.id)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
async def storage(path: Path) -> AsyncIterator[SqliteStorage]:
    async with opened(path) as storage:
        yield storage


@pytest.fixture
def asks(storage: SqliteStorage) -> Callable[[], Awaitable[int]]:
    async def standing() -> int:
        return len(storage._file.waiting_workers.all())

    return standing


def posted(storage: SqliteStorage) -> tuple[str, asyncio.Queue[tuple[str, Record]]]:
    """An address, and the messages sent to it."""
    got: asyncio.Queue[tuple[str, Record]] = asyncio.Queue()
    post = storage.post(lambda claim_id, row: got.put_nowait((claim_id, row)))
    assert post is not None
    return post.address, got


async def in_vain(storage: SqliteStorage, claim_id: str, address: str) -> None:
    assert (await storage.claim(Claim(worker=claim_id, hand_off=(address, LONG)))).records == ()


async def state(storage: SqliteStorage, id: str) -> State:
    [row] = await storage.get([id])
    assert row is not None
    return row.state


async def test_jobs_of_another_process_are_handed_off_to_a_worker(
    storage: SqliteStorage, path: Path, waits: Waits
) -> None:
    function_done: asyncio.Queue[str] = asyncio.Queue()
    spy = Spy(storage)
    async with App(storage=spy) as app:

        @app.task(name="t", queue="q")
        async def t() -> None:
            function_done.put_nowait(f"{spy.calls['claim']}")

        with child(path, SENDER) as sender:
            async with Worker(app, poll=LONG):
                for _ in range(20):
                    await waits()
                    before = spy.calls["claim"]
                    tell(sender)
                    assert await asyncio.wait_for(function_done.get(), 30) == f"{before}"
                    assert line(sender)


async def test_no_job_is_handed_off_to_a_killed_process(storage: SqliteStorage, path: Path) -> None:
    with child(path, ASKER) as asker:
        assert line(asker) == "asks"
        await storage.enqueue([job("a")])
        assert line(asker) == "asker#1 a"
    with child(path, ASKER) as asker:
        assert line(asker) == "asks"
        asker.kill()
        asker.wait()
        await storage.enqueue([job("b")])
        assert await state(storage, "b") is State.READY


async def test_a_job_of_a_killed_sender_is_found(storage: SqliteStorage, path: Path, waits: Waits) -> None:
    """It was killed between its commit and the datagram."""
    async with App(storage=storage) as app:

        @app.task(name="t")
        async def t() -> None: ...

        async with Worker(app, poll=LONG):
            await waits()
            body = """
                storage._calls._publish = lambda topics: os.kill(os.getpid(), signal.SIGKILL)
                await storage.enqueue([NewJob(id="a", task="t")])
            """
            with child(path, body) as sender:
                assert await asyncio.to_thread(sender.wait) == -9
            await (await app.jobs.handle("a")).result(timeout=30)
            [row] = await storage.get(["a"])
            assert row is not None
            assert (row.lost, row.attempt) == (0, 1)


async def test_a_claim_that_finds_nothing_writes_nothing_to_the_disk(storage: SqliteStorage, path: Path) -> None:
    address, _ = posted(storage)
    before = size(f"{path}-wal"), sql(path, "PRAGMA data_version")
    for _ in range(5):
        await in_vain(storage, "w#1", address)
    withdrawal = Claim(worker="w#1", queues=(), limit=0, hand_off=(address, 0.0))
    assert (await storage.claim(withdrawal)).records == ()
    assert (size(f"{path}-wal"), sql(path, "PRAGMA data_version")) == before


@pytest.mark.parametrize("spoilt", [b"\0" * 400, b"\xff" * 400, b"\0\0\0\x05garbage, and more of it"])
async def test_a_truncated_note_is_ignored(storage: SqliteStorage, spoilt: bytes) -> None:
    """A kill in the middle of a write, or a power failure, may leave such a note."""
    address, _ = posted(storage)
    await in_vain(storage, "w#1", address)
    lock = storage._file.waiting_workers._lock
    lock.set_note(spoilt)
    await storage.enqueue([job("a")])
    assert await state(storage, "a") is State.READY
    [row] = (await storage.claim(Claim(worker="w#2", hand_off=(address, LONG)))).records
    await storage.settle([done(row)])
    await in_vain(storage, "w#3", address)
    note = lock.note(1_000)
    note = note[: 8 + int.from_bytes(note[:4])]
    for length in range(len(note)):
        lock.set_note(note[:length] + bytes(255 - byte for byte in note[length:]))
        assert storage._file.waiting_workers.all() == []
    lock.set_note(note)
    assert len(storage._file.waiting_workers.all()) == 1


async def test_a_job_that_was_not_stored_is_not_handed_off(
    storage: SqliteStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit failed: the open claim is gone too, and the worker finds the job by a hint."""
    address, got = posted(storage)
    await in_vain(storage, "w#1", address)

    def refuse(lock: object) -> float:
        raise StorageUnavailable("the disk is away")

    with monkeypatch.context() as patched:
        patched.setattr(storage._calls, "_commit", refuse)
        with pytest.raises(StorageUnavailable):
            await storage.enqueue([job("a")])
    assert await storage.get(["a"]) == [None]
    hint = asyncio.ensure_future(storage.watch(["queue:default"], 10))
    await asyncio.sleep(0)
    await storage.enqueue([job("a")])
    assert await hint == {"queue:default"}
    assert got.empty()
    [row] = (await storage.claim(Claim(worker="w#1", hand_off=(address, LONG)))).records
    assert row.job.id == "a"


async def test_no_job_is_handed_off_without_a_socket(storage: SqliteStorage, path: Path) -> None:
    """The folder of the sockets was deleted."""
    async with opened(path) as other:
        address, _ = posted(other)
        await in_vain(other, "w#1", address)
        swept(other._notifier._folder)
        await storage.enqueue([job("a")])
        assert await state(storage, "a") is State.READY


async def test_a_worker_that_leaves_withdraws_its_open_claim(
    storage: SqliteStorage, asks: Callable[[], Awaitable[int]]
) -> None:
    post = storage.post(lambda claim_id, row: None)
    assert post is not None
    await in_vain(storage, "w#1", post.address)
    assert await asks() == 1
    post.close()

    async def gone() -> bool:
        return await asks() == 0

    await until(gone, "the end of the ask in the lock file")
    post.close()


async def test_expired_open_claims_are_removed(storage: SqliteStorage, asks: Callable[[], Awaitable[int]]) -> None:
    """Open claims of workers that did not return."""
    for n in range(20):
        address, _ = posted(storage)
        hand_off = address, 1e-9 if n % 2 else LONG
        await storage.claim(Claim(worker=f"w{n}#1", hand_off=hand_off))
    assert await asks() == 11


async def test_a_job_that_was_queued_before_is_handed_off_first(storage: SqliteStorage) -> None:
    """A process that waits for a hint is notified that the queue has a new job."""
    address, got = posted(storage)
    await in_vain(storage, "w#1", address)
    await storage.enqueue([job("a"), job("b")])
    hint = asyncio.ensure_future(storage.watch(["queue:default"], 10))
    await asyncio.sleep(0)
    await storage.enqueue([job("c")])
    assert await hint == {"queue:default"}
    claim_id, row = await asyncio.wait_for(got.get(), 30)
    assert (claim_id, row.job.id) == ("w#1", "a")
    assert [row.job.id for row in (await storage.claim(ask(2))).records] == ["b", "c"]


async def test_a_datagram_for_a_closed_file_is_ignored(path: Path) -> None:
    for n in range(20):
        async with opened(path) as storage:
            address, _ = posted(storage)
            await storage.claim(Claim(worker=f"w{n}#1", queues=((f"q{n}", 1),), hand_off=(address, LONG)))
            await storage.enqueue([job(f"j{n}", queue=f"q{n}")])  # the datagram may have been sent, but not read yet
        async with opened(path) as storage:
            assert await state(storage, f"j{n}") is State.RUNNING


@pytest.mark.parametrize("size", [10, 100_000])
@pytest.mark.parametrize("folder", ["short", "long" * 30])
async def test_a_large_or_distant_hand_off_reads_the_row_again(tmp_path: Path, folder: str, size: int) -> None:
    """The row is read again if it does not fit into a datagram, or must not be readable in the folder for temporary
    files."""
    (tmp_path / folder).mkdir()
    path = tmp_path / folder / "jobs.db"
    async with opened(path) as worker, opened(path) as sender:
        for n in range(3):
            address, got = posted(worker)
            await in_vain(worker, f"w#{n}", address)
            await sender.enqueue([job(f"j{n}", payload="é\n" * size, headers=(("a", "b"),))])
            claim_id, row = await asyncio.wait_for(got.get(), 30)
            assert claim_id == f"w#{n}"
            assert [row] == await worker.get([f"j{n}"])


async def test_invalid_datagrams_are_ignored(storage: SqliteStorage) -> None:
    address, got = posted(storage)
    await storage.enqueue([job("a")])
    for said in ("", "{}", '"nobody"', '"a"', "{", "[1]"):
        storage._inbox.deliver(f"{address} {said}")
        storage._inbox.deliver(f"hand:nowhere:1 {said}")
    assert got.empty()
