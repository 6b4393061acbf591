"""Processes of several versions read one log of ports: all must derive the same rows from it."""

from __future__ import annotations

import hashlib

import msgspec

from tests.storage.play import Play, said
from treadle.storage.composed import log_entries
from treadle.storage.memory import MemoryStorage
from treadle.testing import HandClock

GOLDEN = {  # RULES -> the rows that these calls make
    1: "1fd108410c06b381",
    2: "1fd108410c06b381",  # rows of metrics
    3: "1fd108410c06b381",  # bounds of queues
    4: "1fd108410c06b381",  # a repeated outcome has its checkpoints in the row
    5: "546fbfcbf9738217",  # a costly job holds back cheaper ones; a reopened child its parent (calls with more costs)
    6: "16d9b7fbcb45f9e0",  # what a reopened job waits for is kept, and what is gone counts as a success
    7: "16d9b7fbcb45f9e0",  # a renewal may shorten the lease of a job (these calls renew for the same time)
    8: "16d9b7fbcb45f9e0",  # an instant counts instead of the delay or the deadline (these calls name none)
    9: "16d9b7fbcb45f9e0",  # a reopening may begin a round; a row without a task that is settled with keep=0 is pruned
    10: "16d9b7fbcb45f9e0",  # the real cost of a run (these calls name none); a window records costs beyond its rate
}


async def test_the_effect_of_the_verbs_has_a_version_number() -> None:
    rows = hashlib.sha256()
    for seed in range(20):
        clock = HandClock(1_000_000.0)
        storage, game = MemoryStorage(clock), Play(seed, clock)
        for _ in range(100):
            await said(game.next(), storage)
            found = await storage.get(game.ids)
            rows.update(msgspec.json.encode(found))
            game.rows = {row.job.id: row for row in found if row is not None}
            clock.advance(game.dice.choice([0, 0, 0.25, 1, 1, 3, 12, 70]))
    assert rows.hexdigest()[:16] == GOLDEN.get(log_entries.RULES), (
        "the memory storage works in another way than it did under these rules, so processes that read one log would "
        "disagree. Raise RULES in storage/composed/log_entries.py, and add this number to GOLDEN"
    )
