"""Deletes texts of the blob store whose jobs are gone: a duty of the leader."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from treadle.core import defaults
from treadle.core.errors import BadOption
from treadle.storage.optional_parts import Payloads

log = logging.getLogger("treadle")


class Collector:
    """Collects if this is the worker's duty."""

    def __init__(self, storage: Payloads, is_duty: Callable[[], bool]) -> None:
        self._storage, self._is_duty = storage, is_duty
        self._refused = False

    async def run(self, answered: Callable[[str], None]) -> None:
        while True:
            began = time.monotonic()
            if self._is_duty():
                await self._round()
            answered("collect")
            took = time.monotonic() - began
            await asyncio.sleep(max(defaults.COLLECT_EVERY, took * defaults.COLLECT_SHARE))

    async def _round(self) -> None:
        try:
            done = await self._storage.collect(defaults.COLLECT_AGE)
        except BadOption as error:
            if not self._refused:
                log.warning("the blob store is not cleaned: %s", error)
            self._refused = True
            return
        if done.deleted:
            log.info("deleted %d texts (%d bytes) of jobs that are gone", done.deleted, done.deleted_bytes)
