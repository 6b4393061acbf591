"""The contents of the admin pages: jobs and schedules as plain values for the templates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final
from urllib.parse import urlencode

import msgspec
from msgspec import Struct

from treadle.admin import stored_values
from treadle.app.core import AppCore
from treadle.core.claim_ids import worker_name
from treadle.core.errors import UnknownJob, UnknownSchedule, error_line
from treadle.core.ids import VALID
from treadle.core.model import Record, State
from treadle.core.redaction import visible, without_secrets
from treadle.integrations.django.results import moment
from treadle.policy import attempts
from treadle.policy.pauses import due_at, paused_at
from treadle.storage import whole_row

PAGE: Final = 50  # jobs on a page
STATES: Final = ("queued", "scheduled", "blocked", "running", "waiting", "succeeded", "failed", "cancelled")
LONGEST: Final = 20_000  # characters of a value that a page shows
VERBS: Final[Mapping[str, tuple[str, frozenset[State], str]]] = {
    "retry": ("Retry", frozenset({State.FAILED, State.CANCELLED}), "change"),
    "run_now": ("Run now", frozenset({State.READY}), "change"),
    "cancel": ("Cancel", frozenset({State.WAITING, State.READY, State.RUNNING}), "change"),
    "delete": ("Delete", frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED}), "delete"),
}


class JobRow(Struct, frozen=True):
    """One line of the list. `detail`: the error of a job that has failed or will be retried, if it may be shown."""

    id: str
    task: str
    queue: str
    state: str
    created: datetime | None
    attempts: int
    detail: str


class Choice(Struct, frozen=True):
    """One link of a filter."""

    text: str
    query: str
    selected: bool
    count: int | None = None


class JobList(Struct, frozen=True):
    """One page of the list, its filters, and the query of the next page."""

    rows: Sequence[JobRow]
    filters: Sequence[tuple[str, Sequence[Choice]]]
    next: str | None
    is_filtered: bool
    is_first: bool


class Run(Struct, frozen=True):
    """One run of a job, for the table."""

    number: int
    started: datetime | None
    outcome: str
    worker: str
    error: str


class JobPage(Struct, frozen=True):
    """One job. `sections`: titles, each with names and values; `texts`: titles with long texts."""

    row: JobRow
    explained: str
    sections: Sequence[tuple[str, Sequence[tuple[str, Any]]]]
    texts: Sequence[tuple[str, str]]
    runs: Sequence[Run]
    verbs: Sequence[tuple[str, str]]


def state_of(row: Record) -> str:
    """The state in the words of the filter."""
    if row.state is not State.READY:
        return str(row.state)
    if row.queue_position is not None:
        return "queued"
    return "blocked" if row.blocked_on is not None else "scheduled"


def line_of(row: Record, payloads: bool) -> JobRow:
    return JobRow(
        id=row.job.id,
        task=row.job.task,
        queue=row.job.queue,
        state=state_of(row),
        created=moment(row.created_at),
        attempts=row.attempt,
        detail=clean(error_line(row.error)) if payloads and row.state is not State.SUCCEEDED else "",
    )


def clean(text: str) -> str:
    """A text without secrets and control characters, not too long for a page."""
    shown = visible(without_secrets(text))
    return shown if len(shown) <= LONGEST else f"{shown[:LONGEST]}\n... ({len(shown):,} characters)"


# --- the list


async def job_list(core: AppCore, query: Mapping[str, str], payloads: bool) -> JobList:
    """One page of jobs. `query`: the parameters of the page's address; an unknown filter is ignored. Raises BadOption
    for a text that is no cursor, and StorageError."""
    filters: dict[str, Any] = {name: query[name] for name in ("status", "queue", "task") if query.get(name)}
    if filters.get("status") not in (None, *STATES):
        del filters["status"]
    search: dict[str, Any] = {"search": query["q"].strip()} if query.get("q", "").strip() else {}
    jobs = core.jobs if payloads else core.jobs.showing(None, payloads=False)
    cursor = query.get("cursor") or None
    page = await jobs.list(limit=PAGE, cursor=cursor, **filters, **search)
    kept = filters | ({"q": search["search"]} if search else {})
    counts = (await core.queues.stats()).counts
    return JobList(
        rows=[line_of(core.redactor.row(row), payloads) for row in page.records if _is_of_user(row.job.task)],
        filters=[
            ("status", _choices("status", dict.fromkeys(STATES), kept)),
            ("queue", _choices("queue", _sums(counts, "queue"), kept)),
            ("task", _choices("task", _sums(counts, "task"), kept)),
        ],
        next=None if page.cursor is None else "?" + urlencode({**kept, "cursor": page.cursor}),
        is_filtered=bool(kept),
        is_first=cursor is None,
    )


def _is_of_user(task: str) -> bool:
    """Whether it is a task of the project. Treadle's own rows, for example those of schedules, are not jobs to
    users."""
    return bool(task) and not task.startswith("treadle.")


def _sums(counts: Sequence[Any], of: str) -> dict[str, int | None]:
    """The number of users' jobs by `queue` or by `task`."""
    sums: Counter[str] = Counter()
    for count in counts:
        if _is_of_user(count.task):
            sums[getattr(count, of)] += count.jobs
    return {name: sums[name] for name in sorted(sums)}


