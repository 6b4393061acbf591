"""The verbs that operate on the storage as a whole: `prune` and `set_limits`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from msgspec.structs import asdict

from treadle.core.limit_model import Declare, Limit, LimitChange, Pause, Resume
from treadle.storage.postgres.rows import text
from treadle.storage.postgres.topics import Caller, noting

PRUNE: Final = noting(
    "SELECT went, reached, stayed, NULL::text FROM {schema}.prune(%s::float8, %s::int, %s::int, %s::float8)", 4
)
UNUSED: Final = "SELECT {schema}.drop_unused(%s::float8, %s::int, %s::text)"
LIMITS: Final = 1_000  # gates that one call checks for being unused: 10 ms of the server
MANY: Final = 100  # rows; a call that may delete fewer always starts at the head, as on any storage
IN_A_ROW: Final = 100  # calls after which one starts at the head again: one such scan per 10,000 rows or more
STEPS: Final = 20  # transactions of one call, which pass 2,000 to 10,000 rows that cannot be deleted
SET_LIMITS: Final = noting("SELECT {schema}.set_limits(%s::float8, %s::json)::text", 1)


class Pruner:
    """Prunes, and remembers where it stopped: in a series of calls, each starts there. Rows before that place which
    could not be deleted (locked, or still needed) are scanned again after IN_A_ROW calls, or when too few rows lie
    behind."""

    def __init__(self, runner: Caller) -> None:
        self._runner = runner
        self._past: float | None = None
        self._calls = 0  # consecutive calls that began there
        self._limit = ""  # the last limit checked

    async def prune(self, limit: int, now: float | None) -> int:
        past, self._past = self._past, None
        self._calls = 0 if past is None else self._calls + 1
        total, look = 0, limit
        for _ in range(STEPS):
            [(went, past, stayed, _)] = await self._runner.call(PRUNE, [now, limit - total, look, past])
            total += went
            if not stayed or total == limit:
                break
            look = max(limit - total, MANY)  # the rows that stay take no room from the limit
        if MANY <= total == limit and self._calls < IN_A_ROW:
            self._past = past
        [(self._limit,)] = await self._runner.run(UNUSED, [now, LIMITS, self._limit])
        return total


async def set_limits(run: Caller, changes: Sequence[LimitChange], now: float | None) -> None:
    await run.call(SET_LIMITS, [now, text([_words(change) for change in changes])])


def _words(change: LimitChange) -> dict[str, Any]:
    match change:
        case Limit():
            return {"do": "remove" if change.empty else "set", **asdict(change)}
        case Declare(rule):
            return {"do": "declare", **asdict(rule)}
        case Pause():
            return {"do": "pause", **asdict(change)}
        case Resume():
            return {"do": "resume", **asdict(change)}
