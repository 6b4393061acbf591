"""Converts jobs to JSON for the functions, and their rows to Records, in the layout of `functions/row_details.sql`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from treadle.core import defaults
from treadle.core.model import NewJob, Record, State
from treadle.storage.row_rules import OWN_ID, rank

STATES: Final = tuple(State)
NUMBER: Final = {state: number for number, state in enumerate(STATES)}

to_json = msgspec.json.Encoder().encode
from_json = msgspec.json.Decoder().decode
decode = msgspec.json.Decoder(NewJob).decode

_DETAILS: Final = (  # fields of a Record that a plain row does not have, as `details_of` returns them
    *("after", "pending", "failures_allowed", "function_done", "deadline_at", "blocked_on", "reopenings"),
    *("result", "value", "error", "reason", "note", "ended_at", "expires_at", "checkpoints"),
)
ROW_COLUMNS: Final = (
    "j.spec, j.state, j.version, j.attempt, j.lost, j.worker, j.queue_position, j.return_position, j.due_at, "
    "j.created_at, j.started_at, j.updated_at"
)
STEPS: Final = (
    "CASE WHEN j.checkpoints THEN (SELECT json_agg(json_build_array(m.name, m.value) ORDER BY m.num) "
    "FROM {schema}.checkpoints m WHERE m.id = j.id) END"
)
OWN_STEPS: Final = STEPS.replace("m.id = j.id", "m.id = j.id AND starts_with(m.name, 'treadle:')")  # see `Query.whole`
ROW: Final = (  # of `job j`; the schema is filled in later
    f"{ROW_COLUMNS}, CASE WHEN NOT {{schema}}.has_no_details(j) THEN {{schema}}.details_of(j, {STEPS}) END"
)
ENDED_ROW: Final = f"{ROW_COLUMNS}, {{schema}}.details_of(ROW(j.*)::{{schema}}.job, {STEPS})"  # of `ended j`


# --- text: PostgreSQL cannot store NUL, so NUL is stored as ESCAPE 0, and ESCAPE as ESCAPE ESCAPE

_ESCAPE: Final = "\x1a"


def escaped(text: str) -> str:
    """The stored form of a string."""
    if "\0" in text or _ESCAPE in text:
        return text.replace(_ESCAPE, _ESCAPE + _ESCAPE).replace("\0", _ESCAPE + "0")
    return text


def unescaped(text: str) -> str:
    """The original of a stored string."""
    if _ESCAPE not in text:
        return text
    parts = (part.replace(_ESCAPE + "0", "\0") for part in text.split(_ESCAPE + _ESCAPE))
    return _ESCAPE.join(parts)


def _escaped_all(value: Any) -> Any:
    if isinstance(value, str):
        return escaped(value)
    if isinstance(value, NewJob):  # in a JSON string: the database cannot read it as an object
        return escaped(to_json(value).decode())
    if isinstance(value, list | tuple):
        return [_escaped_all(part) for part in value]
    if isinstance(value, dict):
        return {_escaped_all(name): _escaped_all(part) for name, part in value.items()}
    if isinstance(value, msgspec.Struct):
        return _escaped_all(msgspec.to_builtins(value))
    return value


def _unescaped_all(value: Any) -> Any:
    if isinstance(value, str):
        return unescaped(value)
    if isinstance(value, list):
        return [_unescaped_all(part) for part in value]
    return value


def text(value: Any) -> str:
    """The JSON parameter of a function."""
    data = to_json(value)
    if b"\\u0000" in data or b"\\u001a" in data:
        data = to_json(_escaped_all(value))
    return data.decode()


def array(values: Sequence[str]) -> str:
    """A text[] parameter: every element in quotes."""
    joined = "\0".join(values)
    if _ESCAPE in joined or joined.count("\0") >= len(values):
        joined = "\0".join(map(escaped, values))
    return '{"' + joined.replace("\\", "\\\\").replace('"', '\\"').replace("\0", '","') + '"}'


def numbers(values: Sequence[float]) -> str:
    """A parameter that is an array of numbers."""
    return "{" + ",".join(map(repr, values)) + "}"


# --- rows


def record(row: Sequence[Any], job: NewJob | None = None) -> Record:
    """The record of a row read with ROW. `job`: its NewJob, if it is known already."""
    spec, state, version, attempt, lost, worker, position, return_to, due_at, created, started, updated, more = row
    brief = Record(
        job=decode(spec) if job is None else job,
        version=version,
        state=STATES[state],
        queue_position=position,
        return_position=return_to,
        due_at=due_at,
        attempt=attempt,
        lost=lost,
        worker=None if worker is None else unescaped(worker),
        created_at=created,
        started_at=started,
        updated_at=updated,
    )
    return brief if more is None else replace(brief, **_details(more))


def _details(more: str) -> dict[str, Any]:
    values = from_json(more)
    if "\\u001a" in more:
        values = _unescaped_all(values)
    details = dict(zip(_DETAILS, values, strict=True))
    details["after"] = tuple(details["after"] or ())
    details["checkpoints"] = tuple(map(tuple, details["checkpoints"] or ()))
    for name in ("deadline_at", "ended_at", "expires_at"):
        if details[name] is not None:
            details[name] = float(details[name])  # JSON reads whole seconds as integers
    return details


# --- jobs


def is_plain(job: NewJob) -> bool:
    """Whether the job is queued at once, as one row and at most labels, and sets no column that has a default. An id of
    Treadle's own may have to be refused, which the bulk path cannot do."""
    return job.key is None and job.lease is None and not job.id.startswith(OWN_ID) and _is_simple(job)


