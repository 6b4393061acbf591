"""Reports the commit of a user's transaction, where the session can tell: sessions of SQLAlchemy, and Django's
connection. SQLAlchemy's connections report a commit before it is sent, so they are left to the relay.

A part of the transaction may have been rolled back: the receiver of a report reads what was committed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

from treadle.storage import ASYNC, DJANGO, SCOPED, SYNC, class_names

MOST: Final = 1_000  # jobs of one transaction that are reported; the relay finds the others
SESSIONS: Final = (SYNC[0], ASYNC[0])

Report = Callable[[Sequence[str]], None]

_open: Final[WeakKeyDictionary[Any, dict[Report, list[str]]]] = WeakKeyDictionary()


def when_committed(given: Any, ids: Sequence[str], report: Report) -> None:
    """Call `report` with the ids after the commit. Does nothing for a session that does not tell."""
    names = class_names(given)
    if not names.isdisjoint(SCOPED):
        given = given()
        names = class_names(given)
    if not names.isdisjoint(DJANGO):
        given.on_commit(lambda: report(ids[:MOST]), robust=True)
    elif not names.isdisjoint(SESSIONS):
        _of_session(getattr(given, "sync_session", given), ids, report)


def _of_session(session: Any, ids: Sequence[str], report: Report) -> None:
    waiting = _open.get(session)
    if waiting is None:
        from sqlalchemy import event

        waiting = _open[session] = {}
        event.listen(session, "after_commit", _committed)
    known = waiting.setdefault(report, [])
    known += ids[: MOST - len(known)]


def _committed(session: Any) -> None:
    """SQLAlchemy calls this for the release of a savepoint too."""
    if session.get_nested_transaction() is not None:
        return
    waiting = _open.get(session)
    if waiting:
        reports = dict(waiting)
        waiting.clear()
        for report, ids in reports.items():
            report(ids)
