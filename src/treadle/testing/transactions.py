"""Transactions of the user in tests: jobs enqueued in one are stored in memory at its commit, and dropped on rollback.

The memory storage has no transactions, so the commit is observed at the session: SQLAlchemy has events for it, Django
has callbacks. A plain driver connection reports no commit; use `within="at_once"` for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, Literal

from treadle.core.errors import BadSession, Unsupported
from treadle.core.model import NewJob, Outcome, Record, Settled, State
from treadle.storage import DJANGO, SCOPED, Bound, MemoryStorage, class_names
from treadle.storage.contract import Storage

When = Literal["commit", "at_once"]
SESSIONS = "sqlalchemy.orm.session Session", "sqlalchemy.ext.asyncio.session AsyncSession"
CONNECTIONS = "sqlalchemy.engine.base Connection", "sqlalchemy.ext.asyncio.engine AsyncConnection"
JUST_NOW = 0.001  # seconds; 0.0 would say that no transaction is open


class Group:
    """The jobs of one call in an open transaction. `began`: when it was made; `inside`: the savepoints around it."""

    def __init__(self, jobs: Sequence[NewJob], began: float, inside: Sequence[object] = ()) -> None:
        self.jobs, self.began, self.inside = tuple(jobs), began, tuple(inside)
        self.is_open: Callable[[], bool] = lambda: True  # False once rolled back


class Transactions:
    """Implements `within=` for the duration of a test."""

    def __init__(self, storage: MemoryStorage, when: When) -> None:
        self._storage, self._when = storage, when
        self._open: dict[object, list[Group]] = {}  # session or connection -> its groups
        self.loop: asyncio.AbstractEventLoop | None = None  # where the app is open
        self.undo = ExitStack()  # removes what watches connections; closed at the end of the test

    def within(self, session: Any) -> Bound:
        """The same call as a storage's `within`."""
        if self._when == "at_once":
            return self._storage
        names = class_names(session)
        if not names.isdisjoint(SCOPED):
            session = session()
            names = class_names(session)
        if not names.isdisjoint(DJANGO):
            # `django.db.connection` is a proxy for this thread's connection
            return HeldJobs(self, this_thread(session), self._watch_django)
        if not names.isdisjoint(SESSIONS):
            return HeldJobs(self, getattr(session, "sync_session", session), self._watch_session)
        if not names.isdisjoint(CONNECTIONS):
            return HeldJobs(self, getattr(session, "sync_connection", session), self._watch_connection)
        raise Unsupported(
            "app.testing()",
            f"within= a {type(session).__name__}, whose commit it cannot observe",
            'use app.testing(within="at_once"), which stores jobs before the commit, or a session of SQLAlchemy or '
            "Django's connection",
        )

    async def begin(self, sync: bool) -> Any:
        raise Unsupported(
            "app.testing()",
            "current().transaction()",
            'give the test a storage: app.testing(storage="sqlite:///tests.db?shared=true")',
        )

    async def oldest_open(self) -> float:
        """Seconds since the first of the calls whose jobs are held now; 0.0 if none are."""
        began = [group.began for groups in self._open.values() for group in groups if group.is_open()]
        return max(JUST_NOW, self._storage._now() - min(began)) if began else 0.0

    def held(self, task: str) -> int:
        """How many jobs of this task wait for a commit."""
        groups = [group for groups in self._open.values() for group in groups if group.is_open()]
        return sum(job.task == task for group in groups for job in group.jobs)

    # --- the groups of a session

    def pending(self, session: object) -> list[NewJob]:
        return [job for group in self._open.get(session, ()) if group.is_open() for job in group.jobs]

    def _commit(self, session: object) -> None:
        for group in self._open.pop(session, ()):
            self._store(group.jobs)

    def _drop(self, session: object, savepoint: object = None) -> None:
        """Drop the jobs that were rolled back: all, or those inside the savepoint."""
        kept = [] if savepoint is None else [g for g in self._open.get(session, ()) if savepoint not in g.inside]
        if kept:
            self._open[session] = kept
        else:
            self._open.pop(session, None)

    def _store(self, jobs: Sequence[NewJob]) -> None:
        """Store them now, in whichever thread commits."""
        loop, here = self.loop, asyncio._get_running_loop()
        if loop is None or here is loop or not loop.is_running():
            at_once(self._storage.enqueue(jobs))
        else:
            asyncio.run_coroutine_threadsafe(_enqueue(self._storage, jobs), loop).result(30)

    # --- how the commit of each kind is observed

    def _watch_django(self, connection: Any, jobs: Sequence[NewJob]) -> None:
        if not connection.in_atomic_block:
            raise BadSession("Django's connection", "it is not in a transaction: use transaction.atomic()")
        if _is_of_testcase(connection) and not _own_savepoints(connection):
            self._store(jobs)
            return
        group = Group(jobs, self._storage._now())
        self._open.setdefault(connection, []).append(group)

        def store() -> None:
            groups = self._open.get(connection, [])
            if group in groups:
                groups.remove(group)
                self._store(group.jobs)

        connection.on_commit(store)
        # Django has no callback for a rollback
        group.is_open = lambda: any(entry[1] is store for entry in connection.run_on_commit)
        if _is_of_testcase(connection):
            self._watch_blocks(connection)

    def _watch_blocks(self, connection: Any) -> None:
        """In a TestCase, which never commits, the end of the outermost block of `atomic` stores its jobs."""
        if "savepoint_commit" in vars(connection):
            return  # it is watched already
        release = connection.savepoint_commit

        def savepoint_commit(sid: object) -> None:
            release(sid)
            if not _own_savepoints(connection):
                for group in [group for group in self._open.get(connection, ()) if group.is_open()]:
                    self._open[connection].remove(group)
                    self._store(group.jobs)

        connection.savepoint_commit = savepoint_commit
        self.undo.callback(vars(connection).pop, "savepoint_commit", None)

    def _watch_session(self, session: Any, jobs: Sequence[NewJob]) -> None:
        from sqlalchemy import event

        if not session.in_transaction():
            session.begin()
        inside, nested = [], session.get_nested_transaction()
        while nested is not None:
            inside.append(nested)
            nested = nested.parent
        self._open.setdefault(session, []).append(Group(jobs, self._storage._now(), inside))
        if not event.contains(session, "after_commit", self._session_committed):  # never removed; harmless later
            event.listen(session, "after_commit", self._session_committed)
            event.listen(session, "after_soft_rollback", self._session_rolled_back)
            event.listen(session, "after_transaction_end", self._session_ended)

    def _session_committed(self, session: Any) -> None:
        if session.get_nested_transaction() is None:  # a commit, not the release of a savepoint
            self._commit(session)

    def _session_rolled_back(self, session: Any, previous: Any) -> None:
        self._drop(session, None if previous.parent is None else previous)

    def _session_ended(self, session: Any, transaction: Any) -> None:
        if transaction.parent is None:  # closed without a commit
            self._drop(session)

    def _watch_connection(self, connection: Any, jobs: Sequence[NewJob]) -> None:
        from sqlalchemy import event

        if not connection.in_transaction():
            raise BadSession("a Connection of SQLAlchemy", "it is not in a transaction: use connection.begin()")
        inside, nested = [], connection.get_nested_transaction()
        while nested is not None:
            inside.append(nested._savepoint)
            nested = nested._previous_nested
        self._open.setdefault(connection, []).append(Group(jobs, self._storage._now(), inside))
        if not event.contains(connection, "commit", self._commit):
            event.listen(connection, "commit", self._commit)
            event.listen(connection, "rollback", self._connection_rolled_back)
            event.listen(connection, "rollback_savepoint", self._connection_rolled_back_to)

    def _connection_rolled_back(self, connection: Any) -> None:
        self._drop(connection)

    def _connection_rolled_back_to(self, connection: Any, name: str, context: Any) -> None:
        self._drop(connection, name)


