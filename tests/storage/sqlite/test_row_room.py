"""The room that a plain row keeps for the bytes that its claim and its ending add, so that it is overwritten in
place."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from tests.storage.sqlite.support import ask, done, integrity, jobs, opened, sql


async def test_a_row_with_room_is_as_long_at_its_end_as_at_its_beginning(tmp_path: Path) -> None:
    """Its room is replaced by worker, times and result."""
    path = tmp_path / "jobs.db"
    taken = "SELECT coalesce(length(room), 0) + coalesce(length(worker), 0) + coalesce(length(result), 0) FROM job"
    async with opened(path) as storage:
        await storage.enqueue(jobs(2))
        [first, _] = sql(path, taken)
        claim = replace(ask(1, 2), worker="host.example:12345:0a1b2c#1234567")
        rows = (await storage.claim(claim)).records
        [leased, _] = sql(path, taken)
        await storage.settle([replace(done(row), result='"done"') for row in rows])
        [ended, _] = sql(path, taken)
        # One byte of the room's own length; then eight of a time, and one each for version and state.
        assert (first[0], leased[0], ended[0]) == (72, 72 - 8, 72 - 8 - 9)  # type: ignore[comparison-overlap]
        assert not sql(path, "SELECT 1 FROM job WHERE length(room) = 0")


async def test_a_row_that_outgrows_its_room_is_stored(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    async with opened(path) as storage:
        await storage.enqueue(jobs(3))
        rows = (await storage.claim(replace(ask(1, 3), worker="w" * 300 + "#1"))).records
        outcomes = [replace(done(row), result='"%s"' % ("ü" * 3000 + row.job.id)) for row in rows]
        assert {each.status for each in await storage.settle(outcomes)} == {"applied"}
        assert [row and row.result for row in await storage.get([out.id for out in outcomes])] == [
            out.result for out in outcomes
        ]
    assert integrity(path) == "ok"
