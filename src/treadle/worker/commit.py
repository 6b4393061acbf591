"""Ends a run that has an open transaction: commits its writes and the outcome of its job together, or neither.

If the answer to the commit is lost, the row of the job shows whether it was applied.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Final

from treadle.core.errors import Locked, StorageError, StorageUnavailable
from treadle.core.model import Outcome
from treadle.execution import Open
from treadle.execution.job_run import JobRun
from treadle.policy import judge
from treadle.storage import whole_row
from treadle.storage.contract import Storage
from treadle.storage.row_rules import has_checkpoints, repeats
from treadle.worker.running_job import RunningJob

log = logging.getLogger("treadle")
Troubles = dict[JobRun, BaseException | None]

TRIES: Final = 5  # attempts to read the row after the answer to a commit was lost; then the lease expires
AGAIN: Final = 1.0  # s between these attempts, and until a job runs again whose transaction the storage rolled back


class AlreadyCommitted(Exception):
    """Not an error: the outcome and the writes of the function are stored, so nothing is left to settle."""


async def end(run: RunningJob, outcome: Outcome | None, storage: Storage, troubles: Troubles) -> Outcome | None:
    """Commit the writes of a run that succeeded; roll back those of any other run.

    troubles  gets the error of a commit that failed, for the log
    Returns the outcome that remains to be settled; None: the job no longer belongs to this worker. Raises
    AlreadyCommitted.
    """
    transaction = run.job_run.transaction
    assert transaction is not None
    run.job_run.transaction = None
    # From here on a heartbeat may find the job at the version of this commit, which is not a lost job.
    run.ended = True
    try:
        if outcome is None or not judge.has_returned(outcome):
            return outcome
        return await _commit(run, outcome, transaction, storage, troubles)
    finally:
        await transaction.close()


async def _commit(
    run: RunningJob, outcome: Outcome, transaction: Open, storage: Storage, troubles: Troubles
) -> Outcome | None:
    record, job = run.record, run.record.job
    try:
        settled = await transaction.settle(run.job_run.with_spent(outcome))
        if settled.status == "stale":
            text = "another worker or caller has settled %s %s, so its transaction is rolled back: %s"
            log.info(text, job.task, job.id, settled.reason)
            return None
        if settled.again:
            text = "%s %s: its transaction is rolled back, and the job will run again: %s"
            log.warning(text, job.task, job.id, settled.reason)
            return judge.released(record, AGAIN)
        if settled.status == "refused":
            return _failed(run, judge.unstorable(outcome, settled.reason or "refused"), troubles)
    except (StorageUnavailable, Locked) as error:
        text = "%s %s: its transaction was interrupted, and the job will run again: %s"
        log.warning(text, job.task, job.id, error)
        return judge.released(record, AGAIN)
    except Exception as error:
        return _failed(run, transaction.over or error, troubles)
    try:
        await transaction.commit()
    except (StorageUnavailable, Locked) as error:
        return await _after_lost_answer(run, outcome, storage, error)
    except Exception as error:
        return _failed(run, error, troubles)
    raise AlreadyCommitted


def _failed(run: RunningJob, error: BaseException, troubles: Troubles) -> Outcome:
    troubles[run.job_run] = error
    return judge.failed(run.record, run.rules, error, None, run.record.started_at or 0.0, 1.0)


async def _after_lost_answer(
    run: RunningJob, outcome: Outcome, storage: Storage, error: StorageError
) -> Outcome | None:
    """The answer to a commit was lost: find out from the row whether it was applied. If the row cannot be read, settle
    nothing: the lease expires, which is correct in both cases."""
    job = run.record.job
    for _ in range(TRIES):
        try:
            [row] = await storage.get([job.id])
        except StorageError:
            await asyncio.sleep(AGAIN)
            continue
        if row is not None and repeats(outcome, row, partial(has_checkpoints, await whole_row(storage, row))):
            raise AlreadyCommitted
        if row is not None and row.version == run.record.version:
            return judge.released(run.record, AGAIN)
        return None
    log.warning(
        "%s %s: it is unknown whether its commit was applied; its lease will expire (%s)", job.task, job.id, error
    )
    return None
