"""Says in words which jobs a filter selects, for dialogs and the audit log. Pure."""

from __future__ import annotations

from typing import Final

from treadle.core.clock import moment
from treadle.core.model import State
from treadle.core.query_model import Query

ACTS: Final = {"retry": "Reopen", "cancel": "Cancel", "run_now": "Queue now", "delete": "Delete"}
UNFINISHED: Final = (State.WAITING, State.READY, State.RUNNING)
ENDED: Final = (State.SUCCEEDED, State.FAILED, State.CANCELLED)


def words_of(query: Query, text: str | None = None, signature: str | None = None) -> str:
    """`failed jobs of task 'mail' in queue 'default', created before 2026-11-25 14:02 UTC`."""
    parts = [f"{_kind(query)} jobs"]
    for value, label in (
        (query.task, "of task"),
        (query.queue, "in queue"),
        (query.label, "with the label"),
        (query.root, "of workflow"),
        (query.parent, "that are children of"),
        (text, "with the text"),
        (signature, "with the error"),
    ):
        if value is not None:
            parts.append(f"{label} {value!r}")
    jobs = " ".join(parts)
    times = [("since", query.since), ("before", query.before)]
    return jobs + "".join(f", created {word} {_moment(bound)}" for word, bound in times if bound is not None)


def _kind(query: Query) -> str:
    if query.ready is not None:
        return query.ready
    if not query.state:
        return "all"
    if set(query.state) == set(UNFINISHED):
        return "unfinished"
    return "ended" if set(query.state) == set(ENDED) else " or ".join(query.state)


def _moment(seconds: float) -> str:
    try:
        return f"{moment(seconds):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):
        return f"{seconds:g} s since 1970"
