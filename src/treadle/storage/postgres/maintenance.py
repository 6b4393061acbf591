"""Rules, and what is no longer needed: the verbs beside the life of a job.

Without it no limit could be set, and the ended would stay for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from msgspec.structs import asdict

from treadle.core.model import Declare, Limit, LimitChange, Pause, Resume
from treadle.storage.postgres.rows import text
from treadle.storage.postgres.topics import Caller, noting

PRUNE: Final = noting("SELECT went, reached, NULL::text FROM {schema}.prune(%s::float8, %s::int, %s::float8)", 3)
UNUSED: Final = "SELECT {schema}.drop_unused(%s::float8, %s::int, %s::text)"
LIMITS: Final = 1_000  # of which one call asks whether they hold anything: 10 ms of the server
MANY: Final = 100  # rows asked for; who asks for fewer gets the first of all that can go, as on any storage
IN_A_ROW: Final = 100  # calls, until one begins at the head again: a thousandth of a walk a row
SET_LIMITS: Final = noting("SELECT {schema}.set_limits(%s::float8, %s::json)::text", 1)


class Pruner:
    """Prunes, and remembers where it stopped: of many calls in a row each begins there. Also what could not go then (it
    was locked, or needed) is looked at again when too few lie behind, and now and then."""

    def __init__(self, runner: Caller) -> None:
        self._runner = runner
        self._past: float | None = None
        self._calls = 0  # from there, in a row
        self._limit = ""  # the last limit looked at

    async def prune(self, limit: int, now: float | None) -> int:
        past, self._past = self._past, None
        [(went, reached, _)] = await self._runner.call(PRUNE, [now, limit, past])
        self._calls = 0 if past is None else self._calls + 1
        if MANY <= went == limit and self._calls < IN_A_ROW:
            self._past = reached
        [(self._limit,)] = await self._runner.run(UNUSED, [now, LIMITS, self._limit])
        return int(went)


async def set_limits(run: Caller, changes: Sequence[LimitChange], now: float | None) -> None:
    await run.call(SET_LIMITS, [now, text([_words(change) for change in changes])])


def _words(change: LimitChange) -> dict[str, Any]:
    match change:
        case Limit():
            return {"do": "remove" if change.slots is None and change.rate is None else "set", **asdict(change)}
        case Declare(rule):
            return {"do": "declare", **asdict(rule)}
        case Pause():
            return {"do": "pause", **asdict(change)}
        case Resume():
            return {"do": "resume", **asdict(change)}
