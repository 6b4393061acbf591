"""Counts the jobs of a workflow by state."""

from __future__ import annotations

from treadle.core.job import Progress
from treadle.core.model import Record, State
from treadle.core.query_model import Query
from treadle.storage import pages
from treadle.storage.contract import Storage


async def progress_of(storage: Storage, row: Record) -> Progress:
    """The progress of the workflow of this row: counted from its root, or else over the job and its descendants."""
    counts = dict.fromkeys(State, 0)
    if row.job.root is None:
        for state in State:
            page = await storage.find(Query(root=row.job.id, state=(state,), limit=0, count=True))
            counts[state] = page.total or 0
        for signal in (await storage.find(Query(root=row.job.id, task="", limit=1_000))).records:
            counts[signal.state] -= 1  # no worker runs these
    else:
        counts[row.state] += 1
        look = [row.job.id] if row.function_done or row.state.final else []
        while look:
            async for page in pages(storage, Query(parent=look.pop(), limit=500)):
                for child in page.records:
                    if not child.job.task:
                        continue
                    counts[child.state] += 1
                    look += [child.job.id] if child.function_done else []
    done = sum(counts[state] for state in State if state.final)
    return Progress(sum(counts.values()), done, counts)
