"""kill -9 of workers and producers: nothing acknowledged is lost, nothing settles twice, the file stays whole."""

from __future__ import annotations

import os
import random
import sqlite3
from pathlib import Path

import pytest

from tests.faults.killing import Found, kill_rounds


def verify(found: Found, database: Path) -> None:
    assert found.kills > 0
    assert not found.missing, f"{len(found.missing)} acknowledged jobs are not stored: {found.missing[:5]}"
    assert not found.unfinished, found.unfinished[:5]
    assert not found.foreign, found.foreign[:5]
    twice = [id for id, count in found.settled.items() if count > 1]
    assert not twice, f"two holders were told they had settled {twice[:5]}"
    with sqlite3.connect(database) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    db.close()


async def test_kill_nine_loses_nothing(tmp_path: Path) -> None:
    database = tmp_path / "jobs.db"
    found = await kill_rounds(f"sqlite:///{database}", tmp_path, 6, 600, random.Random(os.urandom(4)))
    verify(found, database)


@pytest.mark.soak
@pytest.mark.timeout(3600)
async def test_kill_nine_200_rounds(tmp_path: Path) -> None:
    database = tmp_path / "jobs.db"
    rounds = int(os.environ.get("SOAK_ROUNDS", "200"))
    found = await kill_rounds(f"sqlite:///{database}", tmp_path, rounds, 100_000, random.Random(1), print)
    verify(found, database)
    lost = sum(count - 1 for count in found.starts.values() if count > 1)
    print(f"{found.kills} kills, {len(found.starts)} jobs run, {lost} runs repeated")
