"""Stores the declared limits and schedules again if the storage has lost them."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from treadle.core import defaults
from treadle.worker.outage import StorageOutage
from treadle.worker.parts import WorkerHost

log = logging.getLogger("treadle")


async def restore_declared(app: WorkerHost, worker: str, outage: StorageOutage) -> None:
    """Check after an outage, after a job of this worker was lost, and every `defaults.DECLARED_EVERY` s."""
    while True:
        outage.over.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(defaults.DECLARED_EVERY):
                await outage.over.wait()
        if await app.prepare_again():
            log.warning(
                "worker %s: the storage had lost the declared limits and schedules; they were stored again", worker
            )
        outage.answered("declared")
        await asyncio.sleep(min(defaults.DECLARED_LEAST, defaults.DECLARED_EVERY))  # once for many lost jobs
