"""What the tests of durable code share: functions that count their runs and fail when told, and what became of jobs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from treadle import App, Retry, State

AGAIN = Retry(attempts=5, base=0)


class Ledger:
    """What ran, and how often; a function that fails as often as it is told."""

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
