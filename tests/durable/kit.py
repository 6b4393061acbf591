"""Shared parts of the tests of durable code: functions that count their runs and fail on command."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from treadle import App, Retry, State

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


@dataclass
class Receipt:
    number: int
    at: datetime
