"""The page /metrics of a supervisor: what all its worker processes have counted, for Prometheus."""

from __future__ import annotations

import asyncio
from typing import Final

from treadle.core.clock import monotonic
from treadle.metrics import Numbers
from treadle.server.prometheus import Fleet, Names, check_installed, worker_samples, written
from treadle.worker.fleet import FleetCounts
from treadle.worker.probes import PageRequest, Reply, text_reply

FRESH: Final = 1.0  # s that numbers are reused: a scraper in a loop must not keep the workers busy


class MetricsPage:
    """Answers scrapers, also several at once, with one request to each process."""

    def __init__(self, counts: FleetCounts) -> None:
        self._counts, self._names = counts, Names()
        self._once = asyncio.Lock()
        self._numbers, self._at = Numbers(), float("-inf")

    async def __call__(self, request: PageRequest) -> Reply:
        try:
            check_installed()
        except ImportError as error:
            return text_reply(501, str(error))
        async with self._once:
            if monotonic() - self._at >= FRESH:
                self._numbers, self._at = await self._counts.numbers(), monotonic()
        samples = worker_samples(self._numbers, self._names, Fleet(*self._counts.size()))
        text = written(samples, request.headers.get("accept", ""))
        return Reply(200, text.content_type, text.body)
