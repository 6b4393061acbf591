"""The plans of reads that are repeated: none of them reads the whole table of jobs."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any, Final

import pytest
from msgspec import structs

from tests.storage.sqlite.support import ask, job, opened
from treadle.core.limit_model import Limit
from treadle.core.model import Outcome, State
from treadle.core.query_model import Query
from treadle.storage.sqlite import SqliteStorage, search
from treadle.storage.sqlite.queries import by_ids, glance, limits_now, stats
from treadle.storage.sqlite.search import Search
from treadle.testing import HandClock

UNFINISHED: Final = (State.READY, State.WAITING, State.RUNNING)
SMALL: Final = 3  # the bound of the searches below; each set of rows is larger
LOOKS: Final[dict[str, tuple[dict[str, Any], str]]] = {
    "newest": ({}, "job_created"),
    "newest of a task": ({"task": "none"}, "job_created"),
    "newest of a queue": ({"queue": "default"}, "job_created"),
    "newest of a time": ({"since": 5.0, "before": 9e9}, "job_created"),
    "oldest": ({"order": "oldest"}, "job_created"),
    "running": ({"state": (State.RUNNING,)}, "job_running job_created"),
    "running, longest first": ({"order": "started"}, "job_running"),
    "waiting": ({"state": (State.WAITING,)}, "job_held job_created"),
    "failed": ({"state": (State.FAILED,)}, "job_bad job_created"),
    "failed, latest first": ({"state": (State.FAILED,), "order": "ended"}, "job_bad"),
    "scheduled, next first": ({"ready": "scheduled", "order": "due"}, "job_held"),
    "due": ({"order": "due"}, "job_due"),
    "scheduled": ({"ready": "scheduled"}, "job_held job_created"),
    "blocked": ({"ready": "blocked"}, "job_held job_created"),
    "queued": ({"ready": "queued", "order": "queue"}, "job_line"),
    "queued in a queue": ({"order": "queue", "queue": "default"}, "job_line"),
    "ahead of a job": ({"order": "queue", "ahead_of": "j09", "count": True}, "id job_line"),
    "with a label": ({"label": "none"}, ""),
    "of a workflow": ({"root": "none"}, "id job_root"),
    "children": ({"parent": "none"}, "job_parent"),
    "by id": ({"ids": ("j01", "j02")}, "id"),
    "system jobs": ({"queue": "treadle", "state": UNFINISHED, "order": "oldest"}, "job_system"),
    "jobs of a system task": ({"task": "treadle.x"}, "job_own"),
}
"""A look, and the indexes of jobs that it reads: a set that is too large is only counted."""


async def read(path: Path, run: Any) -> list[str]:
    """Run this on a connection to a file with jobs, and return the statements that ran, with their values."""
    async with opened(path) as storage:
        await storage.set_limits([Limit("shut", slots=0)])
        await storage.enqueue([job(f"r{n}") for n in range(9)])
        rows = (await storage.claim(ask(1, 9))).records
        await storage.settle([Outcome(id=row.id, version=1, state=State.FAILED, reason="error") for row in rows[:4]])
        await storage.enqueue([job(f"b{n}", limits=(("shut", 1),)) for n in range(4)])
        assert (await storage.claim(ask(2, 9))).records == ()
        await storage.enqueue([job(f"p{n}", task="") for n in range(4)])
        await storage.enqueue([job(f"j{n:02}", labels=("red",)) for n in range(10)])
        await storage.enqueue([job(f"t{n:02}", queue="treadle", task="treadle.x", delay=60) for n in range(10)])
    said: list[str] = []
    db = sqlite3.connect(path, isolation_level=None)
    try:
        db.set_trace_callback(said.append)
        run(db)
        db.set_trace_callback(None)
        plans: list[str] = []
        for statement in said:
            if statement.startswith(("SELECT", "WITH")):
                plans += [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {statement}")]
        return plans
    finally:
        db.close()


def whole(plans: list[str]) -> list[str]:
    """The steps that read every row of `job`, and not by an index that has only some of them or the page's order."""
    return [step for step in plans if step.split()[:2] in (["SCAN", "job"], ["SCAN", "j"]) and "USING" not in step]


