"""Publishes the topics of users' transactions after their commits.

The user commits in any thread and with any driver, so a thread of ours polls the server for the status of these
transactions. It has a connection only while one is pending, and for a short time after.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from typing import Any, Final

import psycopg
from psycopg import RawCursor

from treadle.storage.postgres.address import Address
from treadle.storage.postgres.topics import NOTIFY, Noted, payloads

FIRST: Final = 0.003  # s between two polls: at least
SHARE, SLOWEST = 0.2, 0.5  # the longest delay of a hint: a share of its transaction's age, and s at most
LONGEST: Final = 30.0  # s a transaction is followed; after that the workers' polls find its jobs just as soon
IDLE: Final = 1.0  # s without a pending transaction before the connection is closed: DROP DATABASE waits for five
LAST: Final = 0.5  # s that `close` waits for the last poll
STATUS: Final = "SELECT value, pg_xact_status(value::xid8) FROM json_array_elements_text($1::json)"


class _Pending:
    __slots__ = ("since", "topics")

    def __init__(self) -> None:
        self.since = time.monotonic()
        self.topics: dict[str, None] = {}


class UserCommits:
    """Follows users' transactions. Topics are hints, so any error drops them."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._reset()

    def _reset(self) -> None:
        self._process = os.getpid()
        self._change = threading.Condition()
        self._pending: dict[str, _Pending] = {}
        self._thread: threading.Thread | None = None
        self._asked = 0.0
        self._closing = False

    def follow(self, noted: Noted) -> None:
        """Publish these topics when the transaction has committed. Never waits; any thread may call it."""
        if self._address.notifier is None or noted.transaction is None:
            return
        if self._process != os.getpid():  # a forked process has these transactions, but not the thread
            self._reset()
        with self._change:
            self._closing = False
            pending = self._pending.setdefault(noted.transaction, _Pending())
            pending.topics.update(dict.fromkeys(noted.topics))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="treadle commits", daemon=True)
                self._thread.start()
            self._change.notify()

    async def close(self) -> None:
        """Poll once more, and end. Waits for a short time at most."""
        with self._change:
            self._closing = True
            thread = self._thread
            self._change.notify()
        if thread is not None and self._process == os.getpid():
            await asyncio.to_thread(thread.join, LAST)

    def _run(self) -> None:
        connection: psycopg.Connection[Any] | None = None
        try:
            while self._wait():
                try:
                    connection = connection or self._connect()
                    self._publish(RawCursor(connection))
                except Exception:  # the server is unavailable or another one: workers find the jobs by polling
                    with self._change:
                        self._pending.clear()
                    if connection is not None:
                        connection.close()
                    connection = None
        finally:
            if connection is not None:
                connection.close()

    def _connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self._address.conninfo, autocommit=True, prepare_threshold=None)

    def _wait(self) -> bool:
        """Wait until the next poll; False: the thread ends."""
        with self._change:
            if not self._pending and not self._closing:
                self._change.wait(IDLE)
            while self._pending and not self._closing:
                now = time.monotonic()
                youngest = now - max(pending.since for pending in self._pending.values())
                rest = self._asked + max(FIRST, min(youngest * SHARE, SLOWEST)) - now
                if rest <= 0:
                    break
                self._change.wait(rest)
            if not self._pending:
                self._thread = None
            self._asked = time.monotonic()
            return bool(self._pending)

    def _publish(self, cursor: RawCursor[Any]) -> None:
        """Poll the status of all pending transactions in one statement; publish the topics of those that have
        committed."""
        with self._change:
            pending, last = dict(self._pending), self._closing
        ids = "[" + ",".join(f'"{transaction}"' for transaction in pending) + "]"
        states = dict(cursor.execute(STATUS, [ids]).fetchall())
        committed = {topic for id, status in states.items() if status == "committed" for topic in pending[id].topics}
        if committed:
            cursor.execute(NOTIFY, [payloads(self._address.schema, committed)])
        late = time.monotonic() - LONGEST
        with self._change:
            for id, status in states.items():
                if last or status != "in progress" or pending[id].since < late:
                    self._pending.pop(id, None)
