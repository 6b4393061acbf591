"""The orders of the shop, in the file that also stores the jobs: one commit carries both."""

import os
from collections.abc import AsyncIterator

from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

FILE = os.path.abspath(os.environ.get("SHOP_DB", "shop.db"))
engine = create_async_engine(f"sqlite+aiosqlite:///{FILE}")
Session = async_sessionmaker(engine, expire_on_commit=False)


class Base(DeclarativeBase): ...


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]
    cents: Mapped[int]
    state: Mapped[str] = mapped_column(default="new")
    job: Mapped[str] = mapped_column(default="")


async def create_tables() -> None:
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)


async def session() -> AsyncIterator[AsyncSession]:
    """The session of a request, which commits at its end."""
    async with Session.begin() as session:
        yield session
