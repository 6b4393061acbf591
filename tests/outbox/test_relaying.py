"""The relay as a neighbour: its lease, the sessions of a pooler, and storages that deny some jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.outbox.kit import Data, a_database, an_app, mail, relayed, stored
from tests.servers import pgbouncer, postgres
from tests.waiting import Signal
from treadle import App, BadOption, Outbox, StorageDenied, StorageUnavailable
from treadle.core.model import NewJob, Record
from treadle.outbox import drivers
from treadle.outbox.address import place_of
from treadle.outbox.notices import Notices
from treadle.outbox.relay import Relay
from treadle.server.doctor import outbox as doctor
from treadle_testkit.shows import shows


async def written(app: App, data: Data, *names: str) -> None:
    """Enqueue each in a call of its own, and commit."""
    with closing(data.connect()) as db:
        for name in names:
            await app.enqueue(mail(app, name), within=db)
        db.commit()


class Denies:
    """A storage whose token may not enqueue some jobs."""

    def __init__(self, storage: Any, denied: str) -> None:
        self._storage, self._denied, self.calls = storage, denied, 0

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Record]:
        self.calls += 1
        if any(self._denied in job.payload for job in jobs):
            raise StorageDenied("this token may not enqueue to that queue")
        return await self._storage.enqueue(jobs)  # type: ignore[no-any-return]

    async def get(self, ids: Sequence[str]) -> list[Record | None]:
        return await self._storage.get(ids)  # type: ignore[no-any-return]


class Cannot(Denies):
    def __init__(self, storage: Any) -> None:
        super().__init__(storage, "")

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Record]:
        raise BadOption("queue", "refused: \u65e5\u672c")


def relay_to(app: App, storage: Any, **options: Any) -> Relay:
    async def opened() -> Any:
        return storage

    assert app.outbox is not None
    return app.outbox._relay(opened, **options)


@shows("a job that the storage denies, for example for its queue, blocks no other job of the outbox")
async def test_denied_jobs_block_no_others(app: App, data: Data) -> None:
    await written(app, data, "a", "secret 1", "b", "secret 2", "c")
    relay = relay_to(app, Denies(await app.open(), "secret"))
    assert await relay.everything() == 3
    assert await stored(app) == ['["a"]', '["b"]', '["c"]']
    assert app.outbox is not None
    refused = await app.outbox.list(failing=True)
    assert [row.tries for row in refused] == [1, 1]
    assert "this token may not enqueue" in (refused[0].error or "")
    await app.close()


async def test_all_jobs_are_denied(app: App, data: Data) -> None:
    """Then the storage is the cause: a few rows show it, the others wait, and no row is given up."""
    await written(app, data, *map(str, range(40)))
    storage = Denies(await app.open(), "")
    relay = relay_to(app, storage)
    for _ in range(20):
        with pytest.raises(StorageDenied):
            await relay.everything()
        data.run("UPDATE treadle_outbox SET due = 0")
    assert app.outbox is not None
    stats = await app.outbox.stats()
    assert (stats.rows, stats.given_up) == (40, 0)
    assert storage.calls < 200
    assert await relay_to(app, await app.open()).everything() == 40
    await app.close()
    await app.close()


@shows("a relay keeps its lease while it waits for the next poll, however long that is")
async def test_a_poll_that_is_longer_than_the_lease(app: App, data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    assert app.outbox is not None
    app.outbox._poll = 3_600.0
    waited, waits = list[float](), Signal()

    async def wait(self: Notices, most: float) -> bool:
        waited.append(most)
        waits.send()
        await asyncio.sleep(0)
        return False

    monkeypatch.setattr(Notices, "wait", wait)
    running = asyncio.create_task(relay_to(app, None).run())
    await waits.until(lambda: waits.sent > 3, "the waits between two polls")
    running.cancel()
    await asyncio.wait([running])
    assert max(waited) <= 1.25


@pytest.mark.parametrize("lost", ["lead", "storage"])
async def test_a_relay_that_fails_as_it_takes_the_lease_ends_it(
    app: App, data: Data, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """The answer to its claim of the lease is lost, or to the statement after it."""
    await written(app, data, "ada")
    relay = relay_to(app, await app.open(), place="here")
    make, run, sent = getattr(relay._statements, lost), relay._database.run, list[Any]()

    def made(*given: Any) -> Any:
        sent.append(make(*given))
        return sent[-1]

    async def deaf(statement: Any) -> Any:
        answer = await run(statement)
        if sent and statement is sent[-1]:
            raise StorageUnavailable("no answer")
        return answer

    monkeypatch.setattr(relay._statements, lost, made)
    monkeypatch.setattr(relay._database, "run", deaf)
    with pytest.raises(StorageUnavailable):
        await relay._leads()
    monkeypatch.undo()
    await relay._leave()
    assert await relay_to(app, None)._leads()
    await app.close()


async def test_a_clock_that_is_set_back(app: App, data: Data) -> None:
    """The lease of a dead relay seems to end in an hour."""
    await written(app, data, "ada")
    data.run("UPDATE treadle_relay SET holder = 'dead', until = (SELECT max(made) FROM treadle_outbox) + 3600")
    relay = relay_to(app, None)
    assert await relay._leads()
    await relay._leave()


@shows("a relay sets and prepares nothing in the sessions of a pooler, which lends them to other programs")
async def test_a_relay_leaves_nothing_in_a_pooled_session(
    tmp_path: Path, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = a_database("postgresql", tmp_path)
    app = an_app(data, namespace)
    assert app.outbox is not None
    monkeypatch.setattr(drivers, "is_lent", lambda *_: True)
    await app.outbox.create()
    async with app:
        for n in range(8):
            await written(app, data, str(n))
            assert await relayed(app) == 1
        raw: Any = app.outbox._database._connection
        changed = "SELECT name FROM pg_settings WHERE source = 'session' AND name ~ 'statement_timeout|_commit$'"
        assert raw._raw.execute(changed).fetchall() == []
        assert raw._raw.execute("SELECT name FROM pg_prepared_statements").fetchall() == []


@pytest.mark.skipif(pgbouncer.binary() is None, reason="there is no pgbouncer; install it, or set TEST_PGBOUNCER_BIN")
async def test_behind_pgbouncer(tmp_path: Path, namespace: str) -> None:
    data = a_database("postgresql", tmp_path)
    direct = postgres.shared().port
    with pgbouncer.PgBouncer(direct) as server:
        app = an_app(data._replace(url=data.url.replace(f":{direct}/", f":{server.port}/")), namespace)
        assert app.outbox is not None
        await app.outbox.create()
        async with app:
            await written(app, data, "ada")
            assert await relayed(app) == 1
            made: Any = app.outbox._database._connection
            assert made._lent


async def test_errors_in_a_database_of_another_encoding(
    tmp_path: Path, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = a_database("postgresql", tmp_path)
    name = f"{data.name}_latin1"
    with psycopg.connect(data.url, autocommit=True) as db:
        db.execute(f"CREATE DATABASE {name} ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
    url = data.url.replace(f"/{data.name}", f"/{name}")
    latin = Data("postgresql", url, lambda: psycopg.connect(url))
    app = an_app(latin, namespace)
    assert isinstance(app.outbox, Outbox)
    await app.outbox.create()
    async with app:
        await written(app, latin, "ada", "\u65e5\u672c")
        relay = relay_to(app, Cannot(await app.open()))
        assert await relay.everything() == 0
        assert "\\u65e5" in ((await app.outbox.list())[0].error or "")
        await app.close()
    with psycopg.connect(data.url, autocommit=True) as db:
        db.execute(f"DROP DATABASE {name} WITH (FORCE)")


@shows("a relay and `treadle doctor` warn of two apps with different storages on one outbox")
async def test_two_storages(app: App, data: Data, namespace: str, caplog: pytest.LogCaptureFixture) -> None:
    other = an_app(data, f"{namespace}-other")
    async with other:
        for each in (app, other):
            await written(each, data, "ada")
            leading = each._core.relay
            assert leading is not None
            assert await leading._leads()
            await leading._leave()
        assert caplog.text.count("give each an outbox of its own") == 1
        assert f"?ns={namespace}-other" in caplog.text
        assert app.outbox is not None
        verdicts = [
            [check.verdict async for check in doctor.checks(app.outbox, each._core.outbox_tasks.place)]  # type: ignore[union-attr]
            for each in (app, other)
        ]
        assert [found.count("warn") for found in verdicts] == [2, 1], "and in both cases no process relays"


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("redis://u:hunter2@h:6379/1?ns=a&pool=4&password=hunter2", "redis://h:6379/1?ns=a"),
        ("postgresql://u:hunter2@h/db?schema=x", "postgresql://h/db?schema=x"),
        ("http://h:80/base?token=hunter2", "http://h:80/base"),
        ("sqlite:////data/jobs.db?shared=true", "sqlite:////data/jobs.db"),
        ("redis://[::1", "redis://..."),
    ],
)
def test_the_name_of_a_storage(url: str, place: str) -> None:
    assert place_of(url) == place


async def test_a_delete_counts_the_rows_that_were_left(app: App, data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relay delivers one of two between the look and the delete."""
    await written(app, data, "ada", "eve")
    outbox = app.outbox
    assert outbox is not None
    first, second = await outbox.list()
    run = outbox._run

    async def delivered_meanwhile(sent: Any) -> Any:
        if sent[0].startswith("DELETE"):
            data.run("DELETE FROM treadle_outbox WHERE id = %s", [first.id])
        return await run(sent)

    monkeypatch.setattr(outbox, "_run", delivered_meanwhile)
    assert await outbox.delete(first.id, second.id) == 1
    assert await outbox.retry(first.id, second.id) == 0


async def test_a_page_of_a_table_that_was_never_analyzed_is_read_in_its_order(tmp_path: Path, namespace: str) -> None:
    """PostgreSQL estimates that few rows are due, and would sort all of them for each page."""
    data = a_database("postgresql", tmp_path)
    app = an_app(data, namespace)
    async with app:
        assert app.outbox is not None
        await app.outbox.create()
        with closing(data.connect()) as db:
            await app.enqueue([mail(app, f"{number}") for number in range(3_000)], within=db)
            db.commit()
        database, statements = app.outbox._database, app.outbox._statements
        for text, values in (statements.page(10), statements.further(5, 10)):
            plan = " ".join(line for (line,) in await database.run((f"EXPLAIN {text}", values)))
            assert "Index Scan" in plan, plan
            assert "Sort" not in plan, plan
