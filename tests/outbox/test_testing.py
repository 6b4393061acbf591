"""`app.testing()` of an app with an outbox: in memory it needs no database, on another storage it uses the outbox."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy
from sqlalchemy.orm import Session

from tests.outbox.kit import Data, a_database, an_app, mail
from tests.servers import valkey
from treadle import App, Outbox, Unsupported, current
from treadle.testing import drain
from treadle_testkit.shows import shows

AWAY = "mysql://nobody@127.0.0.1:1/shop"


@shows("a test of an app with an outbox needs no database: jobs are stored in memory at the commit of the session")
async def test_a_test_stores_jobs_of_an_outbox_in_memory() -> None:
    app = an_app(Data("mysql", AWAY, lambda: None), "unused", "redis://127.0.0.1:1/0")
    engine = sqlalchemy.create_engine("sqlite://")
    async with app.testing() as t:
        assert app.outbox is None
        with Session(engine) as session:
            await app.enqueue(mail(app, "dropped"), within=session)
            session.rollback()
            job = await app.enqueue(mail(app, "ada"), within=session)
            assert await t.drain() == 0
            session.commit()
        assert await t.drain() == 1
        assert await job.result(0) == "mail to ada"
        with pytest.raises(Unsupported, match="at_once"):
            await app.enqueue(mail(app, "ada"), within=object())
    engine.dispose()
    assert app.outbox is not None


async def test_at_once_for_any_session() -> None:
    app = an_app(Data("mysql", AWAY, lambda: None), "unused", "redis://127.0.0.1:1/0")
    async with app.testing(within="at_once") as t:
        await app.enqueue(mail(app, "ada"), within=object())
        assert await t.drain() == 1


@shows("a drain on another storage first delivers the committed jobs of the outbox")
async def test_on_another_storage(tmp_path: Path, namespace: str) -> None:
    data = a_database("sqlite", tmp_path)
    app = an_app(data, "unused", "redis://127.0.0.1:1/0")
    assert app.outbox is not None
    await app.outbox.create()

    @app.task(name="twice")
    async def twice(to: str) -> None:
        with closing(data.connect()) as db:
            await app.enqueue(mail(app, to), within=db)
            db.commit()

    async with app.testing(storage=f"{valkey.url()}?ns={namespace}") as t:
        with closing(data.connect()) as db:
            await app.enqueue(twice.job("ada"), within=db)
            db.commit()
        assert await t.drain() == 2


async def test_drain_of_an_app(tmp_path: Path, namespace: str) -> None:
    data = a_database("sqlite", tmp_path)
    app = an_app(data, namespace)
    assert app.outbox is not None
    await app.outbox.create()
    async with app:
        with closing(data.connect()) as db:
            await app.enqueue(mail(app, "ada"), within=db)
            db.commit()
        assert await drain(app) == 1


@shows("a task's own transaction stays on the storage, also if the app has an outbox in another database")
async def test_the_transaction_of_a_run(tmp_path: Path) -> None:
    data = a_database("sqlite", tmp_path)
    app = App(f"sqlite:///{tmp_path / 'jobs.db'}", outbox=Outbox(data.url))
    assert app.outbox is not None
    await app.outbox.create()

    @app.task(name="mail")
    async def send(to: str) -> str:
        return to

    @app.task(name="pay")
    async def pay() -> None:
        async with current().transaction() as tx:
            await app.enqueue(send.job("ada"), within=tx)

    async with app:
        job = await pay.enqueue()
        assert await drain(app) == 2
        assert await job.result(0) is None
        assert (await app.outbox.stats()).rows == 0
