"""Marks: one job of all wins a mark, and frees it if the job fails."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

from tests.durable.kit import Ledger, error_of
from tests.kit import Told, work
from treadle import (
    App,
    BadOption,
    Defer,
    JobFailed,
    Retry,
    StorageUnavailable,
    Worker,
    current,
)
from treadle.storage.contract import Storage
from treadle.storage.proxy import StorageProxy
from treadle.testing import HandClock, drain
from treadle_testkit.shows import shows

T = TypeVar("T")
AT_ONCE = Retry(base=0.001, max=0.001)


class Silent(StorageProxy):
    """Once `verb` is set, the next call of that verb gets no answer until `fails` is set; then it fails. `applies`:
    it is carried out all the same."""

    verb, applies = "", True

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.fails = asyncio.Event()

    async def around(self, verb: str, call: Callable[[Storage], Awaitable[T]]) -> T:
        if verb != self.verb:
            return await super().around(verb, call)
        self.verb = ""
        if self.applies:
            await super().around(verb, call)
        await self.fails.wait()
        raise StorageUnavailable(f"{verb}: no answer")


@shows("`current().once(key)` is true for one of twenty jobs")
async def test_one_of_many_jobs_wins_once(app: App, told: Told) -> None:
    wins: list[str] = []

    @app.task
    async def t() -> None:
        async with current().once("monday") as first:
            if first:
                wins.append(current().id)

    @app.task
    def in_a_thread() -> None:
        with current().once("monday") as first:
            if first:
                wins.append(current().id)

    await app.enqueue([t.job() for _ in range(10)] + [in_a_thread.job() for _ in range(10)])
    async with work(app, concurrency=4), work(app, concurrency=4):
        await told.until("succeeded", 20)
    assert len(wins) == 1


@shows("a key of `once` is free again after `keep`")
async def test_once_is_kept_for_its_time(app: App, clock: HandClock) -> None:
    @app.task
    async def t() -> bool:
        async with current().once("a", keep=60) as first:
            return first

    assert [await _run(app, t) for _ in range(2)] == [True, False]
    clock.advance(59)
    assert await _run(app, t) is False
    clock.advance(2)
    assert await _run(app, t) is True


async def test_an_expired_mark_blocks_no_job(app: App, clock: HandClock) -> None:
    """Even if nothing has ended it yet: the only slot is taken, so the worker claims nothing meanwhile."""

    @app.task
    async def t(pauses: list[int]) -> list[bool]:
        won = []
        for pause in pauses:
            clock.advance(pause)
            async with current().once("a", keep=60) as first:
                won.append(first)
        return won

    async def wins(*pauses: int) -> list[bool]:
        job = await t.enqueue(list(pauses))
        async with Worker(app, concurrency=1):
            return await job.result(30)

    assert await wins(0) == [True]
    assert await wins(30, 29) == [False, False]
    assert await wins(0, 2) == [False, True]
    assert await wins(0, 58) == [False, False]


async def _run(app: App, task: Any) -> Any:
    job = await task.enqueue()
    await drain(app)
    return await job.result(0)


@shows("an attempt that fails frees its keys of `once`")
async def test_an_attempt_that_fails_frees_its_once_keys(app: App, ledger: Ledger) -> None:
    seen: list[tuple[str, bool]] = []

    @app.task(retry=Retry(attempts=2, base=60))
    async def t(name: str) -> None:
        async with current().once("a") as first:
            seen.append((name, first))
        ledger.plain(name)

    ledger.fail["one"] = 1
    await t.enqueue("one")
    await drain(app)
    await t.enqueue("two")
    await drain(app)
    assert seen == [("one", True), ("two", True)]


async def test_a_block_that_raises_frees_its_once_key(app: App) -> None:
    seen: list[bool] = []

    @app.task
    async def t(fails: bool) -> None:
        try:
            async with current().once("a") as first:
                seen.append(first)
                if fails:
                    raise ValueError
        except ValueError:
            pass

    for fails in (True, False, False):
        await t.enqueue(fails)
    await drain(app)
    assert seen == [True, True, False]


@shows("`once` is true again in the later runs of the job that won it")
async def test_once_is_the_same_jobs_in_its_later_runs(app: App, clock: HandClock) -> None:
    seen: list[bool] = []

    @app.task
    async def t() -> None:
        async with current().once("a") as first:
            seen.append(first)
        await current().sleep(60)

    @app.task
    async def deferred() -> None:
        async with current().once("b") as first:
            seen.append(first)
            if len(seen) < 4:
                raise Defer(10)

    await t.enqueue()
    await drain(app)
    clock.advance(60)
    await drain(app)
    assert seen == [True, True]
    await deferred.enqueue()
    await drain(app)
    clock.advance(10)
    await drain(app)
    assert seen == [True] * 4


@pytest.mark.parametrize("key", ["", "a\n", "x" * 256])
async def test_once_without_a_valid_key_is_refused(app: App, key: str) -> None:
    @app.task(retry=Retry(attempts=1))
    async def t() -> None:
        async with current().once(key):
            pass

    job = await t.enqueue()
    await drain(app)
    with pytest.raises(JobFailed):
        await job.result(0)
    assert BadOption.__name__ in await error_of(app, job)


async def test_rows_without_a_task_are_no_dead_letters(app: App, clock: HandClock) -> None:
    @app.task
    async def t() -> None:
        async with current().once("a", keep=60):
            pass
        with contextlib.suppress(TimeoutError):
            await current().wait_for("never", timeout=60)

    job = await t.enqueue()
    await drain(app)
    clock.advance(61)
    await drain(app)
    await job.result(0)
    assert await app.jobs.retry(state="failed") == 0
    assert (await app.dead.list()).records == ()


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_timeout_before_the_block_frees_the_once_key(storage: Storage, clock: HandClock, kind: str) -> None:
    """The storage has stored the lock, and the run did not get the answer."""
    silent, loop = Silent(storage), asyncio.get_running_loop()
    async with App(storage=silent, clock=clock) as app:
        told = Told(app)

        @app.task(name="async", timeout=0.05, retry=Retry(attempts=1))
        async def cut() -> None:
            silent.verb = "enqueue"
            try:
                async with current().once("a"):
                    pass
            finally:
                silent.fails.set()

        @app.task(name="thread", timeout=0.05, retry=Retry(attempts=1))
        def cut_in_a_thread() -> None:
            silent.verb = "enqueue"
            try:
                with current().once("a"):
                    pass
            finally:
                loop.call_soon_threadsafe(silent.fails.set)

        await app.tasks[kind].enqueue()
        async with work(app, recovery=AT_ONCE):
            await told.until("failed")
        silent.verb = ""  # on a slow machine the timeout may come before the call
        assert await _is_first(app)


async def test_a_block_whose_own_timeout_is_over_before_it_begins_frees_the_once_key(
    storage: Storage, clock: HandClock
) -> None:
    silent = Silent(storage)
    async with App(storage=silent, clock=clock) as app:
        told = Told(app)

        @app.task
        async def t() -> None:
            silent.verb = "enqueue"
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.05), current().once("a"):
                    pass
            silent.fails.set()

        await t.enqueue()
        async with work(app, recovery=AT_ONCE):
            await told.until("succeeded")
        assert await _is_first(app)


async def test_a_timeout_while_a_once_key_is_given_back_does_not_keep_it(storage: Storage, clock: HandClock) -> None:
    silent = Silent(storage)
    silent.applies = False
    async with App(storage=silent, clock=clock) as app:
        told = Told(app)

        @app.task(timeout=0.05, retry=Retry(attempts=1))
        async def t() -> None:
            try:
                async with current().once("a"):
                    silent.verb = "settle"
                    raise ValueError
            finally:
                silent.fails.set()

        await t.enqueue()
        async with work(app, recovery=AT_ONCE):
            await told.until("failed")
        assert await _is_first(app)


async def _is_first(app: App) -> Any:
    """Whether another job gets the key."""

    @app.task(name="another")
    async def another() -> bool:
        async with current().once("a") as first:
            return first

    return await _run(app, another)
