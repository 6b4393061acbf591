"""`app.jobs`: changes jobs, by id or by filter. `job_looks.py` has the part that reads, `job_messages.py` the messages.

Every change settles the job from outside under the version that was read, so it never overwrites a worker's outcome.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from treadle.admin import acts
from treadle.admin.acts import ANY, OPEN, TO_DELETE, TO_PAUSE, TO_REOPEN, TO_RUN, Condition, matching, refuse
from treadle.admin.again import Again
from treadle.admin.audit import is_entry
from treadle.admin.job_approvals import JobApprovals
from treadle.admin.job_filters import ENDED, UNFINISHED, id_of
from treadle.admin.job_looks import Filter, Told
from treadle.core.errors import BadOption
from treadle.core.job import Job
from treadle.core.model import Record, State
from treadle.policy import pauses
from treadle.policy.retry import read_policy
from treadle.serialization import call_codec
from treadle.storage import check_stays
from treadle.tasks.when import HasId


class Jobs(JobApprovals):
    """Jobs of any state, by id or by filter.

    After a move, reading from the old storage returns rows that no longer change, and warns (OldRows). Changing a job
    there and waiting for a result raise StorageMoved.

    Filters: state (a State, its name, or several), status (a state, or the kind of a ready job: queued, scheduled or
    blocked), task, queue, workflow (id of its first job), parent, label, ids, since and before (aware datetimes; match
    jobs created at `since` or later, and before `before`), search (a text in task, arguments, error, labels or key,
    or the beginning of an id).
    """

    async def cancel(
        self,
        /,
        job: HasId | str | None = None,
        *,
        tree: bool = True,
        force: bool = False,
        progress: Told | None = None,
        **filters: Filter,
    ) -> int:
        """Cancel a job with its children (unless tree=False), or all unfinished jobs that match -> how many jobs.

        A durable job that has taken steps, or registered undos, is cleaned up after by a job of its own. `force`: it is
        not; a cleanup job can be cancelled only so. The unfinished cleanup of a job that has ended counts as a job.

        Key and slots are released at once. The worker stops a running function on notification, at the latest with its
        next heartbeat. Many jobs are cancelled in groups, and `progress` is called after each group with the number of
        jobs examined. An interrupted call may be repeated. Raises UnknownJob; Stale for a cleanup job without `force`;
        Locked if another open transaction holds the job, for example by a job that is to wait for it.
        """
        if job is None and filters and not filters.get("ids"):
            filters.setdefault("state", UNFINISHED)
        return await self._act(
            partial(self._acts.cancel, tree=tree, named=job is not None, force=force),
            OPEN if job is None else ANY,
            job,
            filters,
            progress,
        )

    async def retry(self, /, job: HasId | str | None = None, *, progress: Told | None = None, **filters: Filter) -> int:
        """Reopen failed or cancelled jobs, and the dependants and ancestors that ended because of them -> how many,
        without those dependants and ancestors.

        For a job that failed because of its children, the failed children are reopened, and the job waits for them
        again. Attempts count from 0 again.

        Raises UnknownJob; Stale for a job that has succeeded or not ended; KeyHeld if an unfinished job now holds the
        key. By filter, jobs that cannot be reopened are skipped.
        """
        if job is None and filters:
            filters.setdefault("state", (State.FAILED,))
        return await self._act(partial(self._acts.reopen, raising=job is not None), TO_REOPEN, job, filters, progress)

    async def run_now(
        self, /, job: HasId | str | None = None, *, progress: Told | None = None, **filters: Filter
    ) -> int:
        """Queue scheduled jobs now, including retries that are not due yet -> how many jobs.

        Raises UnknownJob; Stale for a job that is not ready.
        """
        if job is None and filters:
            filters.setdefault("state", (State.READY,))
        act = partial(self._acts.apply, chosen=acts.at_once, raising=job is not None)
        return await self._act(act, TO_RUN, job, filters, progress)

    async def pause(self, /, job: HasId | str | None = None, *, progress: Told | None = None, **filters: Filter) -> int:
        """Pause unfinished jobs -> how many. A paused job is not started until it is resumed. A running function is
        stopped as by `cancel`, and runs again when the job is resumed. Deadlines and timeouts go on.

        A job that is paused already stays so. Raises UnknownJob; Stale for a job that has ended, or whose function has
        run; Locked as `cancel`.
        """
        if job is None and filters and not filters.get("ids"):
            filters.setdefault("state", UNFINISHED)
        act = partial(self._acts.apply, chosen=pauses.paused, raising=job is not None)
        return await self._act(act, TO_PAUSE, job, filters, progress)

    async def resume(
        self, /, job: HasId | str | None = None, *, progress: Told | None = None, **filters: Filter
    ) -> int:
        """Resume paused jobs -> how many. A job that slept or was scheduled waits for the rest of its time, if any is
        left; one that waited for jobs waits for them again.

        A job that is not paused stays as it is. Raises UnknownJob; Stale for a job that has ended.
        """
        if job is None and filters:
            filters.setdefault("state", (State.READY,))
        now = (await (await self._storage()).glance(1)).at
        chosen = partial(pauses.resumed, now=now)
        act = partial(self._acts.apply, chosen=chosen, raising=job is not None)
        return await self._act(act, TO_PAUSE, job, filters, progress)

    async def rerun(self, job: HasId | str, *, from_step: str | None = None) -> None:
        """Run a job again from one of its stored steps; None: from its start. It keeps its id, and what was stored
        before that step. Later entries are deleted in the same change, and open children are cancelled before.

        The step is named as in `history`; a sleep or a wait also by its own name. Signals that later waits have
        received are received again. `step_key()` returns other keys than before. Attempts count from 0 again.

        Raises UnknownJob; BadOption for a step that is not stored; Stale for a job that runs, that has not
        begun, or that waits for its children after its function has run; KeyHeld if another job now holds its key.
        """
        await self._again().rerun(id_of(job), from_step)

    async def fork(
        self,
        job: HasId | str,
        *,
        from_step: str | None = None,
        args: Sequence[object] | None = None,
        kwargs: Mapping[str, object] | None = None,
    ) -> Job[Any, Any]:
        """Enqueue a new job that has the task, the options and the arguments of this one, and continues from the stored
        step `from_step`; None: from the start. The job itself does not change, whatever its state.

        args    the arguments of the new job, with `kwargs`; None for both: those of the job

        The new job has another id and no key. Raises UnknownJob; BadOption for a step that is not stored; BadArgument;
        Stale for a row of Treadle's own, or for a job that has not begun.
        """
        encode = None if args is None and kwargs is None else partial(self._payload, args or (), kwargs or {})
        return self.job_of(await self._again().fork(id_of(job), from_step, encode))

    def _again(self) -> Again:
        return Again(self, self._acts, self._client, self._storage)

    def _payload(self, args: Sequence[object], kwargs: Mapping[str, object], row: Record) -> str:
        task = self._tasks.get(row.job.task)
        if task is None:
            return call_codec.encode_foreign_call(args, kwargs)
        later = bool(read_policy(row.job.retry).pass_result)
        return task.signature.encode_call(args, kwargs, first_later=later)

    async def delete(
        self, /, job: HasId | str | None = None, *, progress: Told | None = None, **filters: Filter
    ) -> int:
        """Delete ended jobs -> how many. Rows are pruned within about a minute, unless an unfinished job needs them.

        Raises UnknownJob; Stale for a job that has not ended.
        """
        if job is None and filters and not filters.get("ids"):
            filters.setdefault("state", ENDED)
        act = partial(self._acts.apply, chosen=acts.delete_now, raising=job is not None)
        return await self._act(act, TO_DELETE, job, filters, progress)

    async def _act(
        self,
        act: Callable[[Sequence[Record]], Awaitable[int]],
        condition: Condition,
        job: HasId | str | None,
        filters: Mapping[str, Filter],
        progress: Told | None,
    ) -> int:
        """Act on the job, or on the jobs that match the filters and meet the condition -> how many jobs it changed."""
        if (job is None) == (not filters):
            raise BadOption("job", "give a job or an id, or else at least one filter")
        done = 0
        if job is None:
            async for rows in matching(self, filters, condition, progress):
                done += await act(rows)
        else:
            # Not through the client, whose calls share requests: its task takes two turns of the loop.
            [stored] = await (await self._storage()).get([id := id_of(job)])
            row = await self._visible(id, stored)
            done = 0 if is_entry(row) else await act([row])
        if not done:
            await check_stays(await self._storage())
            if job is not None and condition.otherwise:
                await refuse(self, job, condition)
        return done
