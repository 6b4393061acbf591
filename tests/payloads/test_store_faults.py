"""Faults of the blob store: it is away, slow, full or refuses. No job is lost, nothing hangs, and errors are clear."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from treadle import App, JobFailed, StorageError, StorageUnavailable, Worker, current
from treadle.blobs.objects import FolderObjects
from treadle.core.model import LeaseRenewal, Presence
from treadle.errors import StorageFull
from treadle.storage.memory import MemoryStorage
from treadle.storage.payloads import PayloadStorage
from treadle_testkit.shows import shows

LARGE = "x" * 5_000


class Faulty(FolderObjects):
    """Raises this error, or hangs, while it is set."""

    error: Exception | None = None
    hangs = False
    failed = 0

    def fresh(self) -> Faulty:
        return self

    async def put(self, name: str, content: bytes) -> None:
        await self._fault()
        await super().put(name, content)

    async def get(self, name: str) -> bytes | None:
        await self._fault()
        return await super().get(name)

    async def _fault(self) -> None:
        if self.hangs:
            await asyncio.Event().wait()
        if self.error is not None:
            self.failed += 1
            raise self.error


ERRORS = [
    StorageUnavailable("no response in time"),
    StorageFull("no room for blobs"),
    StorageError("blobs are refused: 403 AccessDenied"),
    StorageError("blobs are refused: 400 ExpiredToken"),
]


@shows("A lease is renewed although the blob store is full, refuses or hangs, and the step is stored later")
@pytest.mark.parametrize("error", [None, *ERRORS])
async def test_leases_are_renewed(error: Exception | None, tmp_path: Path) -> None:
    store = Faulty(tmp_path)
    async with App(storage=MemoryStorage(), blobs=store, offload=2_000) as app:
        assert isinstance(app.storage, PayloadStorage)
        seen = list[LeaseRenewal]()
        inner = app.storage.storage.heartbeat

        async def heartbeat(worker: Presence, renewals: list[LeaseRenewal], lease: float) -> object:
            seen.extend(renewals)
            return await inner(worker, renewals, lease)

        app.storage.storage.heartbeat = heartbeat  # type: ignore[method-assign,assignment]
        store.error, store.hangs = error, error is None
        renewal = LeaseRenewal(id="job", version=1, checkpoints=(("step", LARGE),))
        found = await app.storage.heartbeat(Presence(worker="w"), [renewal], 0.1)
        assert seen[0].checkpoints == ()
        assert found.unsaved | found.lost == {"job"}


@pytest.mark.parametrize("error", ERRORS)
async def test_an_enqueue_raises_and_a_claimed_job_waits(error: Exception, tmp_path: Path) -> None:
    store = Faulty(tmp_path)
    async with App(storage=MemoryStorage(), blobs=store, offload=2_000, random=lambda: 0.0) as app:

        @app.task(name="echo")
        async def echo(text: str) -> int:
            return len(text)

        job, small = await echo.enqueue(LARGE), await echo.enqueue("x")
        store.error = error
        with pytest.raises(type(error), match=str(error)):
            await echo.enqueue(LARGE)
        released = asyncio.Event()
        app.on("deferred")(lambda event: released.set())
        async with Worker(app):
            await released.wait()
            assert await small.result(10) == 1
            store.error = None
            assert await app.jobs.run_now(job)  # it would wait for five seconds
            assert await job.result(20) == 5_000
        assert (await app.jobs.get(job)).attempt == 1


@shows("While the blob store refuses a result, the jobs with small results end, and the large one ends when it can")
@pytest.mark.parametrize("error", ERRORS)
async def test_a_large_result_delays_no_other_job(error: Exception, tmp_path: Path) -> None:
    store = Faulty(tmp_path)
    async with App(storage=MemoryStorage(), blobs=store, offload=2_000, random=lambda: 0.0) as app:
        ran = asyncio.Event()

        @app.task(name="make")
        async def make() -> str:
            store.error = error
            ran.set()
            return LARGE

        @app.task(name="small")
        async def small(number: int) -> int:
            return number

        async with Worker(app, concurrency=4):
            large = await make.enqueue()
            await ran.wait()
            for number in range(8):
                assert await (await small.enqueue(number)).result(10) == number
            assert store.failed
            assert not (await app.jobs.get(large)).state.final
            store.error = None
            assert await large.result(20) == LARGE
        assert (await app.jobs.get(large)).attempt == 1


def cut_off(folder: Path) -> None:
    for path in folder.glob("??/*/*"):
        path.write_bytes(path.read_bytes()[:100])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
async def test_a_folder_without_permission(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir(mode=0o500)
    async with App(storage=MemoryStorage(), blobs=tmp_path / "texts", offload=2_000) as app:

        @app.task(name="echo")
        async def echo(text: str) -> None: ...

        with pytest.raises(StorageUnavailable, match="Permission denied"):
            await echo.enqueue(LARGE)


async def test_a_text_that_was_cut_off_fails_the_job_and_is_named(tmp_path: Path) -> None:
    async with App(storage=MemoryStorage(), blobs=tmp_path, offload=2_000) as app:

        @app.task(name="echo")
        async def echo(text: str) -> int:
            return len(await current().step("long", lambda: text))

        job = await echo.enqueue(LARGE)
        cut_off(tmp_path)
        async with Worker(app):
            with pytest.raises(JobFailed, match="are not in this app's blob store"):
                await job.result(10)
