"""Ends jobs that have run and waited for others: reads the rows of those jobs, and computes the outcome.

The job's function is not called. It uses a slot of the worker only while the rows are read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from treadle.core import defaults
from treadle.core.errors import AnswerTooLarge, JobNotDone, StorageError, WorkflowFailed
from treadle.core.job import not_done
from treadle.core.model import CHILDREN, Outcome, Record, State
from treadle.core.rare_log import RareLog
from treadle.core.stored_text import FORMS
from treadle.policy import judge, unread
from treadle.policy.guilt import cleared_note, guilt_of
from treadle.storage import whole, whole_row
from treadle.storage.contract import Storage
from treadle.workflow.fold import Raised, causes, ending, failure, fatal
from treadle.workflow.plan import plan_of
from treadle.workflow.subtree import Get, cancel_subtree, rows_of

log = logging.getLogger("treadle")

NAMED: Final = 1_000  # failed jobs that one WorkflowFailed names at most
CLOSED: Final = "a value of it or of its children is encrypted or in a blob store; App(keys=..., blobs=...) reads them"


class WorkflowFinisher:
    """Ends the parents that a worker claims."""

    def __init__(
        self,
        storage: Storage,
        tasks: Mapping[str, Any],
        reducers: Mapping[str, Callable[[list[Any]], Any]],
        most: int,
        closed: RareLog | None = None,
    ) -> None:
        self._storage, self._tasks, self._reducers, self._most = storage, tasks, reducers, most
        self._closed = RareLog(log) if closed is None else closed

    async def end(self, record: Record, max_lost: int, raised: Raised = lambda error: None) -> Outcome:
        """The outcome of a job that has run and waited. If the storage is unavailable, the job is released and claimed
        again later.

        raised  called with the exception of a reducer that failed

        A job is also released if its values or its children's cannot be read here; it fails after a day.
        """
        alone = guilt_of(record).alone  # since its function has returned
        if max_lost and alone >= max_lost:
            return failure(record, f"{alone} workers were lost while they ended this job alone")
        plan = plan_of(record)
        try:
            children = [] if plan.mark == "lock" else await rows_of(self._whole, record.after)
            record = await whole_row(self._storage, record)
            if plan.guard:
                siblings = [child for child in children if _are_siblings(child, record)]
                error = f"another child of {record.job.parent} failed"
                await cancel_subtree(self._storage, siblings, error)
            elif plan.mark is None and not all(child.state.final for child in children):
                return waits_again(record)  # a child was reopened meanwhile
        except AnswerTooLarge as error:  # a single row: waiting does not make it smaller
            return failure(record, str(error))
        except StorageError:
            return judge.released(record, defaults.POLL)
        if any(map(_is_closed, (record, *children))):  # another worker may have the key, or the blob store
            self._closed.error(CLOSED, f"{record.job.task} {record.job.id} cannot be ended here: {CLOSED}")
            wait = unread.again(record, record.updated_at)  # the time of its claim
            return failure(record, unread.over(CLOSED)) if wait is None else judge.released(record, *wait)
        return ending(record, children, self._tasks, self._reducers, self._most, raised)

    async def _whole(self, ids: Sequence[str]) -> Sequence[Record | None]:
        return await whole(self._storage, await self._storage.get(ids), "result", "value", "checkpoints")


def _is_closed(row: Record) -> bool:
    """Whether a value of the row is encrypted, or in a blob store, and could not be read."""
    texts = (row.result, row.value, *(text for _, text in row.checkpoints))
    return any(text is not None and text.startswith(FORMS) for text in texts)


def _are_siblings(child: Record, guard: Record) -> bool:
    """Whether a guard may cancel this job: only a child of the same parent."""
    return guard.job.parent is not None and child.job.parent == guard.job.parent


def waits_again(record: Record) -> Outcome:
    """The outcome of a parent whose child was reopened: the parent waits for its children once more."""
    return Outcome(
        id=record.job.id,
        version=record.version,
        state=State.WAITING,
        attempt=record.attempt,
        result=record.result,
        after=record.after,
        failures_allowed=None,
        function_done=True,
        checkpoints=cleared_note(record),
    )


async def failure_of(get: Get, row: Record) -> JobNotDone:
    """The error of a job that did not succeed. If it failed because of its descendants, it names those that failed."""
    if row.reason != CHILDREN:
        return not_done(row)
    errors: list[JobNotDone] = []
    seen, look = {row.job.id}, [row]
    while look and len(errors) < NAMED:
        parent = look.pop()
        children = await rows_of(get, parent.after)
        for child in causes(fatal(children, plan_of(parent))):
            if child.job.id in seen or not child.state.final:
                continue
            seen.add(child.job.id)
            if child.reason == CHILDREN:
                look.append(child)
            else:
                errors.append(not_done(child))
    job = row.job
    return WorkflowFailed(job.id, job.task, row.reason, row.error, errors) if errors else not_done(row)
