"""Rules, and what is no longer needed: the verbs beside the life of a job.

Without it no limit could be set, and the ended would stay for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from treadle.model import Limit
from treadle.storage.postgres.connection import Runner
from treadle.storage.postgres.rows import text

PRUNE: Final = "SELECT {schema}.prune(%s::float8, %s::int)"
SET_LIMITS: Final = "SELECT {schema}.set_limits(%s::float8, %s::json)::text"


async def prune(run: Runner, limit: int, now: float | None) -> int:
    [(gone,)] = await run.run(PRUNE, [now, limit])
    return int(gone)


async def set_limits(run: Runner, limits: Sequence[Limit], now: float | None) -> None:
    last = {rule.name: rule for rule in limits}  # one statement removes, another sets: they know no order
    await run.run(SET_LIMITS, [now, text(list(last.values()))])
