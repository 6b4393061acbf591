"""`app.dead`: the failed jobs, kept for a person. A view of `app.jobs`, not a second queue."""

from __future__ import annotations

from typing import Any

from treadle.model import Page, State
from treadle.operate.jobs import Jobs


class Dead:
    """Failed jobs, newest first. Filters are those of `app.jobs`."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    async def list(self, *, cursor: str | None = None, limit: int = 50, **filters: Any) -> Page:
        """One page of failed jobs."""
        return await self._jobs.list(cursor=cursor, limit=limit, order="ended", state=State.FAILED, **filters)

    async def retry(self, **filters: Any) -> int:
        """Reopen all that match; answers how many."""
        return await self._jobs.retry(**{**filters, "state": State.FAILED})

    async def purge(self, **filters: Any) -> int:
        """Let all that match go; answers how many."""
        return await self._jobs.delete(**{**filters, "state": State.FAILED})
