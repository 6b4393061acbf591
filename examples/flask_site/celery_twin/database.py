"""The users of the site."""

import os
from datetime import UTC, datetime

from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

FILE = os.path.abspath(os.environ.get("SITE_DB", "site.db"))
engine = create_engine(f"sqlite:///{FILE}")
Session = sessionmaker(engine)


class Base(DeclarativeBase): ...


class User(Base):
    __tablename__ = "users"
    id: Mapped[int] = mapped_column(primary_key=True)
    address: Mapped[str]
    confirmed: Mapped[bool] = mapped_column(default=False)
    since: Mapped[datetime] = mapped_column(default=lambda: datetime.now(UTC))
