"""The filters of `app.jobs`: turns them into a query of the storage and a text to search for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final, cast

from treadle.core.errors import BadOption
from treadle.core.model import State
from treadle.core.query_model import Query
from treadle.core.similar_names import near
from treadle.tasks.when import HasId

KNOWN: Final = frozenset(
    {"state", "status", "task", "queue", "workflow", "parent", "label", "ids", "before", "since", "search"}
)
UNFINISHED: Final = (State.WAITING, State.READY, State.RUNNING)
ENDED: Final = (State.SUCCEEDED, State.FAILED, State.CANCELLED)
STATUSES: Final = ("queued", "scheduled", "blocked")
MOST_SCANNED: Final = 10_000_000  # rows that one call may look at
LONGEST: Final = 1_000  # characters of a text to search for


def id_of(job: HasId | str) -> str:
    return job if isinstance(job, str) else job.id


def query_of(filters: Mapping[str, Any], **rest: Any) -> Query:
    """Make a Query of the user's filters. Raises BadOption."""
    for name in filters:
        if name not in KNOWN:
            like = near(name, KNOWN)
            raise BadOption(name, f"there is no such filter{like}; there are {', '.join(sorted(KNOWN))}")
    for name in ("queue", "label"):
        if filters.get(name) is not None and not isinstance(filters[name], str):
            raise BadOption(name, f"expected a text (a label of a mapping is 'key=value'), found {filters[name]!r}")
    task, status = filters.get("task"), _status(filters.get("status"))
    if status in STATUSES:
        rest["ready"] = status
    elif status is not None:
        rest["state"] = (State(status),)
    return Query(
        **{"state": _states(filters.get("state")), **rest},
        task=task if task is None or isinstance(task, str) else task.name,
        queue=filters.get("queue"),
        root=None if filters.get("workflow") is None else id_of(filters["workflow"]),
        parent=None if filters.get("parent") is None else id_of(filters["parent"]),
        label=filters.get("label"),
        ids=tuple(map(id_of, filters.get("ids") or ())),
        before=_instant("before", filters.get("before")),
        since=_instant("since", filters.get("since")),
    )


def text_of(filters: Mapping[str, Any]) -> str | None:
    """The text that the filters search for. Raises BadOption."""
    text = filters.get("search")
    if text is not None and (not isinstance(text, str) or not 0 < len(text) <= LONGEST):
        raise BadOption("search", f"expected a text of 1 to {LONGEST:,} characters, found {text!r:.80}")
    return text


def worker_of(worker: object, filters: Mapping[str, Any]) -> str | None:
    """The worker whose running jobs a list shows. Raises BadOption."""
    if worker is None:
        return None
    if not isinstance(worker, str) or not worker:
        raise BadOption("worker", f"expected the name of a worker, found {worker!r:.80}")
    states = {filters.get("status"), *_states(filters.get("state"))} - {None, State.RUNNING}
    if states:
        raise BadOption("worker", f"only running jobs are a worker's, found {', '.join(sorted(map(str, states)))}")
    return worker


def check_count(name: str, number: object, most: int, what: str) -> None:
    """Raise BadOption unless this is an int from 1 to `most`."""
    if isinstance(number, bool) or not isinstance(number, int) or not 0 < number <= most:
        raise BadOption(name, f"expected 1 to {most:,} {what}, found {number!r}")


def _instant(name: str, value: Any) -> float | None:
    if value is None:
        return None
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise BadOption(name, f"expected a datetime with a time zone, found {value!r}")
    return value.timestamp()


def _status(value: Any) -> str | None:
    if value is not None and value not in (*STATUSES, *map(str, State)):
        raise BadOption("status", f"expected one of {', '.join((*STATUSES, *State))}, found {value!r}")
    return cast("str | None", value)


def _states(value: Any) -> tuple[State, ...]:
    if value is None:
        return ()
    states: Iterable[Any] = [value] if isinstance(value, str) else value
    try:
        return tuple(State(state) for state in states)
    except (TypeError, ValueError):
        raise BadOption("state", f"expected one or more of {', '.join(State)}, found {value!r}") from None
