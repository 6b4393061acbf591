"""Jobs on their way in: as arrays or JSON, in the order of their ids, and the rows that answer them.

Without it nothing gets in. What is decided about them is decided in `functions/enqueue.sql` and `store.sql`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from treadle.errors import KeyHeld, UnknownJob
from treadle.model import NewJob, Record
from treadle.storage.postgres.connection import Runner
from treadle.storage.postgres.rows import (
    from_json,
    heard,
    is_plain,
    job_words,
    new_record,
    plain_columns,
    record,
    said,
    text,
)  # fmt: skip

PLAIN: Final = (
    "SELECT * FROM {schema}.enqueue_plain(%s::float8, %s::text[], %s::text[], %s::text[], %s::text[], %s::smallint[], "
    "%s::float8[], %s::float8[], %s::text[], %s::text[])"
)
ANY: Final = "SELECT * FROM {schema}.enqueue_any(%s::float8, %s::json)"


async def enqueue(run: Runner, jobs: Sequence[NewJob], now: float | None) -> list[Record]:
    """Raises UnknownJob, KeyHeld; nothing is stored then."""
    once = named_once(jobs)
    if all(map(is_plain, once.values())):
        return await _plain(run, jobs, once, now)
    rows = await run.run(ANY, [now, text([job_words(job) for job in once.values()])])
    if rows[0][0] is None:
        raise refusal(rows[0][-1])
    found = {heard(row[0]): record(row[1:]) for row in rows}
    return [found[job.id] for job in jobs]


def named_once(jobs: Sequence[NewJob]) -> dict[str, NewJob]:
    """By id, in the order of the call; of a job that is named twice the first one's words."""
    once: dict[str, NewJob] = {}
    for job in jobs:
        once.setdefault(job.id, job)
    return once


async def _plain(run: Runner, jobs: Sequence[NewJob], once: dict[str, NewJob], now: float | None) -> list[Record]:
    # as the server sorts what is stored: it looks from the first of them to the last
    in_order = [once[id] for id in sorted(once, key=said)]
    head, *known = await run.run(PLAIN, [now, *plain_columns(in_order)])
    moment = head[10]
    rows = {heard(row[0]): record(row[1:]) for row in known}
    for id, job in once.items():
        if id not in rows:
            rows[id] = new_record(job, moment)
    return [rows[job.id] for job in jobs]


def refusal(words: str) -> KeyHeld | UnknownJob:
    """What the functions refuse, as the library's error."""
    kind, *names = from_json(words)
    first, second = (heard(name) if name is not None else "" for name in names)
    return KeyHeld(first, second) if kind == "held" else UnknownJob(first, second)
