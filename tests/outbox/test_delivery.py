"""Jobs of a user's transaction are rows of it, and reach the storage after its commit, whole and once."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.outbox.kit import Data, a_database, an_app, mail, never, relayed, stored
from treadle import App, BadOption, Middleware, Worker, chain, flow
from treadle_testkit.shows import shows


@shows("with an outbox, jobs on Redis are committed or rolled back with the data in PostgreSQL, MySQL or SQLite")
async def test_jobs_are_delivered_after_a_commit_and_not_after_a_roll_back(app: App, data: Data) -> None:
    data.run("CREATE TABLE orders (what VARCHAR(20))")
    with closing(data.connect()) as db:
        cursor = db.cursor()
        cursor.execute("INSERT INTO orders VALUES ('a boat')")
        job = await app.enqueue(mail(app, "ada"), within=db)
        assert await relayed(app) == 0
        db.rollback()
        assert (await relayed(app), data.run("SELECT count(*) FROM orders")) == (0, [(0,)])
        with pytest.raises(LookupError):
            await job.result(0)

        cursor.execute("INSERT INTO orders VALUES ('a book')")
        jobs = await app.enqueue([mail(app, "ada"), mail(app, "eve")], within=db)
        db.commit()
    assert await relayed(app) == 2
    assert (await stored(app), data.run("SELECT count(*) FROM orders")) == (['["ada"]', '["eve"]'], [(1,)])
    assert data.run("SELECT count(*) FROM treadle_outbox") == [(0,)]
    async with Worker(app):
        assert [await job.result(30) for job in jobs] == ["mail to ada", "mail to eve"]


async def test_a_worker_relays(app: App, data: Data) -> None:
    async with Worker(app):
        with closing(data.connect()) as db:
            job = await app.enqueue(mail(app, "ada"), within=db)
            db.commit()
        assert await job.result(30) == "mail to ada"
        assert app.outbox is not None
        assert (await app.outbox.stats()).relay is not None
    assert (await app.outbox.stats()).relay is None, "a worker that stops ends its lease"


async def test_a_worker_without_relay_leaves_them(app: App, data: Data) -> None:
    with closing(data.connect()) as db:
        await app.enqueue(mail(app, "ada"), within=db)
        db.commit()
    async with Worker(app, relay=False):
        assert await (await app.enqueue(mail(app, "direct"))).result(30) == "mail to direct"
    assert data.run("SELECT count(*) FROM treadle_outbox") == [(1,)]


async def test_flows_and_chains_are_delivered_whole(app: App, data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of one call go together, also if a page of the relay ends between them."""
    monkeypatch.setattr("treadle.outbox.relay.PAGE", 2)
    task = app.find_task("mail")
    with closing(data.connect()) as db:
        await app.enqueue(mail(app, "first"), within=db)
        root = await flow(mail(app, "a"), mail(app, "b"), mail(app, "c")).enqueue(within=db)
        last = await chain(task.job("d"), task.options(pass_result=True).job()).enqueue(within=db)
        db.commit()
    relay = app._core.relay
    assert relay is not None
    await relay._pass(never)  # the first job, and the first row of the flow with the others of its call
    assert len(await stored(app)) == 5
    assert await relayed(app) == 3  # the chain has a root too
    async with Worker(app):
        assert await root.workflow.result(30) == "mail to c"
        assert await last.result(30) == "mail to mail to d"


async def test_options_headers_and_middleware(app: App, data: Data) -> None:
    @app.middleware
    class Tenant(Middleware):
        async def enqueue(self, specs: Any, proceed: Any) -> Any:
            return await proceed([spec.with_headers({"tenant": "42"}) for spec in specs])

    text = "å" * 300_000  # not ASCII, and larger than a TEXT of MySQL
    spec = mail(app, text, queue="bulk", priority=7, labels=["new"], headers={"mine": "1"}, lane="x")
    with closing(data.connect()) as db:
        job = await app.enqueue(spec, within=db)
        db.commit()
    await relayed(app)
    row = await app.jobs.get(job)
    assert (row.job.queue, row.job.priority, row.job.labels, row.job.lane) == ("bulk", 7, ("new",), "x")
    assert dict(row.job.headers) == {"mine": "1", "tenant": "42"}
    async with Worker(app, queues=["bulk"]):
        assert await job.result(30) == f"mail to {text}"


async def test_a_batch_task(app: App, data: Data) -> None:
    @app.batch(size=10)
    async def count(items: list[int]) -> list[int]:
        return [len(items)] * len(items)

    with closing(data.connect()) as db:
        jobs = await app.enqueue([count.job(n) for n in range(10)], within=db)
        db.commit()
    await relayed(app)
    async with Worker(app):
        assert [await job.result(30) for job in jobs] == [10] * 10


async def test_inline_jobs_are_refused(app: App, data: Data) -> None:
    with closing(data.connect()) as db, pytest.raises(BadOption, match="inline"):
        await app.enqueue(mail(app, "ada", inline=True), within=db)


async def test_a_plain_thread_writes_to_the_outbox(app: App, data: Data) -> None:
    """Nothing is opened, and no thread of ours takes part."""
    import asyncio

    def view() -> None:
        with closing(data.connect()) as db:
            app.sync.enqueue(mail(app, "ada"), within=db)
            db.commit()

    await asyncio.to_thread(view)
    assert await relayed(app) == 1


@shows("on PostgreSQL a commit notifies the relay of an outbox, which need not wait for its next poll")
async def test_a_commit_notifies_the_relay(tmp_path: Path, namespace: str) -> None:
    data = a_database("postgresql", tmp_path)
    app = an_app(data, namespace, poll=3_600)
    assert app.outbox is not None
    await app.outbox.create()
    async with app, Worker(app):
        for to in ("ada", "eve"):
            with closing(data.connect()) as db:
                job = await app.enqueue(mail(app, to), within=db)
                db.commit()
            assert await job.result(60) == f"mail to {to}"


async def test_a_relay_that_cannot_listen_polls(
    tmp_path: Path, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example because a pooler lends it another session for each transaction."""

    async def refused(*_: Any, **__: Any) -> Any:
        raise psycopg.OperationalError("no session")

    monkeypatch.setattr(psycopg.AsyncConnection, "connect", refused)
    data = a_database("postgresql", tmp_path)
    app = an_app(data, namespace, poll=0.05)
    assert app.outbox is not None
    await app.outbox.create()
    async with app, Worker(app):
        with closing(data.connect()) as db:
            job = await app.enqueue(mail(app, "ada"), within=db)
            db.commit()
        assert await job.result(60) == "mail to ada"
