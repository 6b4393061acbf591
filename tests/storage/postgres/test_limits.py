"""Limits on the bulk path, where one statement takes or ends many jobs: a page on which all jobs fit, and one on which
not.

Law 8. Otherwise only random plays would test the statements for a whole page and for few limits.
"""

from __future__ import annotations

import pytest

from tests.storage.postgres.support import done, job
from treadle.core.limit_model import Limit
from treadle.core.model import Claim, Outcome, Record, State
from treadle.storage.postgres import PostgresStorage
from treadle.testing import HandClock


async def claimed(storage: PostgresStorage, number: int, limit: int = 100) -> list[Record]:
    ask = Claim(worker=f"w#{number}", queues=(("default", limit),), limit=limit)
    return list((await storage.claim(ask)).records)


def ids(rows: list[Record]) -> list[str]:
    return [row.id for row in rows]


@pytest.mark.parametrize("many", [1, 4, 5, 9])
async def test_slots_of_jobs_that_end_together_are_freed(storage: PostgresStorage, many: int) -> None:
    """However many limits they name together; each job names two."""
    names = [f"l{n}" for n in range(many)]
    await storage.set_limits([Limit(name, slots=4) for name in names])
    for turn in range(3):
        new = [
            job(f"{turn}-{n}", limits=tuple(dict.fromkeys([(names[n], 2), (names[(n + 1) % many], 2)])))
            for n in range(many)
        ]
        await storage.enqueue(new)
        rows = await claimed(storage, turn)
        assert len(rows) == many
        assert {each.status for each in await storage.settle([done(row) for row in rows])} == {"applied"}


async def test_a_page_is_taken_whole_only_if_all_of_it_fit(storage: PostgresStorage) -> None:
    await storage.set_limits([Limit("a", slots=10)])
    await storage.enqueue([job("1", limits=(("a", 4),)), job("free"), job("2", limits=(("a", 4),))])
    first = await claimed(storage, 1)
    assert ids(first) == ["1", "2", "free"]
    await storage.enqueue([job("3", limits=(("a", 2),)), job("4", limits=(("a", 1),)), job("other")])
    second = await claimed(storage, 2)
    assert ids(second) == ["3", "other"]
    await storage.settle([done(row) for row in second])
    assert ids(await claimed(storage, 3)) == ["4"]


async def test_more_than_a_page_is_taken_by_one_claim(storage: PostgresStorage) -> None:
    await storage.set_limits([Limit("a", slots=1_000)])
    names = [f"{n:03}" for n in range(600)]
    await storage.enqueue([job(name, limits=(("a", 1),)) for name in names])
    assert ids(await claimed(storage, 1, 700)) == names


async def test_a_rate_is_charged_for_a_whole_page_at_once(storage: PostgresStorage, clock: HandClock) -> None:
    await storage.set_limits([Limit("r", rate=5, per=10.0)])
    await storage.enqueue([job(str(n), limits=(("r", 1),)) for n in range(3)])
    assert len(await claimed(storage, 1)) == 3
    await storage.enqueue([job(str(n), limits=(("r", 1),)) for n in range(3, 8)])
    assert ids(await claimed(storage, 2)) == ["3", "4"]
    clock.advance(9.9)
    assert ids(await claimed(storage, 3)) == []
    clock.advance(0.2)
    assert ids(await claimed(storage, 4)) == ["5", "6", "7"]


async def test_a_job_that_keeps_its_slot_over_a_retry_takes_no_second_one(storage: PostgresStorage) -> None:
    await storage.set_limits([Limit("k", slots=1, hold="ended")])
    await storage.enqueue([job("a", limits=(("k", 1),)), job("b", limits=(("k", 1),))])
    [a] = await claimed(storage, 1)
    await storage.settle([Outcome(id="a", version=a.version, state=State.READY, attempt=1, reason="retry")])
    [again] = await claimed(storage, 2)
    assert again.id == "a"
    await storage.settle([done(again)])
    assert ids(await claimed(storage, 3)) == ["b"]


async def test_a_job_behind_many_of_a_full_task_is_found_soon(storage: PostgresStorage) -> None:
    """A claim that has filled a task reads a thousand rows further; every eighth claim reads the whole queue."""
    await storage.enqueue([job(f"full{n:05}", task="full") for n in range(2_500)])
    await storage.enqueue([job("other", task="other")])
    found = list[str]()
    for number in range(8):
        rooms = {"full": (1, None), "other": (5, None)}
        ask = Claim(worker=f"w#{number + 1}", queues=(("default", 9),), limit=9, tasks=rooms)
        found += ids(list((await storage.claim(ask)).records))
    assert [id for id in found if id != "other"] == [f"full{n:05}" for n in range(8)]
    assert "other" in found
