"""The end of a run that holds a transaction: its writes and its outcome are committed together, or neither.

Without it a task's own writes and the job's ending would be two commits, with a crash in between.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from treadle.core.model import Outcome, State
from treadle.errors import StorageError, StorageUnavailable
from treadle.execution.transaction import Open
from treadle.policy import judge
from treadle.storage.contract import Storage
from treadle.storage.row_rules import repeats
from treadle.worker.state import RunningJob

log = logging.getLogger("treadle")
T = TypeVar("T")

TRIES: Final = 5  # looks at what became of a commit whose answer was lost; then the lease runs out
AGAIN: Final = 1.0  # s until a run whose transaction the storage broke is tried again


class Committed(Exception):
    """The outcome is stored, with all that the function wrote: no error, and nothing is left to be settled."""


async def end(run: RunningJob, outcome: Outcome | None, storage: Storage) -> Outcome | None:
    """Commit what the run wrote if it has succeeded, else roll it back.

    Answers the outcome that is left to be settled, None if the job is no longer ours. Raises Committed.
    """
    opened = run.context.open
    assert opened is not None
    run.context.open = None
    # From here on a heartbeat that finds the job moved on has met our own commit: nobody is to be told of a loss.
    run.ended = True
    if outcome is None or not _went_well(outcome):
        await opened.close()
        return outcome
    try:
        left = await _commit(run, outcome, opened, storage)
    finally:
        await opened.close()
    return left


def _went_well(outcome: Outcome) -> bool:
    """The function has returned, and what is left is to wait for its children, if it has any."""
    return outcome.state is State.SUCCEEDED or (outcome.state is State.WAITING and outcome.ran)


async def _commit(run: RunningJob, outcome: Outcome, opened: Open, storage: Storage) -> Outcome | None:
    record = run.record
    try:
        settled = await opened.settle(outcome)
        if settled.status == "stale":
            log.info(
                "%s %s was settled by somebody else, its transaction is rolled back: %s",
                record.job.task,
                record.job.id,
                settled.reason,
            )
            return None
        if settled.again:
            log.warning(
                "%s %s: its transaction is rolled back and it is run again: %s",
                record.job.task,
                record.job.id,
                settled.reason,
            )
            return judge.handed_back(record, AGAIN)
        if settled.status == "refused":
            return _failed(run, StorageError(settled.reason or "refused"))
    except StorageUnavailable as error:
        log.warning("%s %s: its transaction was broken off, it is run again: %s", record.job.task, record.job.id, error)
        return judge.handed_back(record, AGAIN)
    except Exception as error:
        return _failed(run, opened.over or error)
    try:
        await opened.commit()
    except StorageUnavailable as error:
        return await _find_out(run, outcome, storage, error)
    except Exception as error:
        return _failed(run, error)
    raise Committed


def _failed(run: RunningJob, error: BaseException) -> Outcome:
    return judge.failed(run.record, run.rules, error, None, run.record.started_at or 0.0, 1.0)


async def _find_out(run: RunningJob, outcome: Outcome, storage: Storage, error: StorageError) -> Outcome | None:
    """The answer to the commit was lost. The row says whether it was applied; until it can be read nothing is sure,
    and the lease, which then runs out, is right either way."""
    job = run.record.job
    for _ in range(TRIES):
        try:
            [row] = await storage.get([job.id])
        except StorageError:
            await asyncio.sleep(AGAIN)
            continue
        if row is not None and repeats(outcome, row):
            raise Committed
        if row is not None and row.version == run.record.version:
            return judge.handed_back(run.record, AGAIN)
        return None
    log.warning(
        "%s %s: whether its commit was applied is not known; its lease will run out (%s)", job.task, job.id, error
    )
    return None


async def undisturbed(work: Coroutine[Any, Any, T]) -> T:
    """Await it to its end, whoever cancels us meanwhile: what is being committed cannot be stopped half-way."""
    task = asyncio.ensure_future(work)
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            continue
    return task.result()
