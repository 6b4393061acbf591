"""A storage that is emptied under running workers: they log it, and store the declarations of their code again."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.servers import postgres, valkey
from tests.waiting import Signal, until
from treadle import App, Limit, StorageFull, Worker
from treadle.admin import emptied
from treadle.app.core import AppCore
from treadle.core import defaults
from treadle.core.query_model import MetricsRow
from treadle.ports import memory_backend
from treadle.server.auth.tokens import ANYBODY
from treadle.server.doctor import of_contents
from treadle.server.longpoll import LongPoll
from treadle.server.overview import Looks
from treadle.storage.contract import Storage
from treadle.storage.proxy import StorageProxy
from treadle.testing import HandClock

Empty = Callable[[str, App], Awaitable[None]]


async def _flushed(url: str, app: App) -> None:
    storage = app.storage
    await storage._pool.command("FLUSHALL")  # type: ignore[attr-defined]


async def _dropped(url: str, app: App) -> None:
    """Drop the schema while a worker uses it. The server may end this statement to resolve a deadlock of the two."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:

        async def dropped() -> bool:
            with suppress(psycopg.errors.DeadlockDetected):
                await connection.execute("DROP SCHEMA treadle CASCADE")
                return True
            return False

        await until(dropped, "the end of the schema")


async def _deleted(url: str, app: App) -> None:
    """Delete all rows, as a user's shell does: the file stays the same."""
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        tables = db.execute("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT IN ('migration', 'meta')")
        for (table,) in tables.fetchall():
            db.execute(f"DELETE FROM {table}")
        db.execute("COMMIT")


async def _forgotten(url: str, app: App) -> None:
    store: Any = app.storage.ports.store  # type: ignore[attr-defined]
    store._values.clear()


