"""`app.workflows`: lists workflows and draws one as a graph.

A workflow is a job with at least one other job below it; it has the id of its first job, the root.
"""

from __future__ import annotations

import asyncio
import builtins
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from treadle.admin.job_filters import id_of, query_of
from treadle.admin.moved_looks import Moved
from treadle.admin.workflow_graph import FOLD, Graph, graph
from treadle.core.errors import BadOption, UnknownJob
from treadle.core.model import Record, State
from treadle.core.query_model import Query
from treadle.core.ranges import OWN
from treadle.storage import cursor_of, pages
from treadle.storage.contract import Storage
from treadle.storage.row_rules import within as in_reach
from treadle.tasks.when import HasId
from treadle.workflow.plan import FLOW

COUNTED: Final = 1_000  # jobs of one workflow that a list counts
BUDGET: Final = 10_000  # jobs that one list reads to count them; then the page ends
DRAWN: Final = 5_000  # jobs that a graph reads: their layout takes 0.5 s at most
STEP: Final = 500  # rows per call
LOOKED: Final = 1_000  # rows that one call looks at
SCAN: Final = 10_000  # rows that a list looks at by default: 0.07 s on SQLite
MOST: Final = 100  # workflows of one page


class Workflow(Struct, frozen=True, kw_only=True):
    """One workflow in a list, with the counts of its jobs, the root included.

    task   that of the root; "treadle.flow" if it was enqueued as a composition
    done   jobs that have ended, in any way; failed: those that failed or were cancelled
    capped only the first 1,000 jobs were counted
    """

    id: str
    task: str
    queue: str
    state: State
    created_at: float
    ended_at: float | None
    jobs: int
    done: int
    failed: int
    running: int
    capped: bool


class WorkflowPage(Struct, frozen=True, kw_only=True):
    """One page, newest first. `cursor` continues after it; None: this was the last one.

    scanned     the jobs that the call looked at to find roots
    scanned_to  the creation of the last one of them, if a cursor remains
    """

    workflows: Sequence[Workflow]
    cursor: str | None
    scanned: int
    scanned_to: float | None


class Workflows:
    """The workflows of a storage."""

    def __init__(self, storage: Callable[[], Awaitable[Storage]], moved: Moved, reach: tuple[str, ...] = ()) -> None:
        self._storage, self._moved, self._reach = storage, moved, reach

    def within(self, queues: tuple[str, ...]) -> Workflows:
        """A view for a caller whose rights cover these queues only; (): all queues. Jobs of other queues are left out,
        and a workflow whose root is in another queue is unknown."""
        return Workflows(self._storage, self._moved, queues)

    async def list(
        self,
        /,
        *,
        cursor: str | None = None,
        limit: int = 20,
        state: State | str | Sequence[State | str] | None = None,
        queue: str | None = None,
        scan: int | None = None,
    ) -> WorkflowPage:
        """One page of workflows, by the creation of their roots, newest first.

        The call looks at `scan` jobs at most to find roots (default: 10,000), and reads 10,000 jobs to count them. The
        page may then be short, or empty, and still have a cursor. Raises BadOption.
        """
        if not 1 <= limit <= MOST:
            raise BadOption("limit", f"expected 1 to {MOST}, found {limit!r}")
        storage = await self._storage()
        most = min(storage.capabilities.scan, SCAN) if scan is None else scan
        query = query_of({"state": state, "queue": queue}, cursor=cursor, limit=STEP)
        await self._moved.looked("app.workflows.list")
        workflows: builtins.list[Workflow] = []
        examined, budget, scanned_to = 0, BUDGET, None
        while True:
            page = await storage.find(replace(query, scan=min(most - examined, LOOKED)))
            examined += page.scanned if page.scanned is not None else len(page.records)
            for row in page.records:
                scanned_to = row.created_at
                if not is_root(row) or not in_reach(self._reach, row.job.queue):
                    continue
                one = await self._counted(storage, row)
                if one.jobs < 2:
                    continue
                workflows.append(one)
                budget -= one.jobs
                if len(workflows) == limit or budget <= 0:
                    more = page.cursor is not None or row is not page.records[-1]
                    return _page(workflows, cursor_of(row, "newest") if more else None, examined, row.created_at)
            if page.cursor is None or examined >= most or not page.scanned:
                return _page(workflows, page.cursor, examined, page.scanned_to or scanned_to)
            query = replace(query, cursor=page.cursor)
            await asyncio.sleep(0)

    async def _counted(self, storage: Storage, root: Record) -> Workflow:
        page = await storage.find(Query(root=root.id, order="oldest", limit=COUNTED))
        rows = [row for row in page.records if row.job.task and in_reach(self._reach, row.job.queue)]
        states = Counter(row.state for row in rows if row.job.task != FLOW or row.id == root.id)
        return Workflow(
            id=root.id,
            task=root.job.task,
            queue=root.job.queue,
            state=root.state,
            created_at=root.created_at,
            ended_at=root.ended_at,
            jobs=states.total(),
            done=sum(count for state, count in states.items() if state.final),
            failed=states[State.FAILED] + states[State.CANCELLED],
            running=states[State.RUNNING],
            capped=page.cursor is not None,
        )

    async def graph(
        self,
        id: HasId | str,
        /,
        *,
        fold: int = FOLD,
        open: Collection[str] = (),
        hide: Callable[[Record], Record] | None = None,
    ) -> Graph:
        """The workflow of this job as a drawing from left to right, with at most 500 nodes.

        fold  siblings of the same task and state become one node if there are more than this many (1 or more)
        open  the ids of folded nodes to show job by job
        hide  removes from a row what may not be shown, such as secrets

        Raises UnknownJob and BadOption.
        """
        given: object = fold
        if isinstance(given, bool) or not isinstance(given, int) or given < 1:
            raise BadOption("fold", f"expected 1 or more, found {fold!r}")
        rows, more = await self.rows(id)
        return await asyncio.to_thread(graph, rows, fold=fold, open=open, more=more, hide=hide)

    async def rows(self, id: HasId | str, /) -> tuple[Sequence[Record], bool]:
        """The first 5,000 rows of the workflow of this job, oldest first, and whether there are more. Raises
        UnknownJob."""
        storage, id = await self._storage(), id_of(id)
        [row] = await storage.get([id])
        if row is None or not in_reach(self._reach, row.job.queue):
            raise UnknownJob(id)
        rows: builtins.list[Record] = []
        has_more = False
        async for page in pages(storage, Query(root=row.job.root or row.id, order="oldest", limit=STEP)):
            rows += [row for row in page.records if in_reach(self._reach, row.job.queue)]
            has_more = page.cursor is not None or len(rows) > DRAWN
            if len(rows) >= DRAWN:
                break
            await asyncio.sleep(0)
        await self._moved.looked("app.workflows.graph")
        return rows[:DRAWN], has_more


def is_root(row: Record) -> bool:
    """Whether other jobs may belong to the workflow of this job: it continued as them, or has no function itself."""
    job = row.job
    own = job.task.startswith(OWN) and job.task != FLOW
    return bool(job.root is None and job.task and not own and row.function_done and row.after)


def _page(workflows: Sequence[Workflow], cursor: str | None, scanned: int, scanned_to: float | None) -> WorkflowPage:
    return WorkflowPage(
        workflows=workflows, cursor=cursor, scanned=scanned, scanned_to=None if cursor is None else scanned_to
    )
