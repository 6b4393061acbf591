"""Streams: what a job writes while it runs is read in order, and a step that runs again voids what it wrote before."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.durable.kit import AGAIN, error_of
from tests.kit import Spy, work
from treadle import (
    App,
    BadOption,
    BadStep,
    Chunk,
    Job,
    Reset,
    Retry,
    Stale,
    State,
    UnknownJob,
    current,
    current_batch,
)
from treadle.core import defaults
from treadle.core.query_model import Query
from treadle.testing import HandClock, drain
from treadle.workflow.streams import is_page, page_of
from treadle_testkit.shows import shows

ONCE = Retry(attempts=1)


async def entries_of(app: App, job: Any, name: str = "out", start: int = 0) -> list[Chunk | Reset]:
    return [entry async for entry in app.jobs.follow(job, name, start)]


def text_of(entries: list[Chunk | Reset]) -> str:
    """The text as a reader has it at the end."""
    chunks = dict[int, Chunk]()
    for entry in entries:
        if isinstance(entry, Chunk):
            chunks[entry.offset] = entry
        else:
            chunks = {n: one for n, one in chunks.items() if one.step != entry.step or n < entry.to}
    return "".join(str(chunk.value) for chunk in chunks.values())


async def say(*texts: str) -> str:
    out = current().stream("out")
    for text in texts:
        await out.write(text)
    return "".join(texts)


def say_here(*texts: str) -> str:
    out = current().sync.stream("out")
    for text in texts:
        out.write(text)
    return "".join(texts)


@shows("readers of a stream get what a job writes, in its order, from any place on, during the run and after it")
@pytest.mark.parametrize("kind", ["async", "thread", "plain steps"])
async def test_a_stream_has_what_steps_wrote(app: App, clock: HandClock, kind: str) -> None:
    @app.task
    async def t() -> str:
        here, how = current(), say if kind == "async" else say_here
        first = await here.step("a", how, *"hello")
        await here.sleep(60)
        return first + await here.step("b", how, *"there")

    @app.task
    def in_thread() -> str:
        here = current().sync
        return here.step("a", say_here, *"hello") + here.step("b", say_here, *"there")

    job: Job[str, Any] = await (in_thread if kind == "thread" else t).enqueue()
    await drain(app)
    if kind != "thread":
        clock.advance(60)
        await drain(app)
    entries = await entries_of(app, job)
    assert entries == [Chunk(n, text, "a" if n < 5 else "b") for n, text in enumerate("hellothere")]
    assert await app.jobs.stream(job, "out") == list("hellothere")
    assert await job.result(0) == "hellothere"
    for start in range(12):
        assert await entries_of(app, job, start=start) == entries[start:]
    assert await app.jobs.streams(job) == ["out"]


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_job_without_steps_writes_streams(app: App, kind: str) -> None:
    task = app.task(name="t")(say if kind == "async" else say_here)
    job = await task.enqueue("a", "b")
    await drain(app)
    assert await entries_of(app, job) == [Chunk(0, "a"), Chunk(1, "b")]


async def test_readers_get_chunks_while_the_step_runs(app: App) -> None:
    go = asyncio.Event()

    @app.task
    async def t() -> str:
        async def slow() -> str:
            out = current().stream("out")
            for text in "abc":
                await out.write(text)
                await go.wait()
                go.clear()
            return "abc"

        return await current().step("s", slow)

    job = await t.enqueue()
    seen = list[Any]()

    async def read() -> None:
        async for entry in app.jobs.follow(job, "out"):
            seen.append(entry)
            go.set()

    reading = asyncio.create_task(read())  # before the job has written anything
    async with work(app):
        await job.result(60)
        await reading
    assert seen == [Chunk(n, text, "s") for n, text in enumerate("abc")]


async def test_a_write_is_a_step(app: App, clock: HandClock) -> None:
    @app.task
    async def t() -> None:
        out = current().stream("out")
        await current().step("say", out.write, "x")
        await current().sleep(60)

    @app.task
    def in_thread() -> None:
        out = current().sync.stream("out")
        current().sync.step("say", out.write, {"x": [1]})

    jobs = [await t.enqueue(), await in_thread.enqueue()]
    await drain(app)
    clock.advance(60)
    await drain(app)
    assert await app.jobs.stream(jobs[0], "out") == ["x"]
    assert await app.jobs.stream(jobs[1], "out") == [{"x": [1]}]
    assert (await app.jobs.get(jobs[0])).state is State.SUCCEEDED


@shows("a step that runs again voids its earlier chunks for all readers, which end with the stored text")
@pytest.mark.parametrize("how", ["retry of the step", "attempt", "attempt of a thread", "limits"])
@pytest.mark.parametrize("second", ["xyz", ""])
async def test_a_step_that_runs_again_voids_its_chunks(app: App, how: str, second: str) -> None:
    tries = list[int]()

    def text() -> str:
        return "abc" if len(tries) < 2 else second

    async def talk() -> str:
        tries.append(1)
        await say(*text())
        if len(tries) < 2:
            raise ValueError
        return second

    def talk_here() -> str:
        tries.append(1)
        say_here(*text())
        if len(tries) < 2:
            raise ValueError
        return second

    @app.task(retry=AGAIN)
    async def t() -> str:
        here = current()
        await here.step("before", say, "<")
        options: dict[str, Any] = {"retry of the step": {"retry": AGAIN}, "limits": {"limits": ["api"]}}.get(how, {})
        said = await here.step.options(**options)("talk", talk)
        await here.step("after", say, ">")
        return said

    @app.task(retry=AGAIN)
    def in_thread() -> str:
        here = current().sync
        here.step("before", say_here, "<")
        said = here.step("talk", talk_here)
        here.step("after", say_here, ">")
        return said

    job: Job[str, Any] = await (in_thread if how == "attempt of a thread" else t).enqueue()
    await drain(app)
    assert await job.result(0) == second
    entries = await entries_of(app, job)
    assert [entry for entry in entries if isinstance(entry, Reset)] == [Reset(4, 1, "talk")]
    assert text_of(entries) == "".join(await app.jobs.stream(job, "out")) == f"<{second}>"


@pytest.mark.parametrize("second", ["xyz", ""])
@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_an_attempt_voids_the_earlier_one(app: App, second: str, kind: str) -> None:
    tries = list[int]()

    async def t() -> str:
        tries.append(1)
        if second or len(tries) < 2:
            await say(*("abc" if len(tries) < 2 else second))
        if len(tries) < 2:
            raise ValueError
        return second

    def in_thread() -> str:
        tries.append(1)
        if second or len(tries) < 2:
            say_here(*("abc" if len(tries) < 2 else second))
        if len(tries) < 2:
            raise ValueError
        return second

    job: Job[str, Any] = await app.task(name="t", retry=AGAIN)(t if kind == "async" else in_thread).enqueue()
    await drain(app)
    assert await job.result(0) == second
    assert text_of(await entries_of(app, job)) == second
    assert await app.jobs.stream(job, "out") == list(second)


async def test_steps_at_the_same_time_write_to_one_stream(app: App) -> None:
    tries = list[int]()

    async def talk(text: str) -> str:
        await say(*text)
        if text == "bbb" and not tries:
            tries.append(1)
            raise ValueError
        return text

    @app.task(retry=AGAIN)
    async def t() -> list[str]:
        here = current()
        return await asyncio.gather(*(here.step(text, talk, text * 3) for text in "abc"), return_exceptions=False)

    job = await t.enqueue()
    await drain(app)
    assert await job.result(0) == ["aaa", "bbb", "ccc"]
    entries = await entries_of(app, job)
    assert sorted(text_of(entries)) == list("aaabbbccc") == sorted(await app.jobs.stream(job, "out"))
    assert {entry.step for entry in entries if isinstance(entry, Reset)} == {"b"}


async def test_a_job_writes_several_streams(app: App) -> None:
    @app.task
    async def t() -> None:
        here = current()
        a, b = here.stream("a"), here.stream("b", keep=60)
        for n in range(3):
            await here.step("a", a.write, n)
            await here.step("b", b.write, -n)

    job = await t.enqueue()
    await drain(app)
    assert await app.jobs.stream(job, "a", returns=int) == [0, 1, 2]
    assert await app.jobs.stream(job, "b") == [0, -1, -2]
    assert await app.jobs.stream(job, "c") == [] == await entries_of(app, job, "c")
    assert sorted(await app.jobs.streams(job)) == ["a", "b"]


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_durable_function_writes_in_its_steps_only(app: App, kind: str) -> None:
    @app.task(retry=AGAIN)
    async def after() -> None:
        await current().step("a", say, "x")
        await current().stream("out").write("y")

    @app.task(retry=AGAIN)
    async def before() -> None:
        await current().stream("out").write("y")
        await current().sleep(60)

    @app.task(retry=AGAIN)
    def after_here() -> None:
        current().sync.step("a", say_here, "x")
        current().sync.stream("out").write("y")

    @app.task(retry=AGAIN)
    def before_here() -> None:
        current().sync.stream("out").write("y")
        current().sync.sleep(60)

    tasks: Any = (after, before) if kind == "async" else (after_here, before_here)
    jobs = [await task.enqueue() for task in tasks]
    await drain(app)
    assert 'write to the stream in a step, such as `await here.step("say", out.write, text)`' in await error_of(
        app, jobs[0]
    )
    assert "has written to the stream 'out' before, outside of a step" in await error_of(app, jobs[1])
    assert [(await app.jobs.get(job)).attempt for job in jobs] == [1, 1]


async def test_a_task_that_its_step_has_left_writes_nothing(app: App) -> None:
    left = list[asyncio.Task[None]]()
    ended = asyncio.Event()

    async def late() -> None:
        await ended.wait()
        await current().stream("out").write("late")

    async def step() -> None:
        await say("x")
        left.append(asyncio.create_task(late()))

    @app.task
    async def t() -> None:
        await current().step("s", step)
        ended.set()
        await asyncio.wait(left)

    job = await t.enqueue()
    await drain(app)
    assert await app.jobs.stream(job, "out") == ["x"]
    assert isinstance(left[0].exception(), BadStep)


async def test_values_and_names_are_checked(app: App) -> None:
    @app.task(retry=ONCE)
    async def t(name: str, value: Any, large: bool = False) -> None:
        await current().stream(name).write("x" * 70_000 if large else object() if value == "object" else value)

    bad = [
        await t.enqueue("", 1),
        await t.enqueue("a#1", 1),
        await t.enqueue("a", "object"),
        await t.enqueue("a", 1, True),
    ]
    await drain(app)
    errors = [await error_of(app, job) for job in bad]
    assert [error.rpartition("treadle.")[2].partition(":")[0].rpartition(".")[2] for error in errors] == [
        "BadStep",
        "BadStep",
        "BadOption",
        "TooLarge",
    ]
    job = await t.enqueue("a", 1)
    for start in (-1, True, 1.5):
        with pytest.raises(BadOption, match="start"):
            await entries_of(app, job, "a", start)  # type: ignore[arg-type]
    with pytest.raises(BadStep):
        await app.jobs.stream(job, "treadle:x")
    with pytest.raises(UnknownJob):
        await app.jobs.stream("unknown", "a")
    with pytest.raises(UnknownJob):
        await entries_of(app, "unknown", "a")


async def test_a_step_that_a_stopped_worker_left_runs_again(app: App) -> None:
    """The step runs again in another worker, and its chunks of before are void."""
    runs, wrote = list[int](), asyncio.Event()

    async def talk() -> str:
        runs.append(1)
        await say(*"abc")
        if len(runs) == 1:
            wrote.set()
            await asyncio.Event().wait()
        return await say("d")

    @app.task
    async def t() -> str:
        return await current().step("talk", talk)

    job = await t.enqueue()
    async with work(app, grace=0):
        await wrote.wait()
    assert "".join(await app.jobs.stream(job, "out")) == "abc"
    await drain(app)
    entries = await entries_of(app, job)
    assert text_of(entries) == "".join(await app.jobs.stream(job, "out")) == "abcd"
    assert [entry for entry in entries if isinstance(entry, Reset)] == [Reset(3, 0, "talk")]


@pytest.mark.parametrize("durable", [True, False])
async def test_a_job_that_times_out_keeps_what_it_wrote(app: App, durable: bool) -> None:
    async def hang() -> None:
        await say(*"abc")
        await asyncio.Event().wait()

    @app.task(timeout=0.05, retry=ONCE)
    async def t() -> None:
        await (current().step("s", hang) if durable else hang())

    job = await t.enqueue()
    async with work(app):
        assert [entry.offset async for entry in app.jobs.follow(job, "out")] == [0, 1, 2]
    assert "".join(await app.jobs.stream(job, "out")) == "abc"
    storage = await app._core.open()
    rows = [row for row in (await storage.find(Query(limit=50))).records if is_page(row.job)]
    assert {row.state for row in rows} == {State.SUCCEEDED}


@pytest.mark.parametrize("bound", ["MAX_CHUNKS", "MAX_STREAM"])
async def test_a_stream_is_bounded(app: App, monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    monkeypatch.setattr(defaults, bound, 50)
    runs = list[int]()

    @app.task(retry=AGAIN)
    async def t(durable: bool) -> None:
        runs.append(1)
        if durable:
            await current().step("s", say, *("ab" * 30))
        else:
            await say(*("ab" * 30))

    for durable in (True, False):
        job = await t.enqueue(durable)
        await drain(app)
        assert "the limit is 50" in await error_of(app, job)
        assert (await app.jobs.get(job)).reason == "result"
    assert len(runs) == 2


async def test_a_fast_writer_waits_for_the_storage(app: App, spy: Spy) -> None:
    """At most 64 KiB wait in memory."""
    stored, text = list[int](), "x" * 10_000

    @app.task
    async def t() -> None:
        out = current().stream("out")
        for n in range(40):
            await out.write(text)
            written = (n + 1) * 10_000
            stored.append(written - 10_000 * await _stored_chunks(spy))

    job = await t.enqueue()
    await drain(app)
    assert max(stored) <= 2 * 65_536 + 10_000
    assert await app.jobs.stream(job, "out") == [text] * 40


async def _stored_chunks(spy: Spy) -> int:
    rows = (await spy.inner.find(Query(limit=200))).records
    return sum(
        len(group.values) for row in rows if is_page(row.job) and (page := page_of(row)) for group in page.groups
    )


async def test_a_cancelled_job_keeps_what_it_wrote(app: App, clock: HandClock) -> None:
    wrote, hold = asyncio.Event(), asyncio.Event()

    @app.task
    async def t() -> None:
        await say("a")
        wrote.set()
        await hold.wait()

    job = await t.enqueue()
    async with work(app):
        await wrote.wait()
        reader = app.jobs.follow(job, "out")
        assert await anext(reader) == Chunk(0, "a")
        await app.jobs.cancel(job)
        assert [entry async for entry in reader] == []
    assert await app.jobs.stream(job, "out") == ["a"]


async def test_the_cleanup_of_a_job_writes_to_its_streams(app: App) -> None:
    @app.task(retry=ONCE)
    async def t() -> None:
        here = current()
        here.on_undo(say, "undone")
        await here.step("a", say, "done ")
        raise ValueError

    job = await t.enqueue()
    await drain(app)
    assert "".join(await app.jobs.stream(job, "out")) == "done undone"


async def test_a_restart_keeps_what_was_written_and_a_rerun_does_not(app: App) -> None:
    @app.task
    async def t(number: int) -> str:
        here = current()
        await here.step("first", say, f"{number}")
        await here.step("second", say, "abc"[len(runs) % 3])
        runs.append(1)
        if number < 3:
            await here.restart(number + 1)
        return "done"

    runs = list[int]()
    job = await t.enqueue(1)
    await drain(app)
    assert "".join(await app.jobs.stream(job, "out")) == "1a2b3c"
    await app.jobs.rerun(job, from_step="second")
    await drain(app)
    assert "".join(await app.jobs.stream(job, "out")) == "1a2b3a"
    resets = [entry for entry in await entries_of(app, job) if isinstance(entry, Reset)]
    assert resets == [Reset(6, 5, "second")]
    fork = await app.jobs.fork(job, from_step="second")
    await drain(app)
    assert await app.jobs.stream(fork, "out") == ["b"]


async def test_items_of_a_batch_write_streams(app: App) -> None:
    @app.batch(size=2)
    async def t(items: list[str]) -> list[str]:
        for here, item in zip(current_batch(), items, strict=True):
            await here.stream("out").write(item)
        return items

    jobs = [await t.enqueue(text) for text in "ab"]
    await drain(app)
    assert [await app.jobs.stream(job, "out") for job in jobs] == [["a"], ["b"]]


async def test_pages_are_pruned_after_their_time(app: App, clock: HandClock) -> None:
    @app.task(keep=1_000)
    async def t() -> None:
        out = current().stream("out", keep=100)
        for text in "abc":
            await current().step("s", out.write, text)

    job = await t.enqueue()
    await drain(app)
    clock.advance(150)
    storage = await app._core.open()
    assert await storage.prune(100) == 4
    assert (await app.jobs.get(job)).state is State.SUCCEEDED
    for read in (app.jobs.stream(job, "out"), entries_of(app, job), entries_of(app, job, start=1)):
        with pytest.raises(Stale, match="no longer kept"):
            await read
    assert (await storage.prune(100)) == 0


async def test_a_stream_is_not_pruned_while_its_job_may_write(app: App, clock: HandClock) -> None:
    @app.task
    async def t() -> None:
        await current().step("a", current().stream("out", keep=100).write, "a")
        await current().sleep(10_000)
        await current().step("b", current().stream("out").write, "b")

    job = await t.enqueue()
    await drain(app)
    clock.advance(9_000)
    assert await (await app._core.open()).prune(100) == 0
    clock.advance(2_000)
    await drain(app)
    assert await app.jobs.stream(job, "out") == ["a", "b"]


async def test_a_deleted_job_has_no_streams(app: App, clock: HandClock) -> None:
    @app.task
    async def t() -> None:
        for text in "abc":
            await current().step("s", current().stream("out").write, text)

    job = await t.enqueue()
    await drain(app)
    await app.jobs.delete(job)
    clock.advance(100)
    assert await (await app._core.open()).prune(100) == 5


async def test_lists_show_no_pages(app: App) -> None:
    @app.task
    async def t(n: int) -> None:
        out = current().stream("out")
        for text in "abc":
            await current().step("s", out.write, text)

    jobs = [(await t.enqueue(n)).id for n in range(5)]
    await drain(app)
    assert [row.id async for row in app.jobs.iterate()] == jobs
    assert [row.id for row in (await app.jobs.list(limit=3)).records] == jobs[:1:-1]
    assert [row.id async for row in app.jobs.iterate(workflow=jobs[0])] == jobs[:1]


def test_threads_read_streams(tmp_path: Any) -> None:
    app = App(f"sqlite:///{tmp_path / 'jobs.db'}")

    @app.task
    async def t() -> None:
        await current().step("a", say, "a", "b")

    job = app.sync.enqueue(t.job())
    app.sync.call(drain(app))
    assert list(app.sync.jobs.follow(job, "out", 1)) == [Chunk(1, "b", "a")]
    for entry in app.sync.jobs.follow(job, "out"):
        assert entry == Chunk(0, "a", "a")
        break
    assert app.sync.jobs.stream(job, "out") == ["a", "b"]
    assert app.sync.jobs.streams(job) == ["out"]
    app.sync.close()
