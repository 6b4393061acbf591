"""`app.testing()` encrypts and offloads as the app does; the folder or bucket of the app is never used."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any, cast

import pytest

from tests.testing.kit import GIVEN, a_given
from treadle import App, Keys, Outbox, Retry, current
from treadle.core.query_model import Query
from treadle.core.stored_text import BLOB, SEALED
from treadle.storage.optional_parts import Payloads
from treadle.testing import Testing
from treadle.testing.payloads import MemoryObjects

LARGE, SECRET = "x" * 5_000, "the secret of the customer"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "blobs"


@pytest.fixture
def app(folder: Path) -> App:
    return App("memory://", keys=Keys(Keys.make("k")), blobs=folder, offload=1_024, retry=Retry(attempts=1))


def contents(folder: Path) -> list[bytes]:
    """The contents of all its files."""
    return [path.read_bytes() for path in folder.rglob("*") if path.is_file()]


async def stored(t: Testing) -> list[str]:
    """The payloads as the storage has them."""
    return [row.job.payload for row in (await t.storage.find(Query(order="oldest"))).records]


@pytest.mark.parametrize("kind", GIVEN)
async def test_texts_are_encrypted_and_offloaded(app: App, kind: str, tmp_path: Path) -> None:
    @app.task
    async def echo(text: str) -> str:
        return await current().step("say", lambda: text) * 2

    with a_given(kind, tmp_path) as given:
        async with app.testing(storage=given) as t:
            jobs = [await echo.enqueue(text) for text in (LARGE, SECRET)]
            assert [text[:13] for text in await stored(t)] == [BLOB, SEALED[:13]]
            for text in (LARGE, SECRET):
                assert t.assert_enqueued(echo, text).args == (text,)
                t.assert_enqueued(echo.job(text))
            assert [call.args[0] for call in t.enqueued(echo)] == [LARGE, SECRET]
            assert await t.drain() == 2
            assert [await job.result(0) for job in jobs] == [LARGE * 2, SECRET * 2]
            t.assert_not_enqueued(echo, "other")
            assert (await t.jobs.list(count=True)).total == 2  # no row of Treadle's own
            assert await t.finish() == 0
        async with app.testing(storage=given) as t:
            t.assert_not_enqueued(echo)
    assert not contents(tmp_path / "blobs")


async def test_no_file_of_the_test_has_the_secret(app: App, tmp_path: Path) -> None:
    @app.task
    async def fail(text: str) -> None:
        raise ValueError(text)

    path = tmp_path / "given.db"
    async with app.testing(storage=f"sqlite:///{path}") as t:
        await fail.enqueue(SECRET)
        await t.drain()
        assert not any(SECRET.encode() in content for content in contents(tmp_path))
        [row] = (await t.jobs.list(state="failed")).records
        assert SECRET in str(row.error)


def test_a_synchronous_test_encrypts_texts(app: App, folder: Path) -> None:
    @app.task
    def echo(text: str) -> str:
        return text * 2

    with app.sync.testing() as t:
        job = echo.enqueue_sync(LARGE)
        t.assert_enqueued(echo, LARGE)
        assert t.drain() == 1
        assert job.result_sync(timeout=0) == LARGE * 2
    assert not folder.exists()


async def test_an_outbox_has_no_plain_text(tmp_path: Path) -> None:
    mine = tmp_path / "mine.db"
    sqlite3.connect(mine).close()
    app = App("memory://", keys=Keys(Keys.make("k")), outbox=Outbox(f"sqlite:///{mine}"))
    assert app.outbox is not None
    await app.outbox.create()

    @app.task
    async def echo(text: str) -> str:
        return text

    async with app.testing(storage=f"sqlite:///{tmp_path / 'given.db'}") as t:
        with sqlite3.connect(mine) as db:
            db.execute("BEGIN")
            job = await app.enqueue(echo.job(SECRET), within=db)
        assert SECRET.encode() not in mine.read_bytes()
        await t.drain()
        assert await job.result(0) == SECRET
        t.assert_enqueued(echo, SECRET)
    db.close()


async def test_texts_without_a_row_are_deleted_by_the_clock_of_the_test(app: App, tmp_path: Path) -> None:
    @app.task(keep=60)
    async def echo(text: str) -> None: ...

    async with app.testing() as t:
        job = await echo.enqueue(LARGE)
        await t.drain()
        storage = cast("Payloads", await app.open())
        assert (await storage.collect(3_600.0)).kept == 1
        await t.advance(4_000)
        await app.jobs.delete(job)
        await t.advance(120)
        await t.storage.prune(100)
        assert (await storage.collect(3_600.0)).deleted == 1
        await app.release()


async def test_a_text_of_an_open_transaction_is_kept(app: App) -> None:
    sqlalchemy = pytest.importorskip("sqlalchemy")
    orm = pytest.importorskip("sqlalchemy.orm")

    @app.task
    async def echo(text: str) -> str:
        return text

    async with app.testing() as t:
        memory: Any = t.storage
        assert await memory.oldest_open() == 0.0
        storage = cast("Payloads", await app.open())
        engine = sqlalchemy.create_engine("sqlite://")
        with orm.Session(engine) as session:
            job = await app.enqueue(echo.job(LARGE), within=session)
            assert await memory.oldest_open() > 0.0
            t.clock.advance(7_200)
            assert await memory.oldest_open() == 7_200
            assert (await storage.collect(3_600.0)).deleted == 0
            t.assert_not_enqueued(echo)
            session.commit()
        engine.dispose()
        assert await memory.oldest_open() == 0.0
        t.assert_enqueued(echo, LARGE)
        await t.drain()
        assert await job.result(0) == LARGE
        await app.release()


async def test_a_store_in_memory_is_a_store_of_objects() -> None:
    now = 100.0
    store = MemoryObjects(lambda: now)
    for name in ("ab/2", "ab/1", "ab/3"):
        await store.put(name, name.encode())
    assert await store.fresh().get("ab/1") == b"ab/1"
    assert [entry.name for entry in await store.page("ab/1", 1)] == ["ab/2"]
    now = 105.0
    await store.put("ab/2", b"again")
    await store.delete(["ab/1", "ab/2", "unknown"], age=5.0)
    assert [(entry.name, entry.size, entry.age) for entry in await store.page("", 10)] == [
        ("ab/2", 5, 0.0),
        ("ab/3", 4, 5.0),
    ]
