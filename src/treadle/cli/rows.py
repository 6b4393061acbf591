"""A stored job as people and programs are shown it.

Without it a payload would be shown as the text the codec made.
"""

from __future__ import annotations

from typing import Any

import msgspec

from treadle import codec
from treadle.app import App
from treadle.cli.say import age, iso, lasts, stamp
from treadle.errors import TreadleError
from treadle.model import Record, State

COLUMNS = ("id", "state", "task", "queue", "try", "created", "what")


def call_of(app: App, row: Record) -> tuple[Any, Any]:
    """Arguments by place and by name; the stored text where they cannot be read."""
    try:
        return app.jobs.arguments(row)
    except (TreadleError, ValueError, TypeError):
        return (row.job.payload,), {}


def value(text: str | None) -> Any:
    """A stored result as a plain value."""
    if text is None:
        return None
    try:
        return codec.decode_any(text)
    except (TreadleError, ValueError, TypeError):
        return text


def note_of(row: Record) -> str:
    """Progress the task noted: `40 % half`."""
    if row.note is None:
        return ""
    try:
        found = msgspec.json.decode(row.note)
        if "progress" not in found:
            return str(found["text"])
        return f"{found['progress']:.0%} {found['text']}".strip()
    except (ValueError, TypeError, KeyError):
        return row.note


def what(row: Record, now: float) -> str:
    """The last column: what there is to know about a job in this state."""
    last = (row.error or "").strip().splitlines()
    because = last[-1] if last else ""
    if row.state is State.RUNNING:
        held = f"for {lasts(max(0.0, now - (row.started_at or now)))}"
        return f"{held}, {note_of(row)}" if row.note else held
    if row.state is State.READY and row.place is None:
        when = f"stands aside for {row.parked}" if row.parked else f"due {age(row.due_at, now)}"
        return f"{when}: {because}" if because else when
    if row.state is State.WAITING:
        return f"for {row.pending} of {len(row.after)} jobs" if row.after else "to be settled"
    if row.state is State.SUCCEEDED:
        return f"took {lasts(row.ended_at - row.started_at)}" if row.ended_at and row.started_at else ""
    return f"{row.reason}: {because}" if because and row.reason else because


def line(row: Record, now: float) -> tuple[object, ...]:
    text = what(row, now)
    return (
        row.id, str(row.state), row.job.task or "(promise)", row.job.queue, row.attempt, age(row.created_at, now),
        text if len(text) <= 60 else text[:57] + "...",
    )  # fmt: skip


def plain(app: App, row: Record) -> dict[str, Any]:
    """A job for programs. Moments are ISO 8601 in UTC, durations seconds."""
    args, kwargs = call_of(app, row)
    job = row.job
    return {
        "id": job.id, "task": job.task, "queue": job.queue, "state": str(row.state), "reason": row.reason,
        "args": list(args), "kwargs": dict(kwargs), "result": value(row.result), "error": row.error,
        "attempt": row.attempt, "lost": row.lost, "priority": job.priority, "key": job.key, "lane": job.lane,
        "labels": list(job.labels), "headers": dict(job.headers), "limits": [name for name, _ in job.limits],
        "after": list(row.after), "pending": row.pending, "workflow": job.root or job.id, "parent": job.parent,
        "worker": row.worker, "note": value(row.note), "stands_aside_for": row.parked if row.place is None else None,
        "created_at": iso(row.created_at), "due_at": iso(row.due_at), "started_at": iso(row.started_at),
        "ended_at": iso(row.ended_at), "deadline_at": iso(row.deadline_at), "expires_at": iso(row.expires_at),
    }  # fmt: skip


def shown(app: App, row: Record, why: str, now: float) -> list[tuple[str, object]]:
    """A job for people, as names and values."""
    args, kwargs = call_of(app, row)
    job = row.job
    call = ", ".join([*(repr(each) for each in args), *(f"{name}={each!r}" for name, each in kwargs.items())])
    key = job.key.partition(" ")[2] if job.key else None
    after = ", ".join(row.after[:5]) + (f" and {len(row.after) - 5} more" if len(row.after) > 5 else "")
    return [
        ("id", job.id), ("state", str(row.state)), ("why", why), ("call", f"{job.task or '(promise)'}({_cut(call)})"),
        ("queue", job.queue), ("priority", job.priority or None), ("try", f"{row.attempt} so far"),
        ("lost", f"{row.lost} leases ran out" if row.lost else None), ("worker", row.worker), ("key", key),
        ("lane", job.lane), ("limits", ", ".join(name for name, _ in job.limits)), ("labels", ", ".join(job.labels)),
        ("headers", ", ".join(f"{name}={text}" for name, text in job.headers)), ("waits for", after),
        ("workflow", job.root), ("parent", job.parent), ("progress", note_of(row)),
        ("created", stamp(row.created_at, now)), ("started", stamp(row.started_at, now)),
        ("due", stamp(row.due_at, now) if not row.state.final else None), ("deadline", stamp(row.deadline_at, now)),
        ("ended", stamp(row.ended_at, now)), ("kept until", stamp(row.expires_at, now)),
        ("result", _cut(repr(value(row.result))) if row.result is not None else None), ("error", row.error),
    ]  # fmt: skip


def _cut(text: str, most: int = 2_000) -> str:
    return text if len(text) <= most else f"{text[:most]}... ({len(text):,} characters; --json shows all)"