def _choices(name: str, values: Mapping[str, int | None], kept: Mapping[str, str]) -> list[Choice]:
    """The links of a filter; `values`: each with its number of jobs, if that is known."""
    return [
        _choice(name, "All", None, kept),
        *(_choice(name, value, value, kept, count) for value, count in values.items()),
    ]


def _choice(name: str, text: str, value: str | None, kept: Mapping[str, str], count: int | None = None) -> Choice:
    others = {key: chosen for key, chosen in kept.items() if key != name}
    query = "?" + urlencode(others if value is None else {**others, name: value})
    return Choice(text, query, kept.get(name) == value, count)


# --- one job


async def job_page(core: AppCore, id: str, payloads: bool) -> JobPage:
    """Raises UnknownJob and StorageError."""
    row = await core.jobs.get(id)
    if not _is_of_user(row.job.task):
        raise UnknownJob(id)
    job = row.job
    about = [
        ("Task", job.task),
        ("Queue", job.queue),
        ("Priority", job.priority),
        ("Created", moment(row.created_at)),
        ("Due", moment(due_at(row)) if row.state is State.READY else None),
        ("Paused", moment(paused_at(row))),
        ("Started", moment(row.started_at)),
        ("Ended", moment(row.ended_at)),
        ("Deadline", moment(row.deadline_at)),
        ("Attempts", row.attempt),
        ("Lost workers", row.lost or None),
        ("Worker", worker_name(row.worker)),
        ("Key", job.key),
        ("Labels", ", ".join(job.labels) or None),
        ("Limits", ", ".join(name for name, _ in job.limits) or None),
        ("Lane", job.lane),
        ("Reason", row.reason),
    ]
    hidden = core.redactor.row(await whole_row(await core.opened(), row) if payloads else row)
    verbs = [(verb, text) for verb, (text, states, _) in VERBS.items() if row.state in states]
    if state_of(row) != "scheduled":  # only a job that is not queued yet can be run earlier
        verbs = [pair for pair in verbs if pair[0] != "run_now"]
    return JobPage(
        row=line_of(hidden, payloads),
        explained=core.redactor.text(_explained(await core.jobs.explain(id), row, payloads), row),
        sections=[("Job", [(name, value) for name, value in about if value is not None])],
        texts=_texts(hidden) if payloads else [],
        runs=[
            Run(
                attempt.number,
                moment(attempt.started_at),
                attempt.outcome,
                attempt.worker or "-",
                clean(error_line(attempt.error)),
            )
            for attempt in attempts.of(hidden)
        ],
        verbs=verbs,
    )


def _texts(row: Record) -> list[tuple[str, str]]:
    args, kwargs = stored_values.arguments(row.job.payload)
    called = [*map(_json, args), *(f"{name}={_json(value)}" for name, value in kwargs.items())]
    texts = [("Arguments", "\n".join(called) or "none")]
    if row.result is not None and row.state is State.SUCCEEDED:
        texts.append(("Result", _json(stored_values.value(row.result))))
    if row.error and row.state is not State.SUCCEEDED:
        texts.append(("Error", row.error))
    if row.job.headers:
        texts.append(("Headers", "\n".join(f"{name}: {value}" for name, value in row.job.headers)))
    return [(name, clean(text)) for name, text in texts]


def _json(value: Any) -> str:
    try:
        return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    except Exception:  # a value of user code
        return repr(value)


# --- acts


async def act(core: AppCore, verb: str, ids: Sequence[str], by: str) -> int:
    """Retry, cancel, run or delete these jobs -> how many were changed. Recorded in the audit log. Raises
    StorageError.

    The ids come from a form, so they may be anything. Only jobs that the list shows are changed: the rows of schedules
    and limits have ids too, and other permissions.
    """
    jobs = core.jobs
    calls = {"retry": jobs.retry, "cancel": jobs.cancel, "run_now": jobs.run_now, "delete": jobs.delete}
    valid = [id for id in dict.fromkeys(ids) if VALID.fullmatch(id)]
    rows = await core.client.get(valid)
    ids = [row.job.id for row in rows if row is not None and _is_of_user(row.job.task)]
    if not ids:
        return 0
    target = ids[0] if len(ids) == 1 else ""
    selection = None if target else f"{len(ids)} jobs chosen in the admin"
    async with core.audit.record(f"job.{verb}", target, filter=selection, by=by) as receipt:
        receipt.done = await calls[verb](ids=ids)
        receipt.ids = ids
        return receipt.done


async def act_on_schedules(core: AppCore, verb: str, names: Sequence[str], by: str) -> int:
    """Pause, resume or trigger these schedules -> how many there were. Raises BadOption and StorageError."""
    schedules, done = core.schedules, 0
    calls = {"pause": schedules.pause, "resume": schedules.resume, "trigger": schedules.trigger}
    for name in names:
        async with core.audit.record(f"schedule.{verb}", name, by=by):
            try:
                await calls[verb](name)
            except UnknownSchedule:
                continue
            done += 1
    return done


def _explained(sentence: str, row: Record, payloads: bool) -> str:
    """The sentence of `explain`. Without the right to see payloads, it does not quote the error of the job."""
    quoted = error_line(row.error)
    return clean(sentence if payloads or not quoted else sentence.replace(quoted, "not shown"))
