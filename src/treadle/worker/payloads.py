"""Reads the large texts of a claimed job before it runs, and releases a job whose texts this worker cannot read."""

from __future__ import annotations

import logging
from typing import Final

from treadle.core import defaults
from treadle.core.model import DECLINED, Outcome
from treadle.core.stored_text import offloaded, sealed
from treadle.errors import StorageError
from treadle.execution.job_run import JobRun
from treadle.policy import judge
from treadle.storage.capabilities import whole_row
from treadle.storage.contract import Storage

log = logging.getLogger("treadle")

AGAIN: Final = 5.0  # s until a job that needs another key, or a blob store, is claimed again


async def made_whole(storage: Storage, run: JobRun) -> Outcome | None:
    """Replace the row of a run by one with its large texts.

    Returns the outcome of a job that cannot run here now: it is released, without a counted attempt. A text that is
    lost or damaged stays: decoding it fails the job."""
    record = run.record
    try:
        run.record = whole = await whole_row(storage, record, "payload", "checkpoints", "result")
    except StorageError as error:
        log.warning("%s %s: its large texts cannot be read now: %s", record.job.task, record.job.id, error)
        return judge.released(record, defaults.POLL, run.carried)
    texts = (whole.job.payload, *(text for _, text in whole.checkpoints))
    lacks = next((why for text in texts if (why := _lacks(storage, text)) is not None), None)
    if lacks is None:
        return None
    log.error("%s %s cannot run here: %s", record.job.task, record.job.id, lacks)
    return judge.released(record, AGAIN, run.carried, reason=DECLINED + run.worker)


def _lacks(storage: Storage, text: str) -> str | None:
    """The reason why this worker cannot read the text, if another one may."""
    if offloaded(text) is not None and not storage.capabilities.payloads:
        return "its arguments or steps are in a blob store, and this app has none; use App(blobs=...)"
    closed = sealed(text)
    if closed is None or closed.key in storage.capabilities.keys:
        return None
    return f"it is encrypted with the key {closed.key!r}, which App(keys=...) here does not have"
