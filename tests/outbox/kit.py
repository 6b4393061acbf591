"""Databases of users for the tests of the outbox, each empty and with the tables of an outbox."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import psycopg
import pymysql

from tests.servers import mariadb, postgres, valkey
from treadle import App, JobSpec, Outbox

KINDS = ("sqlite", "postgresql", "mysql")


class Data(NamedTuple):
    """A database of the user: its URL, and a function that connects to it with the usual driver, without autocommit."""

    kind: str
    url: str
    connect: Callable[[], Any]

    @property
    def name(self) -> str:
        return urlsplit(self.url).path.removeprefix("/")

    def run(self, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """One statement of the test itself, committed. Placeholders are %s."""
        with closing(self.connect()) as made:
            cursor = made.cursor()
            cursor.execute(statement.replace("%s", "?") if self.kind == "sqlite" else statement, tuple(values))
            rows = list(cursor.fetchall()) if cursor.description else []
            made.commit()
            return rows

    def age_by(self, seconds: float) -> None:
        """Make all rows of the outbox older."""
        self.run(f"UPDATE treadle_outbox SET made = made - {seconds!r}")


def a_database(kind: str, folder: Path) -> Data:
    """A new database without tables."""
    if kind == "sqlite":
        path = folder / "shop.db"
        sqlite3.connect(path).close()
        path.touch()
        return Data(kind, f"sqlite:///{path}", lambda: sqlite3.connect(path))
    if kind == "postgresql":
        url = postgres.database()
        return Data(kind, url, lambda: psycopg.connect(url))
    url = mariadb.shared().database()
    parts = urlsplit(url)
    words: dict[str, Any] = {"host": "127.0.0.1", "port": parts.port, "user": "root", "database": parts.path[1:]}
    return Data(kind, url, lambda: pymysql.connect(**words))


def an_app(data: Data, namespace: str, server: str | None = None, **options: Any) -> App:
    """An app with an outbox in the database, and one task. Its jobs are on the shared Valkey, or on `server`."""
    app = App(f"{server or valkey.url()}?ns={namespace}", outbox=Outbox(data.url, **options))

    @app.task(name="mail")
    async def mail(to: str) -> str:
        return f"mail to {to}"

    return app


def mail(app: App, to: str, **options: Any) -> JobSpec[Any]:
    return app.find_task("mail").options(**options).job(to)


async def stored(app: App) -> list[str]:
    """The arguments of the jobs in the storage."""
    return sorted(row.job.payload for row in (await app.jobs.list()).records)


async def relayed(app: App) -> int:
    """Hand over everything that is due; returns the number of jobs."""
    relay = app._core.relay
    assert relay is not None
    return await relay.everything()


async def never() -> bool:
    """For `relay._pass(never)`: deliver one page."""
    return False
