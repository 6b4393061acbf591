"""Plain jobs are inserted together as arrays, whatever characters they contain and however many of them are known."""

from __future__ import annotations

import asyncio
import re

import psycopg
import pytest

from tests.servers import postgres
from tests.storage.postgres.support import blocked_by, done, job
from treadle.core.limit_model import Limit
from treadle.core.model import Claim, State
from treadle.storage.postgres import PostgresStorage

STRANGE = (
    "",
    " ",
    "NULL",
    "null",
    '"',
    "\\",
    '\\"',
    "{}",
    "{a,b}",
    "a,b",
    "\0",
    "\x1a",
    "\x1a0",
    "a\0b",
    "\n",
    "é",
    "🧵",
)


@pytest.fixture
def clock() -> None:
    """That of the server."""


async def test_strange_texts_are_returned_unchanged(storage: PostgresStorage) -> None:
    names = [re.sub(r"[\0-\x1f ]", "-", word) for word in STRANGE]  # no storage accepts a name with a control character
    await storage.set_limits([Limit(f"l{name}", slots=9) for name in dict.fromkeys(names)])
    jobs = [
        job(
            f"j{n}",
            task=f"t{name}",
            payload=word,
            headers=((f"h{name}", name),),
            priority=n,
            keep=n,
            keep_failed=n + 0.5,
            limits=((f"l{name}", 1), ("other", 2)) if n % 2 else (),
        )
        for n, (word, name) in enumerate(zip(STRANGE, names, strict=True))
    ]
    await storage.enqueue(jobs)
    assert [row and row.job for row in await storage.get([each.id for each in jobs])] == jobs
    claimed = await storage.claim(Claim(worker="w#1", queues=(("default", 99),), limit=99))
    assert [row.job for row in claimed.records] == jobs[::-1]
    assert {s.status for s in await storage.settle([done(row) for row in claimed.records])} == {"applied"}
    assert {row.state for row in await storage.enqueue(jobs)} == {State.SUCCEEDED}


async def test_a_call_may_mix_new_and_known_ids(storage: PostgresStorage) -> None:
    """One waits, one runs, one has ended; the new ids sort before, between and after these."""
    await storage.enqueue([job("b"), job("d"), job("f", queue="other")])
    [ended, running] = (await storage.claim(Claim(worker="w#1", queues=(("default", 2),), limit=2))).records
    await storage.settle([done(ended)])
    again = [job(id, task="new") for id in "gfedcba"]
    for _ in range(2):
        rows = await storage.enqueue(again)
        assert [row.id for row in rows] == list("gfedcba")
        assert {row.id: (row.job.task, row.state) for row in rows} == {
            "b": ("t", State.SUCCEEDED),
            "d": ("t", State.RUNNING),
            "f": ("t", State.READY),
            **dict.fromkeys("aceg", ("new", State.READY)),
        }
    assert running.id == "d"


async def test_a_call_may_mix_new_ids_and_ended_jobs(storage: PostgresStorage) -> None:
    await storage.enqueue([job("b")])
    [row] = (await storage.claim(Claim(worker="w#1", queues=(("default", 1),), limit=1))).records
    await storage.settle([done(row)])
    rows = await storage.enqueue([job("a"), job("b"), job("c")])
    assert [(row.id, row.state) for row in rows] == [("a", State.READY), ("b", State.SUCCEEDED), ("c", State.READY)]
    claimed = await storage.claim(Claim(worker="w#2", queues=(("default", 9),), limit=9))
    assert [row.id for row in claimed.records] == ["a", "c"]


@pytest.mark.parametrize("stored", [True, False])
async def test_an_id_in_a_concurrent_enqueue(storage: PostgresStorage, stored: bool) -> None:
    """The second call waits until the first one has ended, and then stores its job or returns the other one."""
    async with await psycopg.AsyncConnection.connect(postgres.url()) as other:
        await storage.within(other).enqueue([job("b", task="first")])
        second = asyncio.create_task(storage.enqueue([job("a"), job("b", task="second"), job("c")]))
        await blocked_by(other)
        await (other.commit() if stored else other.rollback())
        rows = await second
    assert [row.job.task for row in rows] == ["t", "first" if stored else "second", "t"]
    assert [row.state for row in await storage.get(["a", "b", "c"]) if row] == [State.READY] * 3