@pytest.mark.parametrize("kind", ["redis", "postgres", "sqlite", "ports"])
async def test_declared_limits_and_schedules_are_stored_again(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(defaults, "DECLARED_EVERY", 0.1)
    caplog.set_level(logging.WARNING, "treadle")
    await _on(kind, tmp_path, lambda app, empty: _empties(app, empty, caplog))


@pytest.mark.parametrize("kind", ["redis", "postgres", "sqlite", "ports"])
async def test_a_worker_that_loses_a_job_checks_its_declarations_at_once(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not wait for its next regular check: a heartbeat that finds a job lost is a sign."""
    monkeypatch.setattr(defaults, "DECLARED_EVERY", 3600.0)
    monkeypatch.setattr(defaults, "DECLARED_LEAST", 0.0)
    await _on(kind, tmp_path, lambda app, empty: _loses_a_job(app, empty, monkeypatch))


async def _loses_a_job(app: App, empty: Empty, patch: pytest.MonkeyPatch) -> None:
    app.limits.declare(Limit("one", slots=1))
    began, stored = asyncio.Event(), Signal().after(patch, AppCore, "prepare_again")

    @app.task(name="long")
    async def long() -> None:
        began.set()
        await asyncio.Event().wait()

    async with app, Worker(app, lease=0.6, grace=0):
        await long.enqueue()
        await asyncio.wait_for(began.wait(), 60)
        await empty(app.url or "", app)
        await stored.until(app.limits.list, "the declared limit")


async def _on(kind: str, folder: Path, act: Callable[[App, Empty], Awaitable[None]]) -> None:
    if kind == "redis":
        with valkey.Valkey() as server:
            await act(App(server.url), _flushed)
    elif kind == "postgres":
        await act(App(postgres.database()), _dropped)
    elif kind == "sqlite":
        await act(App(f"sqlite:///{folder}/jobs.db"), _deleted)
    else:
        await act(App(ports=memory_backend()), _forgotten)


def _declare(app: App) -> asyncio.Event:
    """One limit, and a schedule whose ticks set the event."""
    ticked = asyncio.Event()
    app.limits.declare(Limit("one", slots=1))

    @app.every(0.1)
    @app.task(name="tick")
    async def tick() -> None:
        ticked.set()

    return ticked


async def _empties(app: App, empty: Empty, caplog: pytest.LogCaptureFixture) -> None:
    ticked, url = _declare(app), app.url
    async with app, Worker(app, poll=0.2):
        await asyncio.wait_for(ticked.wait(), 60)
        assert [use.key for use in await app.limits.list()] == ["one"]
        await empty(url or "", app)
        ticked.clear()
        await asyncio.wait_for(ticked.wait(), 60)
        [use] = await app.limits.list()
        assert (use.key, use.rule.slots, use.declared) == ("one", 1, True)
    assert len([each for each in caplog.messages if "stored again" in each]) == 1


@pytest.mark.parametrize("kind", ["redis", "postgres", "sqlite", "ports"])
async def test_an_emptied_storage_is_named_although_nothing_is_declared(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(defaults, "DECLARED_EVERY", 0.05)
    monkeypatch.setattr(defaults, "DECLARED_LEAST", 0.0)
    looked = Signal().after(monkeypatch, AppCore, "prepare_again")
    await _on(kind, tmp_path, lambda app, empty: _is_named(app, empty, looked, caplog))


async def _is_named(app: App, empty: Empty, looked: Signal, caplog: pytest.LogCaptureFixture) -> None:
    def lines() -> list[str]:
        return [each for each in caplog.messages if "the storage was emptied" in each]

    async def overview() -> list[str]:
        looks = Looks(app._core, LongPoll(lambda: app._core.storage))
        return [each.text for each in (await looks.overview(ANYBODY)).notices if "empty" in each.text]

    async with app, Worker(app, poll=0.2, role="auto"):
        await app.stub("later").options(delay=3600).enqueue()
        await looked.again("two looks", 2)
        assert (lines(), await overview()) == ([], [])
        await empty(app.url or "", app)
        await looked.until(lines, "the error in the log")
        [notice] = await overview()
        assert "The storage was found empty at" in notice
        await looked.again("more looks", 3)
    assert len(lines()) == 1
    if app.url and not app.url.startswith("sqlite"):
        other = App(app.url)
        async with other:
            [check] = [each async for each in of_contents(other._core, False) if each.name == "emptied"]
            assert check.verdict == "warn"


@pytest.mark.parametrize("kind", ["redis", "postgres", "sqlite"])
async def test_a_worker_that_starts_after_another_one_logs_it_too(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The mark that it finds is not the one that it knew."""

    async def act(app: App, empty: Empty) -> None:
        other = App(app.url or "")
        async with app, other:
            await app._core.prepare()
            await empty(app.url or "", app)
            await other._core.prepare()
            assert not caplog.messages
            async with Worker(app):
                assert ["the storage was emptied" in each for each in caplog.messages] == [True]

    await _on(kind, tmp_path, act)


async def test_a_lost_mark_is_stored_again_without_a_word_while_the_jobs_are_there(
    app: App, clock: HandClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Redis may drop metrics: they expire, so volatile-lru may choose them."""
    core = app._core
    await app.stub("early").options(delay=1e6).enqueue()
    clock.advance(3600)
    await core.prepare()
    [mark] = await app.storage.read_metrics(emptied.AT, emptied.AT + 1)
    await app.storage.store_metrics([], [mark])
    await core.prepare_again()
    assert (caplog.messages, await core.emptied.look()) == ([], None)
    assert len(await app.storage.read_metrics(emptied.AT, emptied.AT + 1)) == 1


async def test_an_overview_that_notices_it_first_leaves_the_error_to_the_worker(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    """A server has both in one process."""
    core = app._core
    await core.prepare()
    [mark] = await app.storage.read_metrics(emptied.AT, emptied.AT + 1)
    await app.storage.store_metrics([], [mark])
    assert "was found empty at" in (await core.emptied.look() or "")
    assert caplog.messages == []
    await core.prepare_again()
    await core.prepare_again()
    [line] = caplog.messages
    assert "the storage was emptied" in line
    other = App(storage=app.storage, clock=core.now)
    assert "was found empty at" in (await other._core.emptied.look() or "")


async def test_the_mark_is_not_a_row_of_any_list(app: App) -> None:
    async with Worker(app):
        assert (await app.jobs.list()).records == ()
        assert (await app.queues.stats()).counts == ()
        assert await app.limits.list() == []
        assert (await app.metrics.read()).since is None


async def test_a_full_storage_keeps_no_worker_from_starting(storage: Storage) -> None:
    class Full(StorageProxy):
        async def store_metrics(self, rows: Sequence[MetricsRow], remove: Sequence[MetricsRow] = ()) -> None:
            raise StorageFull("no room")

    async with App(storage=Full(storage)) as app:
        await app._core.prepare()
        assert not await app._core.prepare_again()


@pytest.mark.slow
async def test_a_replaced_file_gets_declarations_from_the_next_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker of the old file reports the replacement, and stores nothing in either file."""
    monkeypatch.setattr(defaults, "DECLARED_EVERY", 0.1)
    monkeypatch.setattr("treadle.storage.sqlite.connection.LOOK", -1.0)
    path, refused = tmp_path / "jobs.db", asyncio.Event()
    app = App(f"sqlite:///{path}")
    ticked = _declare(app)
    app.on("worker.error")(lambda event: refused.set())
    async with app, Worker(app, poll=0.2, grace=0.1):
        await asyncio.wait_for(ticked.wait(), 60)
        for name in ("jobs.db", "jobs.db-wal", "jobs.db-shm"):
            (tmp_path / name).unlink()
        await asyncio.wait_for(refused.wait(), 60)
        again = App(f"sqlite:///{path}")
        ticked = _declare(again)
        async with again, Worker(again, poll=0.2):
            await asyncio.wait_for(ticked.wait(), 60)
            assert [use.key for use in await again.limits.list()] == ["one"]


async def test_a_rule_that_an_operator_removes_stays_removed(app: App) -> None:
    """Only an emptied storage gets the declared rules again before the next worker starts."""
    app.limits.declare(Limit("one", slots=1))
    await app._core.prepare()
    assert not await app._core.prepare_again()
    await app.limits.set(Limit("one"))
    assert not await app._core.prepare_again()
    assert await app.limits.list() == []
