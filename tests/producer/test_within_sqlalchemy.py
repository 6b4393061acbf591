"""`within=` a session of SQLAlchemy: savepoints, two-phase commits, sessions that cannot be used, a web framework."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import Depends, FastAPI
from fastapi.testclient import TestClient
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from tests.drivers import engine_url
from tests.storage.postgres import support
from treadle import App, BadSession
from treadle_testkit.shows import shows

SYNC = ["sqlite", "postgresql+psycopg", "postgresql+psycopg2"]
ASYNC = ["sqlite+aiosqlite", "postgresql+psycopg", "postgresql+asyncpg"]


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    what: Mapped[str]


@pytest.fixture
def dialect(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def urls(dialect: str, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """The URL of the engine, and that of Treadle. Both tables of the user are in the same schema."""
    if dialect.startswith("sqlite"):
        path = tmp_path / "shop.db"
        yield engine_url(dialect, str(path)), f"sqlite:///{path}?shared=true&synchronous=normal"
    else:
        url = support.postgres.database()
        yield engine_url(dialect, url), url


@pytest.fixture
async def app(urls: tuple[str, str]) -> AsyncIterator[App]:
    app = App(urls[1])

    @app.task(name="mail")
    async def mail(order: int) -> None: ...

    async with app:
        yield app


@pytest.fixture
def engine(app: App, urls: tuple[str, str]) -> Iterator[Engine]:
    """After `app`, which has made the file or the schema."""
    engine = create_engine(urls[0])
    Base.metadata.create_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture
async def async_engine(app: App, urls: tuple[str, str]) -> AsyncIterator[AsyncEngine]:
    engine = create_async_engine(urls[0])
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    yield engine
    await engine.dispose()


async def stored(app: App) -> list[str]:
    return sorted(row.job.payload for row in (await app.jobs.list()).records)


def mail(app: App, order: int) -> Any:
    return app.tasks["mail"].job(order)


@shows("a job that was enqueued in `session.begin_nested()` vanishes with its rollback")
@pytest.mark.parametrize("dialect", SYNC, indirect=True)
async def test_a_rollback_of_begin_nested_removes_its_job(app: App, engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        session.add(Order(id=1, what="a boat"))
        await app.enqueue(mail(app, 1), within=session)
        for order, fails in ((2, True), (3, False)):
            nested = session.begin_nested()
            session.add(Order(id=order, what="a book"))
            await app.enqueue(mail(app, order), within=session)
            nested.rollback() if fails else nested.commit()
        with pytest.raises(IntegrityError), session.begin_nested():  # noqa: PT012 - the rollback is of the block
            await app.enqueue(mail(app, 4), within=session)
            session.add(Order(id=1, what="a second boat"))
            session.flush()
    assert await stored(app) == ["[1]", "[3]"]
    with Session(engine) as session:
        assert sorted(session.scalars(text("SELECT id FROM orders"))) == [1, 3]


@pytest.mark.parametrize("dialect", ASYNC, indirect=True)
async def test_begin_nested_in_an_async_session(app: App, async_engine: AsyncEngine) -> None:
    async with AsyncSession(async_engine) as session, session.begin():
        await app.enqueue(mail(app, 1), within=session)
        nested = await session.begin_nested()
        await app.enqueue(mail(app, 2), within=session)
        await nested.rollback()
        async with session.begin_nested():
            await app.enqueue(mail(app, 3), within=session)
    assert await stored(app) == ["[1]", "[3]"]


@pytest.mark.parametrize("dialect", ["sqlite", "postgresql+psycopg2"], indirect=True)
async def test_a_core_transaction(app: App, engine: Engine) -> None:
    """Also one whose first statement is the enqueue."""
    with engine.begin() as connection:
        await app.enqueue(mail(app, 1), within=connection)
    with engine.connect() as connection:
        await app.enqueue(mail(app, 2), within=connection)
        connection.commit()
        await app.enqueue(mail(app, 3), within=connection)
    assert await stored(app) == ["[1]", "[2]"]


@pytest.mark.parametrize("dialect", ["postgresql+psycopg", "postgresql+psycopg2"], indirect=True)
async def test_a_two_phase_session(app: App, engine: Engine) -> None:
    with Session(engine, twophase=True) as session:
        session.add(Order(id=1, what="a boat"))
        await app.enqueue(mail(app, 1), within=session)
        session.prepare()
        assert await stored(app) == []
        session.commit()
    assert await stored(app) == ["[1]"]


@pytest.mark.parametrize("dialect", SYNC, indirect=True)
async def test_sessions_that_cannot_be_used(app: App, engine: Engine) -> None:
    async def refused(given: Any, words: str) -> None:
        with pytest.raises(BadSession, match=words):
            await app.enqueue(mail(app, 1), within=given)

    with Session(engine) as failed:
        failed.add_all([Order(id=7, what="a"), Order(id=7, what="b")])
        with pytest.raises(IntegrityError):
            failed.flush()
        await refused(failed, "rolled back")
    await refused(Session(), "bind")
    with engine.connect() as closed:
        pass
    await refused(closed, "closed")
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as commits:
        await refused(commits, "autocommit")
    await refused(engine, "Engine is not supported")
    assert await stored(app) == []


@pytest.mark.parametrize("dialect", ["sqlite"], indirect=True)
async def test_a_session_on_sqlite_that_reads_first(app: App, engine: Engine) -> None:
    """The error names where SQLAlchemy begins."""
    with engine.connect() as connection:
        connection.exec_driver_sql("BEGIN")
        connection.execute(text("SELECT count(*) FROM orders")).all()
        await app.enqueue(mail(app, 1))
        with pytest.raises(BadSession, match='BEGIN IMMEDIATE, in a listener of the "begin" event'):
            await app.enqueue(mail(app, 2), within=connection)


@shows("a job is stored with a session that a FastAPI dependency commits after the endpoint")
@pytest.mark.parametrize("dialect", ["postgresql+asyncpg", "sqlite+aiosqlite"], indirect=True)
async def test_a_dependency_that_commits_after_the_endpoint(app: App, urls: tuple[str, str], dialect: str) -> None:
    """The app of the web process is not open. A failing endpoint stores no order and no job."""
    web, engine, sent = FastAPI(), create_async_engine(urls[0]), App(urls[1])
    sessions = async_sessionmaker(engine)

    @sent.task(name="mail")
    async def send(order: int) -> None: ...

    async def a_session() -> AsyncIterator[AsyncSession]:
        async with sessions() as session, session.begin():
            yield session

    @web.post("/orders/{order}")
    async def create(order: int, session: AsyncSession = Depends(a_session)) -> dict[str, str]:  # noqa: B008
        session.add(Order(id=order, what="a boat"))
        job = await sent.enqueue(send.job(order), within=session)
        if order == 13:
            raise ValueError("no such order")
        return {"job": job.id}

    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    await engine.dispose()  # its connections belong to this loop
    with TestClient(web, raise_server_exceptions=False) as client:
        assert client.post("/orders/13").status_code == 500
        id = client.post("/orders/1").json()["job"]
        client.portal.call(engine.dispose)  # type: ignore[union-attr]
    assert sent._core.loop is None
    await sent._core.storage.close()
    assert await stored(app) == ["[1]"]
    assert (await app.jobs.get(id)).job.task == "mail"
