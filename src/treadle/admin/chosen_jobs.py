"""The jobs of an act of `app.jobs` that match filters, in groups, and the error for a job that does not fit."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from treadle.admin import acts
from treadle.admin.audit import is_entry
from treadle.core.errors import Stale
from treadle.core.model import Record, State
from treadle.core.query_model import Page
from treadle.tasks.when import HasId


class Condition(NamedTuple):
    """A condition that an act has for each job. `otherwise` says what to do with a job that does not meet it; "": the
    act passes over the job."""

    holds: Callable[[Record], bool]
    otherwise: str = ""


ANY: Final = Condition(lambda row: True)
OPEN: Final = Condition(lambda row: not row.state.final)
TO_REOPEN: Final = Condition(
    lambda row: row.state in (State.FAILED, State.CANCELLED), "only failed and cancelled jobs can be reopened"
)
TO_RUN: Final = Condition(lambda row: row.state is State.READY, "only ready jobs can be run now")
TO_DELETE: Final = Condition(lambda row: row.state.final, "cancel it first")


class Listed(Protocol):
    """The methods of `app.jobs` that find jobs."""

    async def get(self, job: HasId | str) -> Record: ...
    async def list(self, /, **words: Any) -> Page: ...


async def matching(
    jobs: Listed, filters: Mapping[str, Any], condition: Condition, progress: Callable[[int], object] | None
) -> AsyncIterator[Sequence[Record]]:
    """Yield the jobs that match the filters and meet the condition, in groups. `progress` is called after each group
    with the number of jobs examined."""
    examined, cursor = 0, None
    while True:
        page = await jobs.list(cursor=cursor, limit=acts.GROUP, order="oldest", **filters)
        yield [row for row in page.records if row.job.task and condition.holds(row) and not is_entry(row)]
        examined, cursor = examined + len(page.records), page.cursor
        if progress is not None:
            progress(examined)
        if cursor is None:
            return


async def refuse(jobs: Listed, job: HasId | str, condition: Condition) -> None:
    """Raise Stale if the job does not meet the condition."""
    row = await jobs.get(job)
    if is_entry(row):
        raise Stale(row.job.id, "an entry of the audit log, which cannot be changed")
    if not condition.holds(row):
        raise Stale(row.job.id, f"{row.state}: {condition.otherwise}")
