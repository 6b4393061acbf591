"""The orders of the shop, for the endpoints, which are async, and for Celery's tasks, which are not."""

import os
from collections.abc import AsyncIterator

from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

FILE = os.path.abspath(os.environ.get("SHOP_DB", "shop.db"))
engine = create_async_engine(f"sqlite+aiosqlite:///{FILE}")
Session = async_sessionmaker(engine, expire_on_commit=False)
SyncSession = sessionmaker(create_engine(f"sqlite:///{FILE}"))


class Base(DeclarativeBase): ...


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]
    cents: Mapped[int]
    state: Mapped[str] = mapped_column(default="new")


async def create_tables() -> None:
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)


async def session() -> AsyncIterator[AsyncSession]:
    async with Session() as session:
        yield session
