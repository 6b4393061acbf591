"""Sends new jobs as arrays or JSON, and reads the rows that are returned for them.

`functions/enqueue.sql`, `enqueue_keyed.sql` and `prepare_jobs.sql` decide what is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from treadle.core.errors import IdTaken, KeyHeld, QueueFull, UnknownUpstream
from treadle.core.model import NewJob, Record
from treadle.storage.locked_calls import PATIENCE
from treadle.storage.postgres.connection import Row
from treadle.storage.postgres.rows import (
    escaped,
    from_json,
    is_keyed,
    is_plain,
    job_words,
    key_columns,
    plain_columns,
    plain_extras,
    record,
    text,
    unescaped,
)
from treadle.storage.postgres.topics import Caller, noting
from treadle.storage.row_rules import CircularWait, new_record, taken_by

# The columns of new_jobs (functions/_types.sql): `plain_columns`, then `key_columns` or none.
_PLAIN: Final = (
    "%s::text[], %s::text[], %s::text[], %s::text[], %s::smallint[], %s::float8[], %s::float8[], %s::text[], "
    "%s::text[], %s::text[]"
)
_PLAIN_JOBS: Final = f"({_PLAIN}, NULL, NULL, NULL)::{{schema}}.new_jobs"
_KEYED_JOBS: Final = f"({_PLAIN}, %s::text[], %s::text[], %s::float8[])::{{schema}}.new_jobs"
LOCKED: Final = "SELECT * FROM {schema}.locked_jobs(%s::float8, %s::json, %s::int)"

# ms that an enqueue waits for a lock of another transaction. Ordinary transactions end within 20 to 100 ms; while one
# call waits, the calls that share its request wait too.
BRIEF: Final = 250
PATIENCE_MS: Final = int(PATIENCE * 1000)  # in a user's transaction, where the call cannot be repeated on its own
EXAMINED: Final = 200  # ms in which `locked_jobs` looks for the jobs that would wait


class Forms(NamedTuple):
    """The statements for plain jobs, jobs with keys, and any jobs."""

    plain: str
    keyed: str
    any: str
    patience: int  # ms to wait for a lock of another transaction


def _statement(call: str) -> str:
    return noting(f"SELECT * FROM {{schema}}.{call}", 14)


OWN: Final = Forms(
    _statement(f"enqueue_plain(%s::float8, {_PLAIN_JOBS}, %s::boolean, %s::int)"),
    _statement(f"enqueue_keyed(%s::float8, {_KEYED_JOBS}, %s::int)"),
    _statement("enqueue_any(%s::float8, %s::json, %s::int)"),
    BRIEF,
)
WITHIN: Final = Forms(
    _statement(f"enqueue_within(%s::float8, {_PLAIN_JOBS}, NULL, %s::boolean, %s::int)"),
    _statement(f"enqueue_within(%s::float8, {_KEYED_JOBS}, NULL, false, %s::int)"),
    _statement("enqueue_within(%s::float8, NULL, %s::json, false, %s::int)"),
    PATIENCE_MS,
)


async def enqueue(run: Caller, jobs: Sequence[NewJob], now: float | None, forms: Forms = OWN) -> list[Record]:
    """Raises UnknownUpstream, KeyHeld, IdTaken, QueueFull, Locked; then nothing is stored."""
    wanted = to_store(jobs)
    once = {job.id: job for job in wanted}
    if len(once) == len(wanted) and all(map(is_plain, wanted)):
        # in the server's order: it looks up ended jobs from the first to the last of these ids
        in_order = [once[id] for id in sorted(once, key=escaped)]
        extras = plain_extras(in_order)
        patience = forms.patience if extras[1] else None  # no other transaction can have a generated id
        head, *known = await run.call(forms.plain, [now, *plain_columns(in_order), *extras, patience])
        if head[-1] is None:
            return _answers(jobs, once, head[10], known)
    elif len(once) == len(wanted) and all(map(is_keyed, wanted)):
        head, *known = await run.call(forms.keyed, [now, *plain_columns(wanted), *key_columns(wanted), forms.patience])
        if head[-1] is None:
            return _answers(jobs, once, head[10], known)
    rows = await run.call(forms.any, [now, text([job_words(job) for job in wanted]), forms.patience])
    if rows[0][0] is None:
        raise refusal(rows[0][-1])
    by_id = {unescaped(row[0]): record(row[1:]) for row in rows}
    return [by_id[job.id] for job in jobs]


async def locked_jobs(run: Caller, jobs: Sequence[NewJob], now: float | None) -> list[str]:
    """The ids of the jobs that would wait for a lock of another transaction."""
    rows = await run.run(LOCKED, [now, text([job_words(job) for job in to_store(jobs)]), EXAMINED])
    return [unescaped(id) for (id,) in rows]


def to_store(jobs: Sequence[NewJob]) -> list[NewJob]:
    """Returns a job for each id, and after them the jobs that are refused because an earlier job has their id."""
    once: dict[str, NewJob] = {}
    for job in jobs:
        once.setdefault(job.id, job)
    if len(once) == len(jobs):
        return list(once.values())
    return [*once.values(), *(job for job in jobs if job is not once[job.id] and taken_by(job, once[job.id]))]


def _answers(jobs: Sequence[NewJob], once: dict[str, NewJob], moment: float, known: Sequence[Row]) -> list[Record]:
    """The row of each job: a known row, or, if it has none, the row that was just stored."""
    rows = {unescaped(row[0]): record(row[1:]) for row in known}
    for id, job in once.items():
        if id not in rows:
            rows[id] = new_record(job, moment)
    return [rows[job.id] for job in jobs]


def refusal(why: str) -> KeyHeld | UnknownUpstream | IdTaken | CircularWait | QueueFull:
    """A refusal of the functions as the library's error."""
    kind, *names = from_json(why)
    first, second, *more = (unescaped(name) if name is not None else "" for name in names)
    if kind == "taken":
        return IdTaken(first, second, more[0], bool(more[1]))
    if kind == "circle":
        return CircularWait(first, second, more[0])
    if kind == "full":
        return QueueFull(first, int(second), int(more[0]), int(more[1]))
    if kind == "beyond":
        return IdTaken(first, None, second, False)
    return KeyHeld(first, second) if kind == "held" else UnknownUpstream(first, second)
