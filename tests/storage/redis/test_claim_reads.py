"""How much a claim reads behind many jobs of other tasks: a few rows more than it takes, counted by the server."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.storage.redis.reads_kit import reads_of
from treadle.core.model import Claim, NewJob
from treadle.storage.redis import RedisStorage

SHARE = 10
AHEAD = 2_000


def line(tasks: Sequence[str]) -> list[NewJob]:
    return [NewJob(id=f"j{n:05}", task=task) for n, task in enumerate(tasks)]


def ask(number: int) -> Claim:
    return Claim(worker=f"w#{number}", queues=(("default", SHARE),), tasks={"mine": (None, 60.0)}, limit=SHARE)


@pytest.mark.parametrize("kind", ["ahead", "between"])
async def test_a_claim_reads_few_rows_of_other_tasks(storage: RedisStorage, kind: str) -> None:
    """Ahead: it reads the head of the queue, and its own rows. Between: it reads more, because each claim passes the
    other jobs that all claims before it passed, until there are enough of them to remember."""
    tasks = ["other"] * AHEAD + ["mine"] * 100 if kind == "ahead" else ["other", "mine"] * 100
    await storage.enqueue(line(tasks))
    assert len((await storage.claim(ask(0))).records) == SHARE
    for number in range(1, 5):
        found: list[int] = []
        async with reads_of(found):
            assert len((await storage.claim(ask(number))).records) == SHARE
        most = 4 * SHARE if kind == "ahead" else 2 * SHARE * (number + 3)
        assert sum(found) <= most, found
