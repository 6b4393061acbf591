"""No text is deleted that a job needs: in every way a job ends or goes, in open transactions, and during deletions."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.fixtures import KINDS, a_storage
from tests.storage.postgres import support as postgres
from treadle import App, BadOption, Key, Retry, StorageError, Worker
from treadle.blobs.objects import FolderObjects
from treadle.core.clock import wall
from treadle.core.query_model import Query
from treadle.server.doctor import of_contents
from treadle.storage.contract import Storage
from treadle.storage.memory import MemoryStorage
from treadle.storage.optional_parts import Collected
from treadle.storage.payloads import PayloadStorage, missing
from treadle.storage.payloads.texts import owner_of, references
from treadle.testing import HandClock, drain
from treadle_testkit.shows import shows

LARGE = "x" * 5_000


def over(app: App) -> PayloadStorage:
    assert isinstance(app.storage, PayloadStorage)
    return app.storage


def make_old(folder: Path, age: float = 86_400) -> None:
    for path in folder.glob("??/*/*"):
        os.utime(path, (wall() - age, wall() - age))


def jobs_with_texts(folder: Path) -> set[str]:
    return {path.parent.name for path in folder.glob("??/*/*")}


def folders_of_texts(folder: Path) -> set[Path]:
    return {path.parent.parent.parent for path in folder.rglob("*") if len(path.name) == 64}


async def unneeded(app: App, plain: Storage) -> set[str]:
    """The jobs whose objects have no row that needs them. Fails if a text is missing."""
    objects = over(app).texts.objects
    assert objects is not None
    assert [each async for each in missing(plain, objects, True, lambda looked: None)] == []
    rows = {row.job.id: row for row in (await plain.find(Query(limit=1_000))).records}
    found = set()
    for entry in await objects.page("", 1_000):
        own = owner_of(entry.name)
        if own is not None and (own[0] not in rows or own[1] not in references(rows[own[0]])):
            found.add(own[0])
    return found


@shows("However a job ends or goes, its texts in the blob store go with it, and no other text does")
@pytest.mark.parametrize("kind", KINDS)
async def test_the_texts_of_a_job_are_deleted_with_it(kind: str, tmp_path: Path) -> None:
    clock, place = HandClock(), tmp_path / "texts"
    with a_storage(kind, tmp_path, clock) as plain:
        async with App(storage=plain, clock=clock, blobs=place, offload=2_000, random=lambda: 0.0) as app:
            once = Retry(attempts=1)

            @app.task(name="echo")
            async def echo(text: str) -> str:
                return text + "!"

            @app.task(name="fail", retry=once)
            async def fail(text: str) -> None:
                raise ValueError(text[:5])

            @app.batch(name="many", max_wait=0.0)
            async def many(texts: list[str]) -> list[str]:
                return [text + "!" for text in texts]

            kept, deleted = await echo.enqueue(LARGE + "kept"), await echo.enqueue(LARGE + "deleted")
            dropped = await echo.options(keep=0).enqueue(LARGE + "keep=0")
            failed = await fail.options(keep_failed=0).enqueue(LARGE + "keep_failed=0")
            dead, batch = await fail.enqueue(LARGE + "dead"), await many.enqueue(LARGE + "batch")
            later = await echo.options(delay=10_000).enqueue(LARGE + "later")
            before = await echo.options(delay=10_000, key=Key("k", conflict="replace")).enqueue(LARGE + "before")
            keyed = await echo.options(delay=10_000, key=Key("k", conflict="replace")).enqueue(LARGE + "after")
            cancelled = await echo.options(delay=10_000).enqueue(LARGE + "cancelled")
            await app.jobs.cancel(cancelled)
            await drain(app)
            await app.jobs.delete(deleted)
            clock.advance(60)
            while await plain.prune(100):
                pass
            make_old(place)
            await over(app).collect(3_600)
            make_old(place)
            assert await unneeded(app, plain) <= {keyed.id}  # an unfinished job keeps every text of its id
            names = jobs_with_texts(place)
            assert names == {each.id for each in (kept, dead, batch, later, before, keyed, cancelled)}
            assert not names & {each.id for each in (deleted, dropped, failed)}
            assert await kept.result(5) == LARGE + "kept!"
            await app.jobs.retry(dead)
            await drain(app)
            assert (await app.jobs.get(dead)).error is not None
            clock.advance(10_000)
            await drain(app)
            assert await keyed.result(5) == LARGE + "after!"
            make_old(place)
            await over(app).collect(3_600)
            assert await unneeded(app, plain) == set()


async def test_a_job_that_lost_its_worker_keeps_its_texts(tmp_path: Path) -> None:
    clock, place = HandClock(), tmp_path / "texts"
    plain = MemoryStorage(clock)
    async with App(storage=plain, clock=clock, blobs=place, offload=2_000) as app:
        runs, started = [0], asyncio.Event()

        @app.task(name="echo", retry=Retry(base=0.0, jitter=0.0))
        async def echo(text: str) -> str:
            runs[0] += 1
            if runs[0] == 1:
                started.set()
                await asyncio.Event().wait()
            return text

        job = await echo.enqueue(LARGE)
        first = Worker(app, grace=0.0)
        async with first:
            await started.wait()
            make_old(place)
            assert (await over(app).collect(3_600)).deleted == 0
        make_old(place)
        assert (await over(app).collect(3_600)).deleted == 0
        clock.advance(3_600)
        async with Worker(app):
            assert await job.result(10) == LARGE


# --- transactions


@shows("No text is deleted while a transaction is open that may have stored its job")
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_text_of_an_open_transaction_stays(kind: str, tmp_path: Path) -> None:
    place = tmp_path / "texts"
    with a_storage(kind, tmp_path) as plain:
        async with App(storage=plain, blobs=place, offload=2_000) as app:

            @app.task(name="echo")
            async def echo(text: str) -> str:
                return text

            work, transaction = over(app).collect, await over(app).begin(False)
            try:
                made = await transaction.bound.enqueue([echo.job(LARGE).new])  # type: ignore[attr-defined]
                task = asyncio.create_task(work(0.0))
                done = (await task) if kind == "postgres" else None
                await transaction.commit()
                done = done or await task
            finally:
                await transaction.close()
            assert done == Collected(kept=1, kept_bytes=done.kept_bytes, held=1 if kind == "postgres" else 0)
            make_old(place)
            assert (await over(app).collect(3_600)).deleted == 0
            await drain(app)
            assert (await app.jobs.get(made[0].job.id)).state == "succeeded"


async def test_postgres_reports_how_long_a_transaction_is_open() -> None:
    with postgres.a_schema() as schema:
        app = App(postgres.url_of(schema, timeout=60))

        @app.task(name="echo")
        async def echo(text: str) -> str:
            return text

        async with app:
            seen: Any = app.storage
            assert await seen.oldest_open() == 0.0
            with psycopg.connect(postgres.url_of(schema).partition("?")[0]) as connection:
                connection.execute("SELECT 1")  # a transaction that has stored nothing
                assert await seen.oldest_open() == 0.0
                await asyncio.to_thread(echo.options(within=connection).enqueue_sync, "a")
                first = await seen.oldest_open()
                assert 0.0 < first < await seen.oldest_open()
                connection.rollback()
                assert await seen.oldest_open() == 0.0


# --- the moment of a deletion


async def test_an_object_that_is_put_again_during_its_deletion_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, name = FolderObjects(tmp_path), "aa/job/" + "0" * 64
    await store.put(name, b"content")
    await store.delete([name], 60)
    assert await store.get(name) == b"content"  # it is young
    os.utime(tmp_path / name, (wall() - 100, wall() - 100))
    rename = os.rename

    def late(source: Path, target: Path) -> None:
        os.utime(source)  # a put of the same content, after the check of its age
        rename(source, target)

    with monkeypatch.context() as patched:
        patched.setattr("os.rename", late)
        await store.delete([name], 60)
    assert await store.get(name) == b"content"
    os.utime(tmp_path / name, (wall() - 100, wall() - 100))
    await store.delete([name, "aa/none/" + "0" * 64], 60)
    assert await store.get(name) is None
    assert os.listdir(tmp_path / "incoming") == []


async def test_a_put_after_a_deletion_writes_the_object_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, name = FolderObjects(tmp_path), "aa/job/" + "0" * 64
    await store.put(name, b"content")

    def gone(path: Path) -> None:
        os.unlink(path)
        raise FileNotFoundError(path)

    with monkeypatch.context() as patched:
        patched.setattr("treadle.blobs.objects.os.utime", gone)
        await store.put(name, b"content")
    assert await store.get(name) == b"content"


async def test_a_text_without_a_row_after_a_crash_is_deleted_later(tmp_path: Path) -> None:
    class Crashing(MemoryStorage):
        async def enqueue(self, jobs: Any) -> Any:
            if any(job.task == "echo" for job in jobs):
                raise StorageError("crashed")
            return await super().enqueue(jobs)

    async with App(storage=Crashing(), blobs=tmp_path, offload=2_000) as app:

        @app.task(name="echo")
        async def echo(text: str) -> None: ...

        with pytest.raises(StorageError, match="crashed"):
            await echo.enqueue(LARGE)
        assert (await over(app).collect(3_600)).deleted == 0
        make_old(tmp_path)
        assert (await over(app).collect(3_600)).deleted == 1


async def test_a_name_that_leads_out_of_the_folder_is_the_name_of_no_job(tmp_path: Path) -> None:
    """Ids are chosen by callers; a name is made of them."""
    async with App(storage=MemoryStorage(), blobs=tmp_path / "texts", offload=2_000) as app:

        @app.task(name="echo")
        async def echo(text: str) -> str:
            return text

        for id in ("../../../etc/x", "..", ".", "/abs", "a/../..", "%2e%2e/x", "\\..\\x"):
            try:
                job = await echo.options(id=id).enqueue(LARGE)
            except (BadOption, ValueError):
                continue
            await drain(app)
            assert await job.result(5) == LARGE
        assert os.listdir(tmp_path) == ["texts"]
        assert folders_of_texts(tmp_path) == {tmp_path / "texts"}


async def test_doctor_accepts_the_row_that_names_the_storage(tmp_path: Path) -> None:
    async with App(storage=MemoryStorage(), blobs=tmp_path) as app:
        assert len((await app.jobs.list()).records) == 1
        checks = [check async for check in of_contents(app._core, False, repair=True)]
        assert [each.verdict for each in checks if each.name in ("own rows", "repaired")] == ["ok"]
        [row] = (await app.jobs.list()).records
        assert not row.state.final
