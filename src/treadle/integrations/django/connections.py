"""The database connections of Django in a worker.

Django closes a connection that is broken or past CONN_MAX_AGE at the beginning and the end of a request. A worker has
no requests, so each run begins and ends like one. An async task runs the ORM in a thread of asgiref; without a thread
of its own, all async tasks of a worker would share one.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator
from contextvars import ContextVar
from typing import Any

from asgiref.sync import SyncToAsync, ThreadSensitiveContext, sync_to_async
from django.conf import settings
from django.db import close_old_connections, connections, reset_queries

log = logging.getLogger("treadle")

# Set while the test helper runs jobs on the connection of the test.
borrowed: ContextVar[bool] = ContextVar("treadle_django_borrowed", default=False)


def forget_queries() -> None:
    """With DEBUG a connection keeps the text of its last 9,000 queries; forget those of the run before."""
    if settings.DEBUG:
        reset_queries()


def is_in_transaction(connection: Any) -> bool:
    """Whether a transaction may be open: inside of `atomic`, or with autocommit turned off."""
    return connection.in_atomic_block or (connection.connection is not None and not connection.autocommit)


def tests_of(connection: Any) -> tuple[Any, ...]:
    """The blocks of the `TestCase` whose transaction is open, which it never commits, that of its class first. Empty
    outside of a TestCase."""
    return tuple(block for block in connection.atomic_blocks if getattr(block, "_from_testcase", False))


def open_savepoints(connection: Any) -> set[Any]:
    """The savepoints of the blocks that are open within the transaction of a `TestCase`. Its first block has none."""
    return set(connection.savepoint_ids[max(0, len(tests_of(connection)) - 1) :])


class OwnThreads:
    """Contexts of asgiref, each with one thread, and so with one connection to each database. A run takes one and gives
    it back, so connections last as long as CONN_MAX_AGE says."""

    def __init__(self) -> None:
        self._idle: list[Any] = []

    @contextlib.asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """A context in which `sync_to_async`, and with it the async ORM, uses a thread that no other run uses."""
        if borrowed.get():
            yield
            return
        context = self._idle.pop() if self._idle else ThreadSensitiveContext()
        token = SyncToAsync.thread_sensitive_context.set(context)
        try:
            yield
        finally:
            try:
                if context in SyncToAsync.context_to_thread_executor:  # the run has used the thread
                    await sync_to_async(_end_of_run)()
            finally:
                SyncToAsync.thread_sensitive_context.reset(token)
                self._idle.append(context)

    async def close(self) -> None:
        """End the threads that no run uses, and close their connections."""
        while self._idle:
            context = self._idle.pop()
            if context not in SyncToAsync.context_to_thread_executor:
                continue
            token = SyncToAsync.thread_sensitive_context.set(context)
            try:
                await sync_to_async(_close_all)()
            finally:
                SyncToAsync.thread_sensitive_context.reset(token)
                SyncToAsync.context_to_thread_executor.pop(context).shutdown(wait=False)


def _end_of_run() -> None:
    try:
        close_old_connections()
        forget_queries()
    except Exception:  # the driver's; the job has ended, and must not fail because of it
        log.warning("a database connection of Django could not be closed", exc_info=True)


def _close_all() -> None:
    with contextlib.suppress(Exception):  # it may be broken already
        connections.close_all()
