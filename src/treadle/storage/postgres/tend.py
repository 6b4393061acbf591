"""Rules, and what is no longer needed: the verbs beside the life of a job.

Without it no limit could be set, and the ended would stay for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from treadle.model import Limit
from treadle.storage.postgres.connection import Runner
from treadle.storage.postgres.rows import text

PRUNE: Final = "SELECT went, reached FROM {schema}.prune(%s::float8, %s::int, %s::float8)"
MANY: Final = 100  # rows asked for; who asks for fewer gets the first of all that can go, as on any storage
IN_A_ROW: Final = 100  # calls, until one begins at the head again: a thousandth of a walk a row
SET_LIMITS: Final = "SELECT {schema}.set_limits(%s::float8, %s::json)::text"


class Pruner:
    """Prunes, and remembers where it stopped: of many calls in a row each begins there. Also what could not go then (it
    was locked, or needed) is looked at again when too few lie behind, and now and then."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._past: float | None = None
        self._calls = 0  # from there, in a row

    async def prune(self, limit: int, now: float | None) -> int:
        past, self._past = self._past, None
        [(went, reached)] = await self._runner.run(PRUNE, [now, limit, past])
        self._calls = 0 if past is None else self._calls + 1
        if MANY <= went == limit and self._calls < IN_A_ROW:
            self._past = reached
        return int(went)


async def set_limits(run: Runner, limits: Sequence[Limit], now: float | None) -> None:
    last = {rule.name: rule for rule in limits}  # one statement removes, another sets: they know no order
    await run.run(SET_LIMITS, [now, text(list(last.values()))])
