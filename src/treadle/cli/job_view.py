"""Formats stored jobs: as text for people, as JSON for programs. Payloads and results are decoded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UnsetType
from msgspec.structs import replace

from treadle.admin import JobAttempt, JobHistory, stored_values
from treadle.admin.failure_groups import FailureGroup
from treadle.app import App
from treadle.cli.listing import picked
from treadle.cli.output import age, iso, lasts, plural, shortened, stamp
from treadle.core.clock import moment_text
from treadle.core.errors import UNREADABLE, error_line, readable
from treadle.core.model import OURS, PUBLISHED, Record, State, progress_of
from treadle.core.ranges import OWN
from treadle.core.redaction import HIDDEN, without_secrets
from treadle.durable import Failure, kind_of, read_entry
from treadle.policy import guilt
from treadle.policy.cleanups import is_cleanup
from treadle.policy.parts import step_of
from treadle.policy.pauses import due_at, paused_at
from treadle.workflow.approvals import APPROVAL, request_name
from treadle.workflow.locks import lock_of
from treadle.workflow.signals import SIGNAL, signal_name

ENCODE = msgspec.json.Encoder(enc_hook=str).encode
GROUPS = ("jobs", "task", "queue", "first", "last", "sample", "error")
VERBS = {"signal": ("waits", "waited"), "timeout": ("lasts", "lasted")}
COLUMNS = ("id", "state", "task", "queue", "attempts", "created", "what")


def call_of(app: App, row: Record) -> tuple[Any, Any]:
    """Positional and keyword arguments; the stored text if they cannot be decoded."""
    if HIDDEN in row.job.payload:  # a value that is hidden does not fit its annotation
        return stored_values.arguments(row.job.payload)
    try:
        return app.jobs.arguments(row)
    except Exception:  # the task's own codec and classes may raise anything
        return stored_values.arguments(row.job.payload)


def redacted(app: App, rows: Sequence[Record]) -> list[Record]:
    """The rows as people may see them."""
    return [app._core.redactor.row(row) for row in rows]


def redacted_group(app: App, group: FailureGroup, row: Record | None) -> FailureGroup:
    """A group of failures as people may see it; `row`: its newest job."""
    if row is None:
        return replace(group, signature=without_secrets(group.signature), error=without_secrets(group.error))
    hide = app._core.redactor.text
    return replace(group, signature=hide(group.signature, row), error=hide(group.error, row))


def json_of(text: str | None) -> Any:
    """The value of a stored text, as JSON can carry it."""
    return None if text is None else stored_values.carried(stored_values.value(text), text, ENCODE)


def note_of(row: Record) -> str:
    """The progress that the task noted, such as `40% half`."""
    share, text = progress_of(row.note)
    return (text or "") if share is None else f"{share:.0%} {text}".strip()


def steps(row: Record) -> list[tuple[str, str]]:
    """The stored steps, sleeps and waits of durable code in order, each with its state.

    Any other checkpoint, such as one of a schedule, is shown as its text.
    """
    own = row.job.task.startswith(OWN)
    pairs = [(name, text) for name, text in row.checkpoints if not name.startswith(OURS)]
    return [(name, text if own else _became(name, text, row.ended_at)) for name, text in pairs]


def published(row: Record) -> list[tuple[str, str]]:
    """The values that the function has published, by name."""
    return [(name[len(PUBLISHED) :], text) for name, text in row.checkpoints if name.startswith(PUBLISHED)]


def _became(name: str, text: str, ended_at: float | None) -> str:
    """The state of a step; `ended_at`: when its job ended, if it has."""
    try:
        entry = read_entry(text)
    except UNREADABLE:
        return text
    failure = entry.failure.words if isinstance(entry.failure, Failure) else ""
    if entry.is_tried and not entry.child and isinstance(entry.until, float):
        return f"try {entry.tries} failed, the next one is due at {moment_text(entry.until)}: {failure}"
    if entry.lock and not entry.exit and not failure:
        return "has the lock" if entry.has_value else "waits for the lock"
    kind = kind_of(name, entry)
    if kind == "approval" and entry.result is None and not entry.gave_up:
        return "waits for a decision"
    if entry.child and entry.result is None and not failure and not entry.gave_up:
        return f"waits for {'its jobs' if entry.child == 'many' else entry.child}"
    if entry.cut:
        return f"has passed at {entry.cut!r}"
    if not isinstance(entry.until, UnsetType):
        now, past = VERBS.get(kind, ("sleeps", "slept"))
        if ended_at is not None and entry.until > ended_at:
            return f"{past} until its job ended"
        return f"{past if entry.over or ended_at is not None else now} until {moment_text(entry.until)}"
    if failure:
        return f"failed: {failure}"
    return "timed out" if entry.gave_up else "done"


def _name(row: Record) -> str:
    """The name of the task, or the kind of a row without a task."""
    if (lock := lock_of(row.job)) is not None:
        return f"(lock {lock.lock})"
    if row.job.task:
        step = step_of(row.job)
        part = "cleanup" if is_cleanup(row.job) else f"step {step}" if step else ""
        return f"{row.job.task} ({part})" if part else row.job.task
    if (request := request_name(row)) is not None:
        return f"(approval {request})"
    signal = signal_name(row)
    return "(promise)" if signal is None else f"(signal {signal})"


def what(row: Record, now: float) -> str:
    """The last column: the detail that matters in this state."""
    because = error_line(row.error)
    if row.state is State.RUNNING:
        held = f"for {lasts(max(0.0, now - (row.started_at or now)))}"
        held = f"waits to run alone, {held}" if _waits_alone(row) else held
        return f"{held}, {note_of(row)}" if row.note else held
    if row.state is State.READY and row.queue_position is None:
        since = paused_at(row)
        when = f"due {age(row.due_at, now)}" if since is None else f"paused {age(since, now)}"
        when = f"blocked by {row.blocked_on}" if row.blocked_on else when
        return f"{when}: {because}" if because else when
    if row.state is State.WAITING:
        return f"for {row.pending} of {len(set(row.after))} jobs" if row.after else "to be settled"
    if row.state is State.SUCCEEDED:
        return f"took {lasts(row.ended_at - row.started_at)}" if row.ended_at and row.started_at else ""
    return f"{row.reason}: {because}" if because and row.reason else because


def _waits_alone(row: Record) -> bool:
    """Whether a worker holds this suspect, and has not called its function."""
    return row.state is State.RUNNING and guilt.standing(row) == "waits"


def _suspect(row: Record) -> str:
    stands = guilt.standing(row)
    return "" if stands is None else f": a suspect, {guilt.STANDS[stands]}"


def line(row: Record, now: float) -> tuple[object, ...]:
    """A job for people, in one line."""
    created, text = age(row.created_at, now), shortened(what(row, now), 60)
    return row.id, str(row.state), _name(row), row.job.queue, row.attempt, created, text


def group_line(group: FailureGroup, now: float) -> tuple[object, ...]:
    """A group of failures for people."""
    first, last = age(group.first, now), age(group.last, now)
    return group.jobs, group.task, group.queue, first, last, group.sample, shortened(group.signature, 100)


def plain_group(group: FailureGroup) -> dict[str, Any]:
    """A group of failures for programs."""
    times = {"first": iso(group.first), "last": iso(group.last)}
    return {**picked(group, "jobs", "task", "queue", "signature"), **times, **picked(group, "sample", "error")}


def plain_runs(history: JobHistory) -> list[dict[str, Any]]:
    """The last runs of a job for programs."""
    return [
        {
            "attempt": attempt.number,
            **picked(attempt, "reopening", "outcome", "reason", "error", "worker"),
            "started_at": iso(attempt.started_at),
            "ended_at": iso(attempt.ended_at),
            "delay": attempt.delay,
        }
        for attempt in history.attempts
    ]


def plain(app: App, row: Record) -> dict[str, Any]:
    """A job for programs. Times are ISO 8601 in UTC, durations are in seconds."""
    args, kwargs = stored_values.carried_call(*call_of(app, row), row.job.payload, ENCODE)
    job = row.job
    times = ("created_at", "started_at", "ended_at", "deadline_at", "expires_at")
    return {
        **picked(job, "id", "task", "queue", state=str(row.state), reason=row.reason),
        "args": args,
        "kwargs": kwargs,
        "result": json_of(row.result),
        "error": readable(row.error),
        **picked(row, "attempt", "lost", suspect=guilt.standing(row)),
        **picked(job, "priority", "key", "lane", labels=list(job.labels), headers=dict(job.headers)),
        "limits": [name for name, _ in job.limits],
        "after": list(row.after),
        "pending": row.pending,
        "workflow": job.root or job.id,
        "parent": job.parent,
        "worker": row.worker,
        "steps": dict(steps(row)),
        "published": {name: json_of(text) for name, text in published(row)},
        "note": json_of(row.note),
        "blocked_on": row.blocked_on if row.queue_position is None else None,
        **{name: iso(getattr(row, name)) for name in times},
        "due_at": iso(due_at(row)),
        "paused_at": iso(paused_at(row)),
    }


def shown(app: App, row: Record, why: str, now: float) -> list[tuple[str, object]]:
    """A job for people: pairs of name and value."""
    job, call = row.job, _cut(_call(app, row))
    key = job.key.partition(" ")[2] if job.key else None
    after = ", ".join(row.after[:5]) + (f" and {len(row.after) - 5} more" if len(row.after) > 5 else "")
    waits = None if row.state.final or all(up.startswith((SIGNAL, APPROVAL)) for up in row.after) else after
    due = "lease ends" if row.state is State.RUNNING else "due"
    done = ", ".join(f"{name} ({shortened(what, 60)})" for name, what in steps(row))
    values = ", ".join(
        f"{name}={stored_values.shown(stored_values.value(text), text)}" for name, text in published(row)
    )
    return [
        ("id", job.id),
        ("state", f"{row.state}{', but it waits to run alone' if _waits_alone(row) else ''}"),
        ("why", why),
        ("call", f"{_name(row)}({call})"),
        ("queue", job.queue),
        ("priority", job.priority or None),
        ("attempts", row.attempt),
        ("lost", f"{plural(row.lost, 'expired lease')}{_suspect(row)}" if row.lost else None),
        ("worker", row.worker),
        ("key", key),
        ("lane", job.lane),
        ("limits", ", ".join(f"{name}={cost}" if cost > 1 else name for name, cost in job.limits)),
        ("labels", ", ".join(job.labels)),
        ("headers", ", ".join(f"{name}={text}" for name, text in job.headers)),
        ("waits for", waits),
        ("workflow", job.root),
        ("parent", job.parent),
        ("steps", done),
        ("published", _cut(values)),
        ("progress", note_of(row)),
        ("created", stamp(row.created_at, now)),
        ("started", stamp(row.started_at, now)),
        (due, stamp(due_at(row), now) if not row.state.final else None),
        ("paused", stamp(paused_at(row), now)),
        ("deadline", stamp(row.deadline_at, now)),
        ("ended", stamp(row.ended_at, now)),
        ("kept until", stamp(row.expires_at, now)),
        ("result", _result(row)),
        ("error", readable(row.error)),
    ]


def runs(history: JobHistory) -> str:
    """The last runs of a job for people, a line for each."""
    return "\n".join(map(_run, history.attempts))


def streams(id: str, history: JobHistory) -> str:
    """The streams of a job, and how to read them."""
    return f"{', '.join(history.streams)}, see `treadle jobs follow {id} NAME`" if history.streams else ""


def _run(attempt: JobAttempt) -> str:
    """Such as `1 retrying, took 0.2 s, on w1, again after 3 s: ValueError: no such card`."""
    parts = [f"{attempt.number} {attempt.outcome}"]
    if attempt.started_at is not None and attempt.ended_at is not None:
        parts.append(f"took {lasts(attempt.ended_at - attempt.started_at)}")
    if attempt.worker:
        parts.append(f"on {attempt.worker}")
    if attempt.delay is not None:
        parts.append(f"again after {lasts(attempt.delay)}")
    because = error_line(attempt.error) or attempt.reason
    return ", ".join(parts) + (f": {because}" if because else "")


def _result(row: Record) -> str | None:
    return None if row.result is None else _cut(stored_values.shown(stored_values.value(row.result), row.result))


def _call(app: App, row: Record) -> str:
    args, kwargs = call_of(app, row)
    try:
        return ", ".join([*(repr(arg) for arg in args), *(f"{name}={arg!r}" for name, arg in kwargs.items())])
    except Exception:  # a number with too many digits, or the user's `__repr__`
        return repr(row.job.payload)


def _cut(text: str, most: int = 2_000) -> str:
    return text if len(text) <= most else f"{text[:most]}... ({len(text):,} characters; --json shows all)"
