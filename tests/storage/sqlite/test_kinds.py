"""Plain jobs of several kinds in one call: they are stored by kind, and returned in the order of the call."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.storage.sqlite.support import ask, integrity, job, opened
from treadle.core.errors import IdTaken


async def test_the_first_of_two_jobs_with_one_id_stays(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    given = [job("y", task="two"), job("x", task="one"), job("x", task="two"), job("z", task="one")]
    async with opened(path) as storage:
        answers = await storage.enqueue(given)
        assert [(row.job.id, row.job.task) for row in answers] == [
            ("y", "two"),
            ("x", "one"),
            ("x", "one"),
            ("z", "one"),
        ]
        calls = [[job("p", task="two")], [job("q", task="one")], [job("q", task="two", priority=3)], [job("x")]]
        answers = [row for rows in await asyncio.gather(*map(storage.enqueue, calls)) for row in rows]
        assert [(row.job.id, row.job.task) for row in answers] == [
            ("p", "two"),
            ("q", "one"),
            ("q", "one"),
            ("x", "one"),
        ]
        rows = (await storage.claim(ask(1, 10))).records
        assert sorted((row.job.id, row.job.task) for row in rows) == [
            ("p", "two"),
            ("q", "one"),
            ("x", "one"),
            ("y", "two"),
            ("z", "one"),
        ]
    assert integrity(path) == "ok"


async def test_each_job_keeps_its_own_fields(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    given = [
        job(f"{task}-{priority}-{keep}-{queue}", task=task, priority=priority, keep=keep, queue=queue)
        for task in ("a", "b")
        for priority in (0, 5, -5)
        for keep in (0.0, 86_400.0, 7.5)
        for queue in ("default", "q")
    ]
    async with opened(path) as storage:
        answers = await storage.enqueue(given)
        assert [row.job for row in answers] == given
        found = await storage.get([each.id for each in given])
        assert found == answers
        claimed = [row.job for row in (await storage.claim(ask(1, 50))).records]
        assert claimed == sorted(
            (each for each in given if each.queue == "default"), key=lambda job: (-job.priority, job.id)
        )


async def test_nothing_of_a_call_is_stored_if_an_id_of_treadle_is_refused(tmp_path: Path) -> None:
    """The same for calls that share an insert: each is refused alone."""
    taken = job("treadle:a", queue="other")
    async with opened(tmp_path / "jobs.db") as storage:
        await storage.enqueue([job("treadle:a")])
        with pytest.raises(IdTaken):
            await storage.enqueue([*(job(f"{n}") for n in range(300)), taken])
        calls = [[job("b")], [job("c"), taken], [job("d")]]
        answers = await asyncio.gather(*map(storage.enqueue, calls), return_exceptions=True)
        assert [isinstance(answer, IdTaken) for answer in answers] == [False, True, False]
        rows = await storage.get(["0", "299", "b", "c", "d"])
        assert [row is None for row in rows] == [True, True, False, True, False]


async def test_delayed_jobs_are_due_after_their_own_delays(tmp_path: Path) -> None:
    """Jobs of different delays in one call, one of them known."""
    async with opened(tmp_path / "jobs.db") as storage:
        await storage.enqueue([job("known", delay=9.0)])
        rows = await storage.enqueue([job("a", delay=5.0), job("b"), job("known"), job("c", delay=1e-9)])
        assert await storage.get(["a", "b", "known", "c"]) == rows
        assert [row.queue_position is None for row in rows] == [True, False, True, False]
        assert [row.due_at and row.due_at - row.created_at for row in rows] == pytest.approx([5.0, None, 9.0, None])
        assert not await storage.recount()
