"""Streams of which several runs write: the chunks of a lost run are void, and its later ones are refused."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from tests.durable.kit import AGAIN
from tests.kit import Spy
from tests.servers import valkey
from treadle import App, Chunk, ForeignRow, Keys, Reset, State, StorageUnavailable, current
from treadle.core.model import Claim, LeaseRenewal, NewJob, Outcome, Presence, Record, Settled
from treadle.durable.stream_log import StreamLog, Waiting
from treadle.producer import stream_readers
from treadle.storage.contract import Storage
from treadle.storage.redis import ShardedRedis
from treadle.testing import HandClock, drain
from treadle.workflow.streams import PROBES, Page, find_page, find_tail, first_kept, page_id, page_row
from treadle_testkit.shows import shows


class Steps:
    """The checkpoints of a run that has taken no step."""

    def __init__(self) -> None:
        self.unsaved, self.over = dict[str, str](), set[str]()

    def is_over(self, key: str) -> bool:
        return key in self.over

    def note(self, pair: tuple[str, str]) -> None:
        self.unsaved[pair[0]] = pair[1]


class Run:
    """A run in another process, whose worker may have stalled since: it knows only its claim."""

    def __init__(self, storage: Storage, record: Record) -> None:
        self.run, self.backend, self.storage = self, self, storage
        self.record, self.job, self.checkpoints = record, record.job.id, Steps()
        self.answers_lost = 0

    async def get(self, ids: Any) -> Any:
        return await self.storage.get(ids)

    async def store(self, job: NewJob) -> Record:
        return (await self.storage.enqueue([job]))[0]

    async def settle(self, outcomes: list[Outcome]) -> list[Settled]:
        answers = await self.storage.settle(outcomes)
        if self.answers_lost:
            self.answers_lost -= 1
            return await self.storage.settle(outcomes)
        return answers

    def check(self, run: Run) -> None:
        """Nothing has told it that it is lost."""

    async def save(self, run: Run) -> None:
        [row] = await self.storage.get([self.record.job.id])
        if row is None or row.version != self.record.version:
            raise asyncio.CancelledError


def chunks(step: str, *texts: str, number: int = 1) -> list[Waiting]:
    return [Waiting(step, number, f'"{text}"', len(text)) for text in texts]


async def begun(app: App, worker: str = "stalled") -> Run:
    """The next job, claimed by a worker that runs it elsewhere."""
    storage = await app._core.open()
    [record] = (await storage.claim(Claim(worker=f"{worker}#1", lease=30.0))).records
    return Run(storage, record)


def log_of(run: Run) -> StreamLog:
    return StreamLog(run, "out")  # type: ignore[arg-type]


def telling(app: App, *texts: str) -> Any:
    """A task with one step, which writes these texts."""

    async def talk() -> str:
        out = current().stream("out")
        for text in texts:
            await out.write(text)
        return "".join(texts)

    @app.task(name="t", retry=AGAIN)
    async def t() -> str:
        here = current()
        return await here.step("talk", talk)

    return t


@shows("the chunks of a lost worker are void, and its later ones are refused")
@pytest.mark.parametrize("texts", ["xyz", ""])
@pytest.mark.parametrize("is_early", [True, False])
async def test_a_lost_run_writes_no_more(app: App, clock: HandClock, texts: str, is_early: bool) -> None:
    job = await telling(app, *texts).enqueue()
    lost = await begun(app)
    log = log_of(lost)
    await _saved(lost, log)
    if is_early:
        assert await log.store(chunks("talk", "a", "b"), ())
        assert await app.jobs.stream(job, "out") == ["a", "b"]
    clock.advance(31)
    await drain(app)
    assert await job.result(0) == texts
    with pytest.raises(asyncio.CancelledError):
        await log.store(chunks("talk", "late"), ())
    assert await app.jobs.stream(job, "out") == list(texts)
    entries = [entry async for entry in app.jobs.follow(job, "out")]
    after = [Chunk(n, text, "talk") for n, text in enumerate(texts, 3 if is_early else 0)]
    assert entries == (
        [Chunk(0, "a", "talk"), Chunk(1, "b", "talk"), Reset(2, 0, "talk"), *after] if is_early else after
    )


async def _saved(run: Run, log: StreamLog) -> None:
    """The checkpoint of the stream is stored, as a worker stores it before the first page."""
    log._keep_note()
    pairs = tuple(run.checkpoints.unsaved.items())
    renewal = LeaseRenewal(run.record.job.id, run.record.version, checkpoints=pairs)
    answer = await run.storage.heartbeat(Presence(worker="stalled"), [renewal], 30.0)
    assert not answer.lost
    log._is_new = False


async def test_a_lost_run_that_comes_first_is_followed(app: App, clock: HandClock) -> None:
    """The new run has looked, and the lost one writes before it does."""
    job = await telling(app).enqueue()
    lost = await begun(app)
    old = log_of(lost)
    await _saved(lost, old)
    await old.store(chunks("talk", "a"), ())
    clock.advance(31)
    new_run = await begun(app, "other")
    new = log_of(new_run)
    new._place = await new._look()
    assert await old.store(chunks("talk", "b"), ())
    assert await new.store(chunks("talk", "c"), ())
    assert await app.jobs.stream(job, "out") == ["c"]
    with pytest.raises(asyncio.CancelledError):
        await old.store(chunks("talk", "d"), ())
    assert await new.store(chunks("talk", "e"), ())
    assert await app.jobs.stream(job, "out") == ["c", "e"]


async def test_a_page_whose_answer_is_lost_is_stored_once(app: App) -> None:
    job = await telling(app).enqueue()
    run = await begun(app)
    log, run.answers_lost = log_of(run), 100
    for text in "abc":
        assert await log.store(chunks("talk", text), ())
    assert await app.jobs.stream(job, "out") == ["a", "b", "c"]


async def test_a_later_try_of_a_run_voids_the_earlier_one(app: App) -> None:
    job = await telling(app).enqueue()
    run = await begun(app)
    log = log_of(run)
    await log.store([*chunks("a", "1"), *chunks("b", "2", number=2), *chunks("a", "3", number=3)], ())
    assert await app.jobs.stream(job, "out") == ["2", "3"]
    assert [log.has_other(*one) for one in (("b", 9), ("b", 2), ("c", 2))] == [True, False, False]
    assert await log.store((), [("b", 9)])
    assert await app.jobs.stream(job, "out") == ["3"]
    assert not await log.store((), [("b", 9)])
    run.checkpoints.over.add("a")
    assert log._place is not None
    assert await log.store(chunks("c", "4"), ())
    assert list(log._place.open) == ["c"]


@pytest.mark.parametrize("ended", [State.CANCELLED, State.SUCCEEDED, State.FAILED])
async def test_a_page_that_another_caller_ends_is_skipped(app: App, ended: State) -> None:
    job = await telling(app).enqueue()
    run = await begun(app)
    log = log_of(run)
    await log.store(chunks("a", "1"), ())
    page = page_id(job.id, "out", 2)
    reason = "error" if ended is State.FAILED else None
    [answer] = await run.storage.settle([Outcome(id=page, version=0, state=ended, reason=reason)])
    assert answer.status == "applied"
    assert await log.store(chunks("a", "2"), ())
    other = log_of(run)
    assert await other.store(chunks("b", "3"), ())
    assert await app.jobs.stream(job, "out") == ["1", "2", "3"]
    for start in range(3):
        reader = app.jobs.follow(job, "out", start)
        values = [entry.value async for entry in _some(reader, 3 - start) if isinstance(entry, Chunk)]
        assert values == ["1", "2", "3"][start:]


async def _some(reader: Any, count: int) -> Any:
    for _ in range(count):
        yield await anext(reader)
    await reader.aclose()


async def test_a_writer_whose_pages_were_pruned_writes_behind_them(app: App, clock: HandClock) -> None:
    job = await telling(app).enqueue()
    run = await begun(app)
    log = log_of(run)
    await _saved(run, log)
    for text in "abc":
        await log.store(chunks("s", text, number=1), ())
    await _saved(run, log)
    await run.storage.settle([Outcome(id=page_id(job.id, "out", 4), version=0, state=State.SUCCEEDED, keep=0.0)])
    clock.advance(90_000)
    again = await begun(app, "again")
    assert await again.storage.prune(100) == 4
    later = log_of(again)
    await later.store(chunks("s", "d"), ())
    entries = [entry async for entry in _some(app.jobs.follow(job, "out", start=3), 1)]
    assert entries == [Chunk(3, "d", "s")]


@pytest.mark.parametrize("pages", [0, 1, 2, 3, 31, 32, 33, 100])
async def test_pages_are_found_by_few_reads(app: App, pages: int) -> None:
    storage, reads = await app._core.open(), list[int]()

    async def read(ids: Any) -> Any:
        reads.append(len(ids))
        return await storage.get(ids)

    rows = [page_row("default", "j", "out", number, 1_000) for number in range(1, pages + 2)]
    if pages:
        await storage.enqueue(rows)
        out = [
            Outcome(id=row.id, version=0, state=State.SUCCEEDED, result=Page(7 * n, 1).text)
            for n, row in enumerate(rows)
        ]
        await storage.settle(out[:-1])
    for near in (1, 2, pages, pages + 1, pages + 2, 1_000):
        tail = await find_tail(read, "j", "out", max(1, near))
        assert tail.number == (pages + 1 if pages else 0)
        assert (tail.page.start if tail.page else None) == (7 * (pages - 1) if pages else None)
    for offset in range(0, 7 * pages, 5):
        assert await find_page(read, "j", "out", offset, 1, pages + 1) == offset // 7 + 1
    assert await first_kept(read, "j", "out", 5) == ((1, 0) if pages else (0, 0))
    assert max(reads, default=0) <= 2 * PROBES


async def test_chunks_are_encrypted_and_offloaded(tmp_path: Path) -> None:
    async with App("memory://", keys=Keys(Keys.make("k1")), blobs=str(tmp_path), offload=1_024) as app:
        job = await telling(app, "secret", "x" * 5_000).enqueue()
        await drain(app)
        assert await app.jobs.stream(job, "out") == ["secret", "x" * 5_000]
        assert [entry.offset async for entry in app.jobs.follow(job, "out")] == [0, 1]
        inner: Any = await app._core.open()
        while hasattr(inner, "storage"):
            inner = inner.storage
        for row in await inner.get([page_id(job.id, "out", number) for number in (1, 2)]):
            assert "secret" not in (row.result or "")
            assert len(row.result or "") < 1_024


async def test_streams_of_a_sharded_namespace(clock: HandClock) -> None:
    storage = ShardedRedis(valkey.url(), ns=f"streams-{os.getpid()}", shards=3, now=clock)
    async with App(storage=storage, clock=clock) as app:
        task = telling(app, "a", "b")
        jobs = [await task.enqueue() for _ in range(6)]
        await drain(app)
        for job in jobs:
            assert [entry.offset async for entry in app.jobs.follow(job, "out")] == [0, 1]
            assert await app.jobs.stream(job, "out") == ["a", "b"]


async def test_readers_of_a_stream_share_its_reads(app: App, spy: Spy) -> None:
    job = await telling(app).enqueue()
    log = log_of(await begun(app))
    readers = [app.jobs.follow(job, "out") for _ in range(20)]
    await log.store(chunks("s", "0"), ())
    first = await asyncio.gather(*(anext(reader) for reader in readers))
    assert set(first) == {Chunk(0, "0", "s")}
    before = spy.calls["get"]
    for number in range(1, 11):
        nexts = [asyncio.create_task(anext(reader)) for reader in readers]  # type: ignore[arg-type]
        await log.store(chunks("s", str(number)), ())
        assert {entry.value for entry in await asyncio.gather(*nexts) if isinstance(entry, Chunk)} == {str(number)}
    assert spy.calls["get"] - before < 10 * 5
    assert len(app._core.client.streams._hubs) == 1
    for reader in readers:
        await reader.aclose()  # type: ignore[attr-defined]
    assert not app._core.client.streams._hubs


async def test_a_reader_that_is_slow_reads_by_itself(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_readers, "KEPT", 2)
    job = await telling(app).enqueue()
    log = log_of(await begun(app))
    slow, fast = app.jobs.follow(job, "out"), app.jobs.follow(job, "out")
    await log.store(chunks("s", "0"), ())
    assert [await anext(reader) for reader in (slow, fast)] == [Chunk(0, "0", "s")] * 2
    waiting = asyncio.create_task(anext(slow))  # type: ignore[arg-type]
    for number in range(1, 10):
        await log.store(chunks("s", str(number)), ())
        assert await anext(fast) == Chunk(number, str(number), "s")
    assert await waiting == Chunk(1, "1", "s")
    assert [(await anext(slow)).offset for _ in range(8)] == list(range(2, 10))


async def test_readers_raise_what_the_storage_raises(app: App, spy: Spy) -> None:
    job = await telling(app).enqueue()
    log = log_of(await begun(app))
    reader = app.jobs.follow(job, "out")
    await log.store(chunks("s", "0"), ())
    assert await anext(reader) == Chunk(0, "0", "s")
    spy.away["get"] = 1
    with pytest.raises(StorageUnavailable):
        await anext(reader)
    assert [entry async for entry in _some(app.jobs.follow(job, "out"), 1)] == [Chunk(0, "0", "s")]


async def test_a_foreign_row_is_no_page(app: App) -> None:
    job = await telling(app).enqueue()
    storage = await app._core.open()
    await storage.enqueue([NewJob(id=page_id(job.id, "out", 1))])
    with pytest.raises(ForeignRow):
        await app.jobs.stream(job, "out")
    with pytest.raises(ForeignRow):
        await anext(app.jobs.follow(job, "out"))
    with pytest.raises(ForeignRow):
        await log_of(await begun(app)).store(chunks("s", "0"), ())