class HeldJobs:
    """The storage methods inside one transaction. Enqueued jobs are held until the commit."""

    def __init__(
        self, transactions: Transactions, session: Any, watch: Callable[[Any, Sequence[NewJob]], None]
    ) -> None:
        self._transactions, self._session, self._watch = transactions, session, watch
        self._storage = transactions._storage

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Record]:
        """Return the rows as they will be stored. Raises what the storage would raise now."""
        before, now = self._transactions.pending(self._session), self._storage._now()
        answers = self._storage.answers([*before, *jobs])
        known = {new.id: _row(new, now) for new in reversed([*before, *jobs])}
        rows = [self._storage._jobs.get(answers[new.id]) or known[answers[new.id]] for new in jobs]
        self._watch(self._session, jobs)
        return rows

    async def settle(self, outcomes: Sequence[Outcome]) -> list[Settled]:
        return await self._storage.settle(outcomes)

    async def get(self, ids: Sequence[str]) -> list[Record | None]:
        now = self._storage._now()
        held = {new.id: _row(new, now) for new in self._transactions.pending(self._session)}
        return [row or held.get(id) for id, row in zip(ids, await self._storage.get(ids), strict=True)]


def _row(new: NewJob, now: float) -> Record:
    state = State.WAITING if new.after or not new.task else State.READY
    return Record(job=new, version=0, state=state, after=new.after, created_at=now, updated_at=now)


def _is_of_testcase(connection: Any) -> bool:
    """Whether its transaction is that of a Django `TestCase`, which is never committed."""
    return any(getattr(block, "_from_testcase", False) for block in connection.atomic_blocks)


def _own_savepoints(connection: Any) -> list[Any]:
    """The savepoints of the blocks that are open inside those of the TestCase, whose first block has none."""
    of_testcase = sum(getattr(block, "_from_testcase", False) for block in connection.atomic_blocks)
    return [sid for sid in connection.savepoint_ids[max(0, of_testcase - 1) :] if sid is not None]


def this_thread(connection: Any) -> Any:
    """The real connection behind `django.db.connection`, which is a proxy for the calling thread's."""
    alias = getattr(connection, "_alias", None)
    return connection if alias is None else connection._connections[alias]


async def _enqueue(storage: Storage, jobs: Sequence[NewJob]) -> None:
    await storage.enqueue(jobs)


def at_once(work: Any) -> Any:
    """Return the result of a coroutine that never suspends, which holds for all of the memory storage's."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    work.close()
    raise RuntimeError("the memory storage waited for something")
