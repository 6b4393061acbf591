"""Large texts in a bucket, in processes, in transactions, over HTTP, in an outbox, and after a move."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from tests.blobs.moto import WHO, Store, endpoint
from tests.served import host
from treadle import App, Keys, Outbox, Worker, current
from treadle.admin.storage_move import OpenStorage, move
from treadle.core.stored_text import offloaded, sealed
from treadle.server import Settings
from treadle.storage.memory import MemoryStorage
from treadle.storage.payloads import PayloadStorage
from treadle.testing import drain
from treadle_testkit.shows import shows

__all__ = ["endpoint"]

LARGE = "y" * 5_000


async def payload_of(app: App, id: str) -> str:
    storage = app.storage
    assert isinstance(storage, PayloadStorage)
    [row] = await storage.storage.get([id])
    assert row is not None
    return row.job.payload


async def test_large_texts_are_stored_in_a_bucket(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in WHO.items():
        monkeypatch.setenv(name, value)
    bucket = Store(endpoint)
    async with App("memory://", blobs=bucket.url, offload=2_000) as app:

        @app.task
        async def echo(text: str) -> str:
            return text + "!"

        job, other = await echo.enqueue(LARGE), await echo.options(id="a:b@c.").enqueue(LARGE)
        await drain(app)
        assert await job.result(10) == await other.result(10) == LARGE + "!"
        assert len([name for name in await bucket.names() if name.startswith("some/place/")]) == 5
        storage = app.storage
        assert isinstance(storage, PayloadStorage)
        assert (await storage.collect(0.0)).kept == 5  # two texts of each job, and the owner's object
        await app.jobs.delete(other)
        assert storage.texts.objects is not None
        pages, after = list[str](), ""
        while page := await storage.texts.objects.page(after, 2):
            pages += [entry.name for entry in page]
            after = page[-1].name
        assert len(pages) == 5
        await storage.texts.objects.delete(pages[:2], 60)  # they are young
        assert len(await storage.texts.objects.page("", 1_000)) == 5
        await storage.texts.objects.delete(pages[:2])
        assert len(await storage.texts.objects.page("", 1_000)) == 3


app_of_process = App("memory://")


@app_of_process.task(kind="process")
def in_a_process(text: str) -> str:
    return text * 2


async def test_a_process_reads_and_writes_large_texts(tmp_path: Path) -> None:
    async with App(storage=MemoryStorage(), blobs=tmp_path, offload=2_000, keys=Keys(Keys.make("k"))) as app:
        task = app.task(kind="process", name=in_a_process.name)(in_a_process.function)
        job = await task.enqueue(LARGE)
        async with Worker(app):
            assert await job.result(30) == LARGE * 2


@shows("Large and encrypted arguments work in the caller's own transaction, on an event loop or in a plain thread")
async def test_large_texts_are_stored_within_a_transaction(tmp_path: Path) -> None:
    async with App(f"sqlite:///{tmp_path}/a.db", blobs=tmp_path / "blobs", offload=2_000) as app:

        @app.task
        async def echo(text: str) -> str:
            return text

        @app.task
        async def writes(text: str) -> str:
            async with current().transaction() as tx:
                await app.enqueue(echo.options(id="inner").job(text), within=tx)
            return text + "!"

        def in_thread() -> str:
            with sqlite3.connect(tmp_path / "a.db", isolation_level=None) as connection:
                connection.execute("BEGIN IMMEDIATE")
                job = app.sync.enqueue(echo.job(LARGE), within=connection)
                connection.execute("COMMIT")
            connection.close()
            return job.id

        first = await asyncio.to_thread(in_thread)
        assert offloaded(await payload_of(app, first))
        second = await writes.enqueue(LARGE)
        async with Worker(app):
            assert await second.result(20) == LARGE + "!"
            for id in (first, "inner"):
                assert await (await app.jobs.handle(id)).result(20) == LARGE


async def test_an_outbox_encrypts_and_its_relay_offloads(tmp_path: Path) -> None:
    other = f"sqlite:///{tmp_path}/mine.db"
    async with App(
        f"sqlite:///{tmp_path}/a.db",
        outbox=Outbox(other),
        blobs=tmp_path / "blobs",
        offload=2_000,
        keys=Keys(Keys.make("k")),
    ) as app:

        @app.task
        async def echo(text: str) -> str:
            return text

        assert app.outbox is not None
        connection = sqlite3.connect(tmp_path / "mine.db", isolation_level=None)
        connection.execute("CREATE TABLE mine (n)")
        await app.outbox.create()
        connection.execute("BEGIN IMMEDIATE")
        job = await app.enqueue(echo.job("hunter2" + LARGE), within=connection)
        connection.execute("COMMIT")
        connection.close()
        files = list(tmp_path.glob("mine.db*"))  # noqa: ASYNC240
        assert b"hunter2" not in b"".join(map(Path.read_bytes, files))
        async with Worker(app):
            assert await job.result(20) == "hunter2" + LARGE
        assert offloaded(await payload_of(app, job.id))


@shows("A server that has the blob store and the keys serves clients that have neither; without them it passes on")
async def test_large_texts_are_stored_over_http(tmp_path: Path) -> None:
    keys = Keys(Keys.make("k"))
    inner = MemoryStorage()
    with_all = host().add(App(storage=inner, blobs=tmp_path, offload=2_000, keys=keys), Settings())
    bare = MemoryStorage()
    with_none = host().add(App(storage=bare), Settings(pass_texts=True))
    for url, options in ((with_all, {}), (with_none, {"blobs": tmp_path / "own", "offload": 2_000, "keys": keys})):
        async with App(url, **options) as app:  # type: ignore[arg-type]

            @app.task(name="echo")
            async def echo(text: str) -> str:
                return text + "!"

            job = await echo.enqueue(LARGE)
            small = await echo.enqueue("small")
            async with Worker(app):
                assert await job.result(20) == LARGE + "!"
                assert await small.result(20) == "small!"
            storage = inner if url == with_all else bare
            rows = host().run(storage.get([job.id, small.id]))
            assert offloaded(rows[0].job.payload)
            assert sealed(rows[1].job.payload)


@pytest.mark.slow
async def test_a_move_takes_the_references_along(tmp_path: Path) -> None:
    one, other = MemoryStorage(), MemoryStorage()
    async with App(storage=one, blobs=tmp_path, offload=2_000) as app:

        @app.task(name="echo")
        async def echo(text: str) -> str:
            return text

        job = await echo.enqueue(LARGE)
        await app.close()
    for storage in (one, other):
        await storage.open()
    await move(OpenStorage(one, "memory://one"), OpenStorage(other, "memory://two"))
    async with App(storage=other, blobs=tmp_path, offload=2_000) as app:
        app.task(name="echo")(echo.function)
        await drain(app)
        assert await (await app.jobs.handle(job.id)).result(5) == LARGE
