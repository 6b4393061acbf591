"""Reports the SQLite connections and the log handlers that a test left behind.

Python reports a connection itself from 3.13 on, in the test during which the garbage collector happens to run.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

_connect = sqlite3.connect


class _Watched:
    opened_in = "no test"
    process = 0

    def __del__(self) -> None:
        assert isinstance(self, sqlite3.Connection)
        try:
            _ = self.total_changes
        except sqlite3.ProgrammingError:
            return  # it is closed
        if self.process == os.getpid():  # a fork inherits the connections of its parent
            warnings.warn(f"SQLite connection left open, opened in {self.opened_in}", ResourceWarning, 2, self)


@cache
def _watched(kind: type[sqlite3.Connection]) -> type[sqlite3.Connection]:
    return type(kind.__name__, (_Watched, kind), {})


def _connect_watched(*args: Any, factory: type[sqlite3.Connection] = sqlite3.Connection, **options: Any) -> Any:
    connection: Any = _connect(*args, factory=_watched(factory), **options)
    connection.opened_in = os.environ.get("PYTEST_CURRENT_TEST", "no test")
    connection.process = os.getpid()
    return connection


def watch() -> None:
    """Watch all connections that `sqlite3.connect` makes from now on in this process."""
    sqlite3.connect = sqlite3.dbapi2.connect = _connect_watched


@contextmanager
def no_log_handler() -> Iterator[None]:
    """Fail if the loggers of servers and workers have more handlers afterwards. One that prints to the stderr of its
    test, which is closed then, complains about every line that any later test logs."""
    before = set(_handlers())
    yield
    left = [f"{handler} of {name}" for handler, name in _handlers().items() if handler not in before]
    assert not left, f"the test left log handlers behind: {', '.join(left)}"


def _handlers() -> dict[logging.Handler, str]:
    """The handlers that our log lines and those of our HTTP servers pass, each with the name of its logger."""
    loggers = (logging.getLogger(name) for name in ("root", "treadle", "uvicorn", "uvicorn.error", "uvicorn.access"))
    return {handler: log.name for log in loggers for handler in log.handlers}