def is_keyed(job: NewJob) -> bool:
    """Whether the job is plain but for its key and its lease, and a held key returns its holder."""
    return job.key is not None and job.key_conflict == "keep" and job.nonce is None and _is_simple(job)


def _is_simple(job: NewJob) -> bool:
    return not (
        job.after
        or job.delay > 0
        or job.run_at is not None
        or job.lane is not None
        or job.function_done
        or job.aging
        or job.root is not None
        or job.parent is not None
        or job.deadline is not None
        or job.failures_allowed != 0
        or job.required is not None
        or not job.task
        or job.reach
        or any(label != escaped(label) for label in job.labels)
    )


def plain_columns(jobs: Sequence[NewJob]) -> list[str | None]:
    """Parameters of `enqueue_plain` for plain jobs, one array for each column; None: the default for all of them."""
    return [
        array([job.id for job in jobs]),
        array([job.task for job in jobs]),
        array([job.queue for job in jobs]),
        array([to_json(job).decode() for job in jobs]),
        numbers([job.priority for job in jobs]) if any(job.priority for job in jobs) else None,
        numbers([job.keep for job in jobs]) if any(job.keep != defaults.KEEP for job in jobs) else None,
        numbers([job.keep_failed for job in jobs])
        if any(job.keep_failed != defaults.KEEP_FAILED for job in jobs)
        else None,
        *_limit_columns(jobs),
    ]


def plain_extras(jobs: Sequence[NewJob]) -> tuple[str | None, bool]:
    """More parameters of `enqueue_plain`: each job's labels, as text; and whether the caller has chosen an id."""
    return _label_column(jobs), any(job.nonce is not None for job in jobs)


def key_columns(jobs: Collection[NewJob]) -> tuple[str | None, str, str | None, str | None]:
    """More parameters of `enqueue_keyed`: labels, keys, the words of `_later`, leases. None: no job has any."""
    later = [_later(job) for job in jobs]
    details = array([text(fields) if fields else "" for fields in later]) if any(later) else None
    leases = ",".join("NULL" if job.lease is None else repr(job.lease) for job in jobs)
    some = any(job.lease is not None for job in jobs)
    return _label_column(jobs), array([job.key or "" for job in jobs]), details, f"{{{leases}}}" if some else None


def _label_column(jobs: Collection[NewJob]) -> str | None:
    """Each job's labels, as text; None: there are none."""
    if not any(job.labels for job in jobs):
        return None
    return array([array(job.labels) if job.labels else "" for job in jobs])


def _limit_columns(jobs: Sequence[NewJob]) -> tuple[str | None, str | None]:
    """Limits and costs, as text for each job: an array cannot contain arrays of different lengths."""
    if not any(job.limits for job in jobs):
        return None, None
    return (
        array([array([name for name, _ in job.limits]) if job.limits else "" for job in jobs]),
        array([numbers([cost for _, cost in job.limits]) if job.limits else "" for job in jobs]),
    )


def job_words(job: NewJob) -> dict[str, Any]:
    """The parameters of a job that is not plain."""
    fields: dict[str, Any] = {
        "id": job.id,
        "task": job.task,
        "queue": job.queue,
        "spec": job,
        "rank": rank(job),
        "failures_allowed": job.failures_allowed,
    }
    if job.limits:
        fields["limits"] = [name for name, _ in job.limits]
        fields["costs"] = [cost for _, cost in job.limits]
    rare = (
        ("keep", job.keep if job.keep != defaults.KEEP else None),
        ("keep_failed", job.keep_failed if job.keep_failed != defaults.KEEP_FAILED else None),
        ("delay", job.delay if job.delay > 0 else None),
        ("deadline", job.deadline),
        ("run_at", job.run_at),
        ("deadline_at", job.deadline_at),
        ("timeout", job.wait_timeout),
        ("function_done", job.function_done or None),
        ("lease", job.lease),
        ("key", job.key),
        ("lane", job.lane),
        ("root", job.root),
        ("parent", job.parent),
        ("after", job.after or None),
        ("labels", job.labels or None),
        ("required", job.required),
        ("conflict", job.key_conflict if job.key is not None else None),
        ("words", _later(job)),
        ("reach", job.reach or None),
        ("nonce", job.nonce),
    )
    fields.update((name, value) for name, value in rare if value is not None)
    return fields


def _later(job: NewJob) -> dict[str, Any] | None:
    """Values without a column of their own that functions may need after the job is stored."""
    fields: dict[str, Any] = {
        name: value
        for name, value in (
            ("delay", job.delay if job.delay > 0 else None),
            ("run_at", job.run_at),
            ("aging", job.aging or None),
            ("priority", job.priority if job.aging else None),
            ("window", job.key_window),
            ("started", job.key if job.key_until == "started" else None),
            ("required", job.required),
            ("stride", job.stride if job.lane is not None else None),
            ("deadline", job.deadline),
            ("deadline_at", job.deadline_at),
            ("function_done", job.function_done or None),
        )
        if value is not None
    }
    if job.failures_allowed != 0:
        fields["failures_allowed"] = job.failures_allowed
    return fields or None
