"""Acts on a row that is due."""

from __future__ import annotations

from msgspec.structs import replace

from treadle.core.model import EXPIRED, Record, State
from treadle.storage.machine.endings import count_endings, end_job
from treadle.storage.machine.limits import unblock_limits
from treadle.storage.machine.queueing import queue_job
from treadle.storage.machine.rows import Rows, Steps
from treadle.storage.row_rules import lost


def advance_row(rows: Rows, row: Record) -> Steps[None]:
    """A deadline or a wait timeout ends the job. An expired lease, or a delay that is over, queues it."""
    now = rows.now
    if row.deadline_at is not None and row.deadline_at <= now and not row.function_done:
        end_job(rows, row, State.FAILED, EXPIRED, "its deadline passed")
    elif row.state is State.RUNNING:
        queue_job(rows, lost(row, now), now)
        unblock_limits(rows, row)
    elif row.state is State.READY:
        queue_job(rows, row, row.due_at or now)
    elif row.started_at is None and not row.function_done:
        # prose: ok, a stored text, the same in every storage
        end_job(rows, row, State.FAILED, EXPIRED, "what it waited for did not come in time")
    elif row.job.task:
        queue_job(rows, row, now)
    else:  # a promise whose function is done: only a settlement ends it
        rows.put(replace(row, due_at=None if row.function_done else row.deadline_at))
    yield from count_endings(rows)
