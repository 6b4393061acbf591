"""kill -9 of workers, producers and servers: nothing acknowledged is lost, nothing settles twice, data stays whole."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.faults.killing import Found, kill_rounds
from tests.faults.stages import STAGES, Stage, staged
from treadle_testkit.shows import shows

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("kind", STAGES, ids=lambda kind: kind.name)]


def verify(found: Found, stage: Stage) -> None:
    assert found.kills > 0
    assert found.acknowledged > 20
    assert found.server_kills > 0 or not stage.server
    assert not found.missing, f"{len(found.missing)} acknowledged jobs are not stored: {found.missing[:5]}"
    assert not found.unfinished, found.unfinished[:5]
    assert not found.foreign, found.foreign[:5]
    twice = [id for id, count in found.settled.items() if count > 1]
    assert not twice, f"settled by two workers: {twice[:5]}"
    stage.check()


@shows("kill -9 of workers, producers and servers loses no acknowledged job and settles none twice")
@pytest.mark.timeout(300)
async def test_kill_nine_loses_nothing(kind: type[Stage], tmp_path: Path) -> None:
    async with staged(kind) as stage:
        found = await kill_rounds(stage, tmp_path, 3, 600, random.Random(os.urandom(4)))
        verify(found, stage)


@pytest.mark.soak
@pytest.mark.timeout(3600)
async def test_kill_nine_200_rounds(kind: type[Stage], tmp_path: Path) -> None:
    rounds = int(os.environ.get("TEST_SOAK_ROUNDS", "200"))
    async with staged(kind) as stage:
        found = await kill_rounds(stage, tmp_path, rounds, 100_000, random.Random(1), print)
        verify(found, stage)
    again = sum(count - 1 for count in found.starts.values() if count > 1)
    print(
        f"{kind.name}: {rounds} rounds, {found.kills} kills of processes, {found.server_kills} of the server, "
        f"{len(found.starts)} jobs run, {again} runs repeated, lost 0, settled twice 0"
    )
