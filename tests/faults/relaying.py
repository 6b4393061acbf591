"""Kills a relay and a writer with kill -9 before and after each of their statements, each time in a forked process.

    python -m tests.faults.relaying STORAGE OUTBOX KIND FOLDER

Prints "writer N" and "relay N", the number of kills. Each writer adds an order and its jobs in one transaction, so the
caller can compare the orders with the jobs.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from tests.outbox.kit import Data, an_app, mail
from treadle import App
from treadle.outbox.drivers import Database
from treadle.storage.driver_sessions import MySQLSession, PsycopgSession, SqliteSession
from treadle.storage.redis import RedisStorage

SESSIONS: Final = {"sqlite": SqliteSession, "postgresql": PsycopgSession, "mysql": MySQLSession}
JOBS: Final = 3  # of one call


class Countdown:
    """Kills this process when it has counted to zero."""

    def __init__(self, left: int) -> None:
        self.left = left

    def step(self) -> None:
        self.left -= 1
        if not self.left:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(self, owner: Any, *names: str) -> None:
        """Count before and after each call of these functions of a class."""
        for name in names:
            setattr(owner, name, self._counting(getattr(owner, name)))

    def _counting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if not inspect.iscoroutinefunction(function):

            def called(*args: Any, **options: Any) -> Any:
                self.step()
                answer = function(*args, **options)
                self.step()
                return answer

            return called

        async def awaited(*args: Any, **options: Any) -> Any:
            self.step()
            answer = await function(*args, **options)
            self.step()
            return answer

        return awaited


def killed(act: Callable[[Countdown], None]) -> int:
    """Run `act` in forked processes, each killed one step later than the one before, until one ends; how many were
    killed."""
    for step in range(1, 1_000):
        child = os.fork()
        if not child:
            try:
                act(Countdown(step))
            except BaseException:
                import traceback

                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        if code != -signal.SIGKILL:
            assert code == 0, f"step {step} ended with {code}"
            return step - 1
    raise AssertionError("it has no end")


def write(data: Data, new: Callable[[], App]) -> Callable[[Countdown], None]:
    def act(countdown: Countdown) -> None:
        app, name = new(), f"w{countdown.left}"
        countdown.around(SESSIONS[data.kind], "run")
        with closing(data.connect()) as db:
            db.cursor().execute("INSERT INTO orders VALUES ('" + name + "')")
            app.sync.enqueue([mail(app, f"{name}-{n}") for n in range(JOBS)], within=db)
            countdown.step()
            db.commit()
            countdown.step()

    return act


def relay(new: Callable[[], App]) -> Callable[[Countdown], None]:
    async def run(countdown: Countdown) -> None:
        app = new()
        async with app:
            countdown.around(Database, "run_here")
            countdown.around(RedisStorage, "enqueue")
            assert app.outbox is not None
            found = app.outbox._relay(app._core.opened, lease=0.01)
            await found._leads()
            await found.everything()
            await found._leave()

    return lambda countdown: asyncio.run(run(countdown))


def main(storage: str, outbox: str, kind: str, place: str) -> None:
    data = Data(kind, outbox, lambda: _connect(kind, outbox, place))

    def new() -> App:
        server, _, namespace = storage.partition("?ns=")
        return an_app(data, namespace, server)

    print("writer", killed(write(data, new)), flush=True)
    print("relay", killed(relay(new)), flush=True)


def _connect(kind: str, outbox: str, place: str) -> Any:
    if kind == "sqlite":
        import sqlite3

        return sqlite3.connect(Path(place) / "shop.db")
    if kind == "postgresql":
        import psycopg

        return psycopg.connect(outbox)
    from urllib.parse import urlsplit

    import pymysql

    parts = urlsplit(outbox)
    return pymysql.connect(host="127.0.0.1", port=parts.port or 0, user="root", database=parts.path[1:])


if __name__ == "__main__":
    main(*sys.argv[1:])
