"""A move from PostgreSQL while a transaction that has enqueued is open: only the move waits.

Otherwise every call of every process would queue behind the mark, and the move would fail all the same.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import psycopg
import pytest

from tests.servers import postgres
from tests.storage.moving_kit import made
from treadle.admin import storage_move
from treadle.admin.storage_move import OpenStorage, move
from treadle.core.model import Claim, LeaseRenewal, NewJob, Presence
from treadle.errors import MoveFailed
from treadle.storage.postgres import PostgresStorage


async def test_only_the_move_waits_for_an_open_transaction(tmp_path: Path) -> None:
    source, target = await made("postgres", tmp_path), await made("sqlite", tmp_path)
    assert isinstance(source, PostgresStorage)
    waits, said = asyncio.Event(), list[str]()

    def told(phase: str, done: int, total: int | None) -> None:
        said.append(phase)
        if phase.startswith("waiting for"):
            waits.set()

    await source.enqueue([NewJob(id="a", task="t")])
    async with await psycopg.AsyncConnection.connect(postgres.url()) as theirs:
        await source.within(theirs).enqueue([NewJob(id="mine", task="t")])
        moved = asyncio.create_task(
            move(OpenStorage(source, "old"), OpenStorage(target, "new"), wait=60, progress=told)
        )
        await waits.wait()
        for number in range(3):
            claimed = await source.claim(Claim(worker=f"w#{number}", limit=1))
            renewals = [LeaseRenewal(row.job.id, row.version) for row in claimed.records]
            held = await source.heartbeat(Presence(worker="w"), renewals, 30.0)
            assert not held.lost
            await source.enqueue([NewJob(id=f"n{number}", task="t")])
        assert any(f"server process {theirs.info.backend_pid} " in phase for phase in said)
        assert not moved.done()
        moved.cancel()
        await asyncio.gather(moved, return_exceptions=True)
        await theirs.commit()
    done = await move(OpenStorage(source, "old"), OpenStorage(target, "new"), wait=0)
    assert done.jobs == 5
    assert [row is not None for row in await target.get(["mine", "n2"])] == [True, True]
    await source.close()
    await target.close()


async def test_a_move_that_stops_waiting_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_move, "PATIENT", 0.0)
    source, target = await made("postgres", tmp_path), await made("sqlite", tmp_path)
    assert isinstance(source, PostgresStorage)
    async with await psycopg.AsyncConnection.connect(postgres.url()) as theirs:
        await source.within(theirs).enqueue([NewJob(id="mine", task="t")])
        with pytest.raises(MoveFailed, match=rf"server process {theirs.info.backend_pid} .*give a longer --wait"):
            await move(OpenStorage(source, "old"), OpenStorage(target, "new"), wait=0)
        await source.enqueue([NewJob(id="a", task="t")])
        assert await source.read_mark() is None
        await theirs.rollback()
    assert (await move(OpenStorage(source, "old"), OpenStorage(target, "new"), wait=0)).jobs == 1
    await source.close()
    await target.close()
