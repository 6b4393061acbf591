"""Reads the large texts of a claimed job before it runs, and releases a job whose texts this worker cannot read."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from treadle.core import defaults
from treadle.core.errors import StorageError, StorageUnavailable
from treadle.core.model import Outcome, Pairs, Record
from treadle.core.rare_log import RareLog
from treadle.core.stored_text import offloaded, sealed
from treadle.execution.job_run import JobRun
from treadle.policy import judge, unread
from treadle.storage import whole_row
from treadle.storage.contract import Storage

log = logging.getLogger("treadle")

RATE: Final = 50.0  # jobs a second that return to one worker which cannot read them


class LargeTexts:
    """One for each worker."""

    def __init__(self, worker: str, storage: Storage, random: Callable[[], float]) -> None:
        self._worker, self._storage, self._random = worker, storage, random
        self._log = RareLog(log)

    def closed(self, record: Record, moment: float, carried: Pairs = ()) -> Outcome | None:
        """The outcome of a job with a text that this worker lacks the key or the blob store for; None: it has them.

        moment  now, by the storage's clock
        """
        texts = (record.job.payload, *(text for _, text in record.checkpoints))
        lacks = next((why for text in texts if (why := _lacks(self._storage, text)) is not None), None)
        return None if lacks is None else self._released(record, *lacks, moment, carried)

    def _released(self, record: Record, cause: str, why: str, moment: float, carried: Pairs) -> Outcome:
        self._log.error(cause, f"{record.job.task} {record.job.id} cannot run here: {why}")
        # Released jobs come back spread over time: however many there are, this worker has time for other jobs.
        least = self._log.seen.total() / RATE * (0.5 + self._random())
        return unread.released(record, self._worker, why, moment, carried, least)

    async def made_whole(self, run: JobRun, moment: float) -> Outcome | None:
        """Replace the row of a run by one with its large texts.

        Returns the outcome of a job that cannot run here now: it is released, without a counted attempt, or failed
        after a day. A text that is lost or damaged stays: decoding it fails the job."""
        record = run.record
        if (outcome := self.closed(record, moment, run.carried)) is not None:
            return outcome
        try:
            run.record = whole = await whole_row(self._storage, record, "payload", "checkpoints", "result")
        except StorageUnavailable as error:
            log.warning("%s %s: its large texts cannot be read now: %s", record.job.task, record.job.id, error)
            return judge.released(record, defaults.POLL, run.carried)
        except StorageError as error:  # some stores refuse access to texts that they do not have
            return self._released(record, "refused", str(error), moment, run.carried)
        if (outcome := self.closed(whole, moment, run.carried)) is not None:
            return outcome
        run.carried = (*run.carried, *unread.cleared(record))
        return None


def _lacks(storage: Storage, text: str) -> tuple[str, str] | None:
    """The cause and the reason why this worker cannot read the text, if another one may."""
    if offloaded(text) is not None and not storage.capabilities.payloads:
        return "blobs", "its arguments or steps are in a blob store, and this app has none; use App(blobs=...)"
    closed = sealed(text)
    if closed is None or closed.key in storage.capabilities.keys:
        return None
    key = closed.key[:64]
    return f"key {key}", f"it is encrypted with the key {key!r}, which App(keys=...) here does not have"
