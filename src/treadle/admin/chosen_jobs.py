"""The jobs of an act of `app.jobs`: one job, or those that match filters, in groups."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Protocol

from treadle.admin import acts
from treadle.admin.audit import is_entry
from treadle.core.errors import BadOption, Stale
from treadle.core.model import Record
from treadle.core.query_model import Page
from treadle.tasks.when import HasId

Fits = Callable[[Record], bool]


class Listed(Protocol):
    """The methods of `app.jobs` that find jobs."""

    async def get(self, job: HasId | str) -> Record: ...
    async def list(self, /, **words: Any) -> Page: ...


async def chosen(
    jobs: Listed,
    job: HasId | str | None,
    filters: Mapping[str, Any],
    fits: Fits,
    progress: Callable[[int], object] | None = None,
) -> AsyncIterator[Sequence[Record]]:
    """Yield the job, or the jobs that match the filters in groups; of these, the ones that fit.

    progress  called after each group with the number of jobs examined
    Raises BadOption unless there is either a job or a filter.
    """
    if (job is None) == (not filters):
        raise BadOption("job", "give a job or an id, or else at least one filter")
    if job is not None:
        yield [row for row in [await jobs.get(job)] if fits(row) and not is_entry(row)]
        return
    looked, cursor = 0, None
    while True:
        page = await jobs.list(cursor=cursor, limit=acts.GROUP, order="oldest", **filters)
        yield [row for row in page.records if row.job.task and fits(row) and not is_entry(row)]
        looked, cursor = looked + len(page.records), page.cursor
        if progress is not None:
            progress(looked)
        if cursor is None:
            return


async def refuse(jobs: Listed, job: HasId | str, fits: Fits, otherwise: str) -> None:
    """Raise Stale if the job does not fit; `otherwise` says what to do."""
    row = await jobs.get(job)
    if is_entry(row):
        raise Stale(row.job.id, "an entry of the audit log, which cannot be changed")
    if not fits(row):
        raise Stale(row.job.id, f"{row.state}: {otherwise}")
