"""Shared parts of the tests of durable code: functions that count their runs and fail on command."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from treadle import App, Retry, State
from treadle.core.model import Claim, Record
from treadle.testing import Endless, drain

AGAIN = Retry(attempts=5, base=0)


class Ledger:
    """Counts the runs of each function; a function fails as often as requested."""

    def __init__(self) -> None:
        self.function_done: Counter[str] = Counter()
        self.fail: Counter[str] = Counter()

    async def do(self, name: str) -> str:
        return self.plain(name)

    def plain(self, name: str) -> str:
        self.function_done[name] += 1
        if self.fail[name] > 0:
            self.fail[name] -= 1
            raise ValueError(name)
        return f"{name} {self.function_done[name]}"


async def error_of(app: App, job: Any) -> str:
    row = await app.jobs.get(job)
    assert row.state is State.FAILED, row
    return row.error or ""


async def claimed_by_another(app: App, job: Any) -> Record:
    """Run the job up to its step with limits, whose try another worker claims."""
    with suppress(Endless):
        await drain(app, limit=1)
    [row] = (await (await app._core.open()).claim(Claim(worker="gone#1", lease=30.0))).records
    assert (await app.jobs.get(job)).after == (row.id,)
    return row


@dataclass
class Receipt:
    number: int
    at: datetime