@pytest.mark.parametrize("name", LOOKS)
@pytest.mark.parametrize("cursor", [False, True])
async def test_a_bounded_search_reads_by_an_index(tmp_path: Path, name: str, cursor: bool) -> None:
    options, indexed = LOOKS[name]
    query = Query(**{"limit": 2, "scan": SMALL, **options})

    def run(db: sqlite3.Connection) -> None:
        found = Search(query).run(db)
        if cursor and found.cursor is not None:
            Search(structs.replace(query, cursor=found.cursor)).run(db)

    plans = await read(tmp_path / "jobs.db", run)
    assert whole(plans) == []
    assert indexes(plans) == set(indexed.split())


def indexes(plans: list[str]) -> set[str]:
    """The indexes of jobs that are read; "id" is the one of ids."""
    words = {word for step in plans for word in step.split() if word.startswith(("job_", "sqlite_autoindex_job_"))}
    words.discard("job_count")  # a table
    return {"id" if word.startswith("sqlite") else word for word in words}


@pytest.mark.parametrize("state", [(), (State.SUCCEEDED,), (State.FAILED, State.CANCELLED)])
async def test_the_last_endings_are_found_by_indexes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: tuple[State, ...]
) -> None:
    monkeypatch.setattr(search, "LAST", 2)
    query = Query(order="ended", state=state, limit=2, scan=SMALL)
    plans = await read(tmp_path / "jobs.db", lambda db: Search(query).run(db))
    assert whole(plans) == []
    assert indexes(plans) <= {"job_old", "job_bad"}


async def test_the_order_of_endings_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond LAST ended rows, a bounded page has those that are kept longest; an unbounded one has all."""
    clock = HandClock()
    storage = SqliteStorage(str(tmp_path / "jobs.db"), now=clock)
    await storage.open()
    try:
        await storage.enqueue([job(f"r{n}", keep=86_400.0 if n else 60.0) for n in range(6)])
        for number, row in enumerate((await storage.claim(ask(1, 6))).records):
            clock.advance(1.0)
            state = State.FAILED if number == 3 else State.SUCCEEDED
            await storage.settle([Outcome(id=row.id, version=1, state=state)])

        async def pages(**options: Any) -> list[list[str]]:
            found, cursor = [], None
            while True:
                page = await storage.find(Query(order="ended", limit=2, cursor=cursor, **options))
                found.append([row.id for row in page.records])
                if (cursor := page.cursor) is None:
                    return found

        succeeded = (State.SUCCEEDED,)
        assert await pages(scan=9) == [["r5", "r4"], ["r3", "r2"], ["r1", "r0"]]
        monkeypatch.setattr(search, "LAST", 3)
        assert await pages(scan=9, state=succeeded) == [["r5", "r4"], ["r2"]]
        assert await pages(scan=9) == [["r5", "r4"], ["r3", "r2"]]
        assert await pages(state=succeeded) == [["r5", "r4"], ["r2", "r1"], ["r0"]]
        assert await pages(scan=9, state=(State.FAILED, State.CANCELLED)) == [["r3"]]
    finally:
        await storage.close()


@pytest.mark.parametrize("look", [stats, lambda db, now: glance(db, now, 100), limits_now])
async def test_statistics_read_the_kept_counts_and_the_heads_of_queues(tmp_path: Path, look: Any) -> None:
    plans = await read(tmp_path / "jobs.db", lambda db: look(db, 1e9))
    assert whole(plans) == []
    assert indexes(plans) <= {"job_line"}
    assert not any("TEMP B-TREE FOR ORDER BY" in step for step in plans)


async def test_rows_are_read_by_their_id(tmp_path: Path) -> None:
    plans = await read(tmp_path / "jobs.db", lambda db: by_ids(db, ["j01", "none"]))
    assert whole(plans) == []
