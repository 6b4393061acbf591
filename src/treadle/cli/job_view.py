"""A stored job as people and programs are shown it.

Without it a payload would be shown as the text the codec made.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UnsetType

from treadle.admin import stored_values
from treadle.app import App
from treadle.cli.output import age, iso, lasts, plural, stamp, stamp_of
from treadle.core.model import Record, State
from treadle.core.ranges import OWN
from treadle.durable.checkpoints import OURS, read_entry
from treadle.errors import UNREADABLE, error_line
from treadle.workflow.signals import SIGNAL, signal_name

ENCODE = msgspec.json.Encoder(enc_hook=str).encode
COLUMNS = ("id", "state", "task", "queue", "try", "created", "what")


def call_of(app: App, row: Record) -> tuple[Any, Any]:
    """Arguments by place and by name; the stored text where they cannot be read."""
    try:
        return app.jobs.arguments(row)
    except Exception:  # of the task's own codec and classes
        return (row.job.payload,), {}


def json_of(text: str | None) -> Any:
    """A stored text as the value it is in JSON."""
    return None if text is None else stored_values.carried(stored_values.value(text), text, ENCODE)


def note_of(row: Record) -> str:
    """Progress the task noted: `40 % half`."""
    share, words = stored_values.progress(row.note)
    return (words or "") if share is None else f"{share:.0%} {words}".strip()


def steps(row: Record) -> list[tuple[str, str]]:
    """The steps, sleeps and waits of durable code that are stored, in their order, each with what became of it. Of a
    memo that is no such step, such as a schedule's own, the text."""
    own = row.job.task.startswith(OWN)
    return [(name, text if own else _became(text)) for name, text in row.memo if not name.startswith(OURS)]


def _became(text: str) -> str:
    try:
        entry = read_entry(text)
    except UNREADABLE:
        return text
    if not isinstance(entry.until, UnsetType):
        return f"sleeps until {stamp_of(entry.until)}"
    return "nobody signalled in time" if entry.gave_up else "done"


def _name(row: Record) -> str:
    """The task; what a row is that has none."""
    if row.job.task:
        return row.job.task
    signal = signal_name(row)
    return "(promise)" if signal is None else f"(signal {signal})"


def what(row: Record, now: float) -> str:
    """The last column: what there is to know about a job in this state."""
    because = error_line(row.error)
    if row.state is State.RUNNING:
        held = f"for {lasts(max(0.0, now - (row.started_at or now)))}"
        return f"{held}, {note_of(row)}" if row.note else held
    if row.state is State.READY and row.place is None:
        when = f"stands aside for {row.parked}" if row.parked else f"due {age(row.due_at, now)}"
        return f"{when}: {because}" if because else when
    if row.state is State.WAITING:
        return f"for {row.pending} of {len(set(row.after))} jobs" if row.after else "to be settled"
    if row.state is State.SUCCEEDED:
        return f"took {lasts(row.ended_at - row.started_at)}" if row.ended_at and row.started_at else ""
    return f"{row.reason}: {because}" if because and row.reason else because


def line(row: Record, now: float) -> tuple[object, ...]:
    text = what(row, now)
    return (
        row.id,
        str(row.state),
        _name(row),
        row.job.queue,
        row.attempt,
        age(row.created_at, now),
        text if len(text) <= 60 else text[:57] + "...",
    )


def plain(app: App, row: Record) -> dict[str, Any]:
    """A job for programs. Moments are ISO 8601 in UTC, durations seconds."""
    args, kwargs = stored_values.carried_call(*call_of(app, row), row.job.payload, ENCODE)
    job = row.job
    return {
        "id": job.id,
        "task": job.task,
        "queue": job.queue,
        "state": str(row.state),
        "reason": row.reason,
        "args": args,
        "kwargs": kwargs,
        "result": json_of(row.result),
        "error": row.error,
        "attempt": row.attempt,
        "lost": row.lost,
        "priority": job.priority,
        "key": job.key,
        "lane": job.lane,
        "labels": list(job.labels),
        "headers": dict(job.headers),
        "limits": [name for name, _ in job.limits],
        "after": list(row.after),
        "pending": row.pending,
        "workflow": job.root or job.id,
        "parent": job.parent,
        "worker": row.worker,
        "steps": dict(steps(row)),
        "note": json_of(row.note),
        "stands_aside_for": row.parked if row.place is None else None,
        "created_at": iso(row.created_at),
        "due_at": iso(row.due_at),
        "started_at": iso(row.started_at),
        "ended_at": iso(row.ended_at),
        "deadline_at": iso(row.deadline_at),
        "expires_at": iso(row.expires_at),
    }


def shown(app: App, row: Record, why: str, now: float) -> list[tuple[str, object]]:
    """A job for people, as names and values."""
    job, call = row.job, _cut(_call(app, row))
    key = job.key.partition(" ")[2] if job.key else None
    after = ", ".join(row.after[:5]) + (f" and {len(row.after) - 5} more" if len(row.after) > 5 else "")
    waits = None if row.state.final or all(up.startswith(SIGNAL) for up in row.after) else after
    due = "lease ends" if row.state is State.RUNNING else "due"
    done = ", ".join(f"{name} ({what if len(what) <= 60 else what[:57] + '...'})" for name, what in steps(row))
    return [
        ("id", job.id),
        ("state", str(row.state)),
        ("why", why),
        ("call", f"{_name(row)}({call})"),
        ("queue", job.queue),
        ("priority", job.priority or None),
        ("try", f"{row.attempt} so far"),
        ("lost", f"{plural(row.lost, 'lease')} ran out" if row.lost else None),
        ("worker", row.worker),
        ("key", key),
        ("lane", job.lane),
        ("limits", ", ".join(name for name, _ in job.limits)),
        ("labels", ", ".join(job.labels)),
        ("headers", ", ".join(f"{name}={text}" for name, text in job.headers)),
        ("waits for", waits),
        ("workflow", job.root),
        ("parent", job.parent),
        ("steps", done),
        ("progress", note_of(row)),
        ("created", stamp(row.created_at, now)),
        ("started", stamp(row.started_at, now)),
        (due, stamp(row.due_at, now) if not row.state.final else None),
        ("deadline", stamp(row.deadline_at, now)),
        ("ended", stamp(row.ended_at, now)),
        ("kept until", stamp(row.expires_at, now)),
        ("result", _result(row)),
        ("error", row.error),
    ]


def _result(row: Record) -> str | None:
    return None if row.result is None else _cut(stored_values.shown(stored_values.value(row.result), row.result))


def _call(app: App, row: Record) -> str:
    args, kwargs = call_of(app, row)
    try:
        return ", ".join([*(repr(each) for each in args), *(f"{name}={each!r}" for name, each in kwargs.items())])
    except Exception:  # a number of very many digits; a `__repr__` of the user's
        return repr(row.job.payload)


def _cut(text: str, most: int = 2_000) -> str:
    return text if len(text) <= most else f"{text[:most]}... ({len(text):,} characters; --json shows all)"
