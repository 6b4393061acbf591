"""Large arguments, results and steps are stored apart from their rows, on every storage and by every way to enqueue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.fixtures import KINDS, a_storage
from treadle import (
    App,
    BadArgument,
    BadOption,
    JobFailed,
    Record,
    Retry,
    Sizes,
    StorageUnavailable,
    TooLarge,
    Worker,
    current,
    flow,
)
from treadle.admin.stored_values import arguments
from treadle.blobs.objects import FolderObjects, ObjectEntry
from treadle.core.model import NewJob
from treadle.core.query_model import Query
from treadle.core.stored_text import offloaded, placeholder
from treadle.storage.contract import Storage
from treadle.storage.memory import MemoryStorage
from treadle.storage.payloads import PayloadStorage
from treadle.storage.payloads.texts import name_of
from treadle.testing import HandClock, drain
from treadle_testkit.shows import shows

LARGE = "x" * 5_000


@pytest.fixture(params=KINDS)
def plain(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    """The storage under the blob store."""
    with a_storage(request.param, tmp_path) as storage:
        yield storage


@pytest.fixture
async def app(plain: Storage, tmp_path: Path) -> AsyncIterator[App]:
    async with App(storage=plain, blobs=tmp_path / "blobs", offload=2_000, random=lambda: 0.0) as app:
        yield app


def files(folder: Path) -> set[str]:
    return {path.parent.name for path in (folder / "blobs").glob("??/*/*")}


async def row_of(storage: Storage, id: str) -> Record:
    [row] = await storage.get([id])
    assert row is not None
    return row


@shows("Arguments and results above a size are stored in a blob store, and the row has a reference of 110 bytes")
async def test_large_arguments_and_results_are_not_in_the_row(app: App, plain: Storage, tmp_path: Path) -> None:
    @app.task
    async def double(text: str) -> str:
        return text * 2

    large, small = await double.enqueue(LARGE), await double.enqueue("x")
    await drain(app)
    assert await large.result(5) == LARGE * 2
    assert await small.result(5) == "xx"
    stored = await row_of(plain, large.id)
    assert offloaded(stored.job.payload)
    assert offloaded(stored.result)
    assert len(stored.job.payload) < 120
    assert files(tmp_path) == {large.id}
    whole = await app.jobs.whole(large.id)
    assert app.jobs.arguments(whole) == ((LARGE,), {})
    assert "bytes in the blob store" in arguments(stored.job.payload)[0][0]


async def test_large_arguments_are_offloaded_in_every_way_to_enqueue(app: App, plain: Storage) -> None:
    seen = list[int]()

    @app.task
    async def leaf(text: str) -> str:
        seen.append(len(text))
        return text

    @app.task
    async def parent() -> object:
        await leaf.enqueue(LARGE + "child")
        return leaf.job(LARGE + "followup")

    @app.batch(max_wait=0.0)
    async def many(texts: list[str]) -> list[int]:
        return [len(text) for text in texts]

    first, grouped = await app.enqueue([leaf.job(LARGE), leaf.job(LARGE + "2")]), await many.enqueue(LARGE)
    whole = await app.enqueue(flow(leaf.job(LARGE + "a"), leaf.job(LARGE + "b"), reduce="list"))
    made = await parent.enqueue()
    await drain(app)
    assert [await job.result(5) for job in first] == [LARGE, LARGE + "2"]
    assert await grouped.result(5) == 5_000
    assert await whole.workflow.result(5) == [LARGE + "a", LARGE + "b"]
    assert await made.workflow.result(5) == LARGE + "followup"
    assert sorted(seen) == [5_000, 5_001, 5_001, 5_001, 5_005, 5_008]
    assert all(len(row.job.payload) < 200 for row in (await plain.find(Query(limit=100))).records)


async def test_a_result_that_is_passed_on_and_a_large_step(app: App, plain: Storage) -> None:
    runs = list[str]()

    @app.task
    async def make() -> str:
        return LARGE

    @app.task
    async def take(text: str) -> int:
        value = await current().step("once", lambda: runs.append("step") or text)
        if len(runs) == 1:
            runs.append("failed")
            raise ValueError("once more")
        return len(value)

    [first] = await app.enqueue([make.job()])
    second = await take.options(after=first, pass_result=True, retry=Retry(base=0.0, jitter=0.0)).enqueue()
    await drain(app)
    assert await second.result(5) == 5_000
    assert runs == ["step", "failed"]  # the second run read the step from the blob store
    checkpoints = dict((await row_of(plain, second.id)).checkpoints)
    assert offloaded(checkpoints["once"])


async def test_a_large_signal_is_received(app: App) -> None:
    @app.task
    async def waits() -> int:
        return len(await current().wait_for("go"))

    job = await waits.enqueue()
    async with Worker(app):
        await app.jobs.signal(job, "go", LARGE)
        assert await job.result(10) == 5_000


@shows("A job whose arguments were deleted from the blob store fails with a sentence that says so")
async def test_lost_or_damaged_arguments_fail_the_job(app: App, tmp_path: Path) -> None:
    @app.task
    async def take(text: str) -> None: ...

    lost, damaged = await take.enqueue(LARGE), await take.enqueue(LARGE)
    for path in (tmp_path / "blobs").glob("??/*/*"):
        if path.parent.name == lost.id:
            path.unlink()
        else:
            path.write_bytes(path.read_bytes().replace(b"x", b"y", 1))
    await drain(app)
    for job in (lost, damaged):
        with pytest.raises(JobFailed, match="are not in this app's blob store"):
            await job.result(5)
        assert (await app.jobs.get(job)).attempt == 1


class Away(FolderObjects):
    """A blob store that can be away."""

    away = False

    def fresh(self) -> Away:
        return self

    async def put(self, name: str, content: bytes) -> None:
        self._check()
        await super().put(name, content)

    async def get(self, name: str) -> bytes | None:
        self._check()
        return await super().get(name)

    def _check(self) -> None:
        if self.away:
            raise StorageUnavailable("the blob store is away")


@shows("While the blob store is away, jobs that need it wait, and no attempt is counted")
async def test_a_job_waits_while_its_blob_store_is_unavailable(tmp_path: Path) -> None:
    clock, store = HandClock(), Away(tmp_path / "blobs")
    async with App(storage=MemoryStorage(clock), clock=clock, blobs=store, offload=2_000) as app:

        @app.task
        async def take(text: str) -> int:
            return len(text)

        job, small = await take.enqueue(LARGE), await take.enqueue("x")
        store.away = True
        with pytest.raises(StorageUnavailable):
            await take.enqueue(LARGE)
        released = asyncio.Event()
        app.on("deferred")(lambda event: released.set())
        async with Worker(app):
            await released.wait()
            assert await small.result(10) == 1
            row = await app.jobs.get(job)
            store.away = False
            clock.advance(5)
            assert await job.result(10) == 5_000
        assert (row.attempt, (await app.jobs.get(job)).attempt) == (0, 1)


async def test_an_app_without_the_blob_store_releases_the_job(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    storage = MemoryStorage()
    async with App(storage=storage, blobs=tmp_path, offload=2_000) as app, App(storage=storage) as other:

        @app.task(name="take")
        async def take(text: str) -> int:
            return len(text)

        other.task(name="take")(take.function)
        job = await take.enqueue(LARGE)
        released = asyncio.Event()
        other.on("deferred")(lambda event: released.set())
        async with Worker(other):
            await released.wait()
        assert "use App(blobs=...)" in caplog.text
        row = await app.jobs.get(job)
        assert (row.state, row.attempt) == ("ready", 0)


# --- deleting


async def collected(app: App, age: float = 0.0) -> int:
    storage = app.storage
    assert isinstance(storage, PayloadStorage)
    return (await storage.collect(age)).deleted


@shows("Texts in the blob store are deleted after their job, and never while a row refers to them")
async def test_objects_go_with_their_jobs(tmp_path: Path) -> None:
    for kind in KINDS:
        clock = HandClock()
        with a_storage(kind, tmp_path, clock) as plain:
            place = tmp_path / kind / "blobs"
            async with App(storage=plain, clock=clock, blobs=place, offload=2_000) as app:

                @app.task
                async def echo(text: str) -> str:
                    return text + "!"

                kept, gone, queued = [await echo.options(id=f"{kind}:{n}").enqueue(LARGE) for n in range(3)]
                await app.jobs.cancel(queued)
                await app.jobs.retry(queued)
                await drain(app)
                assert await collected(app) == 0
                assert files(place.parent) == {kept.id, gone.id, queued.id}
                await app.jobs.delete(gone)
                clock.advance(120)
                await plain.prune(100)
                assert await collected(app, age=3_600) == 0  # too young
                assert await collected(app) == 2
                assert files(place.parent) == {kept.id, queued.id}
                assert await kept.result(5) == LARGE + "!"


async def test_an_orphan_of_a_crash_is_deleted_once_it_is_old(tmp_path: Path) -> None:
    store = FolderObjects(tmp_path)
    async with App(storage=MemoryStorage(), blobs=store) as app:
        await store.put("aa/job/" + "0" * 64, b"content")  # not a name of ours: another program's
        name = name_of("job:1", "0" * 64)
        await store.put(name, b"content")
        assert [entry.name for entry in await store.page("", 10)] == sorted([name, "aa/job/" + "0" * 64])
        assert await collected(app, age=60) == 0
        assert await collected(app) == 1
        assert [entry.name for entry in await store.page("", 10)] == ["aa/job/" + "0" * 64]


async def test_two_storages_cannot_share_a_place(tmp_path: Path) -> None:
    async with App(storage=MemoryStorage(), blobs=tmp_path):
        pass
    with pytest.raises(BadOption, match="texts of another storage"):
        await App(storage=MemoryStorage(), blobs=tmp_path).open()


async def test_pages_of_a_folder_are_complete(tmp_path: Path) -> None:
    store = FolderObjects(tmp_path)
    names = sorted(f"{n % 7:02x}/job{n % 5}/{n:064x}" for n in range(60))
    for name in names:
        await store.put(name, b"content")
    found, after = list[ObjectEntry](), ""
    while page := await store.page(after, 7):
        found += page
        after = page[-1].name
    assert [entry.name for entry in found] == names
    assert {entry.size for entry in found} == {7}


@pytest.mark.parametrize(
    "options",
    [
        {"blobs": ""},
        {"blobs": "ftp://x"},
        {"offload": 5_000},
        {"blobs": "x", "offload": 3},
        {"blobs": 3},
        {"keys": "k"},
    ],
)
def test_invalid_options_of_blobs_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(BadOption, match=r"blobs|offload|keys"):
        App("memory://", **options)  # type: ignore[arg-type]


async def test_the_limits_of_sizes_hold_for_the_whole_text(tmp_path: Path) -> None:
    async with App("memory://", blobs=tmp_path, offload=2_000, sizes=Sizes(payload=4_000)) as app:

        @app.task
        async def take(text: str) -> None: ...

        with pytest.raises(TooLarge):
            await take.enqueue(LARGE)


async def test_a_forged_reference_reads_no_other_job(app: App, plain: Storage) -> None:
    @app.task
    async def take(text: str) -> str:
        return text

    victim = await take.enqueue(LARGE)
    payload = (await row_of(plain, victim.id)).job.payload
    with pytest.raises(BadArgument, match="belong to another job"):
        take._core.signature.decode_call(payload)
    await plain.enqueue([NewJob(id="forged:2", task=victim.task, payload=payload)])
    await drain(app)
    assert (await app.jobs.get("forged:2")).state == "failed"


@shows("a step's result of more than 1 MiB goes to the blob store, and without one the refusal names it")
async def test_a_result_of_a_step_that_is_larger_than_a_row_may_have(
    app: App, plain: Storage, tmp_path: Path, clock: HandClock
) -> None:
    runs = list[str]()

    def crawl() -> str:
        runs.append("crawl")
        return "x" * (3 * 2**20)

    async def take() -> int:
        pages = [await current().step("crawl", crawl) for _ in range(2)]
        if len(runs) == 2:
            runs.append("failed")
            raise ValueError("once more")
        return sum(map(len, pages))

    task = app.task(name="take", retry=Retry(base=0.0, jitter=0.0))(take)
    job = await task.enqueue()
    await drain(app)
    assert await job.result(5) == 6 * 2**20
    assert runs == ["crawl", "crawl", "failed"]
    stored = dict((await row_of(plain, job.id)).checkpoints)
    assert [len(stored[name]) < 200 for name in ("crawl", "crawl#2")] == [True, True]
    assert "in the blob store" in placeholder(stored["crawl"])  # type: ignore[operator]

    fork = await app.jobs.fork(job.id, from_step="crawl#2")
    await app.jobs.rerun(job.id, from_step="crawl#2")
    await drain(app)
    assert [await one.result(5) for one in (job, fork)] == [6 * 2**20] * 2
    assert runs == ["crawl", "crawl", "failed", "crawl", "crawl"]
    assert files(tmp_path) == {job.id, fork.id}

    async with App(storage=plain) as without:
        failed = await without.task(name="take", retry=Retry(attempts=1))(take).enqueue()
        await drain(without)
        error = (await without.jobs.get(failed.id)).error or ""
        assert "limit 1,048,576" in error or "1,048,576" in error
        assert "give the app a blob store with App(blobs=...), or store the data elsewhere" in error
