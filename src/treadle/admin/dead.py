"""`app.dead`: the failed jobs (dead letters). It is a view of `app.jobs`, not a second queue."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from treadle.admin.acts import GROUP
from treadle.admin.failure_groups import SCAN, FailureGroups, Shown, as_stored, read_groups
from treadle.admin.job_looks import Told
from treadle.admin.jobs import Jobs
from treadle.core.errors import BadOption
from treadle.core.model import State
from treadle.core.query_model import Page
from treadle.storage import check_stays


class Dead:
    """Failed jobs, latest first. The filters are those of `app.jobs`."""

    def __init__(self, jobs: Jobs, shown: Shown = as_stored) -> None:
        self._jobs, self._storage, self._shown = jobs, jobs._storage, shown

    def within(self, queues: tuple[str, ...], shown: Shown = as_stored) -> Dead:
        """A view for a caller whose rights cover these queues only; (): all. `shown`: rows as it may see them."""
        return Dead(self._jobs.within(queues), shown)

    async def list(self, /, *, cursor: str | None = None, limit: int = 50, **filters: Any) -> Page:
        """List one page of failed jobs. Rows without a task are left out, so a page may have fewer than `limit`."""
        page = await self._jobs.list(cursor=cursor, limit=limit, order="ended", state=State.FAILED, **filters)
        return replace(page, records=tuple(row for row in page.records if row.job.task))

    async def groups(
        self,
        /,
        *,
        scan: int = SCAN,
        queue: str | None = None,
        task: Any = None,
        cursor: str | None = None,
    ) -> FailureGroups:
        """Group the newest failed jobs by task, queue and error signature, the largest group first.

        `scan` is the number of jobs to look at, 1 to 10,000. `cursor` continues with earlier failures. Raises
        BadOption.
        """
        name = task if task is None or isinstance(task, str) else task.name
        storage = await self._storage()
        groups = await read_groups(
            storage, scan=scan, queue=queue, task=name, cursor=cursor, queues=self._jobs.reach, shown=self._shown
        )
        if not groups.groups and cursor is None:
            await self._jobs.names.nothing_found(queue, name, None)
        return groups

    async def retry(self, /, *, limit: int | None = None, progress: Told | None = None, **filters: Any) -> int:
        """Reopen all failed jobs that match, or the `limit` oldest -> how many jobs this call reopened.

        Jobs that failed because of them wait for them again. Jobs whose key another job now holds are skipped.
        `progress` is called after each group with the number of jobs examined. Raises BadOption.
        """
        filters = {**filters, "state": State.FAILED}
        if limit is None:
            return await self._jobs.retry(progress=progress, **filters)
        most: object = limit
        if isinstance(most, bool) or not isinstance(most, int) or limit < 1:
            raise BadOption("limit", f"expected 1 or more, or None for all, found {limit!r}")
        done, examined, chosen = 0, 0, list[str]()
        async for row in self._jobs.iterate(**filters):
            chosen.append(row.job.id)
            if len(chosen) == min(GROUP, limit - done):
                done += await self._jobs.retry(ids=chosen, state=State.FAILED)
                examined += len(chosen)
                chosen.clear()
                if progress is not None:
                    progress(examined)
                if done >= limit:
                    return done
        if chosen:
            return done + await self._jobs.retry(ids=chosen, state=State.FAILED)
        if not done:
            await check_stays(await self._storage())
        return done

    async def purge(self, /, *, progress: Told | None = None, **filters: Any) -> int:
        """Delete all failed jobs that match -> how many jobs this call deleted."""
        return await self._jobs.delete(progress=progress, **{**filters, "state": State.FAILED})
